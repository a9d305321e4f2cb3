"""The benchmark: what kvlab does, side by side with what it is measured against, in one run."""

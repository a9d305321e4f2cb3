"""Figures and panels: they draw the values that a study computed, and compute nothing."""

"""Studies: frozen parameters in, one tidy DataFrame out, each with its origin."""

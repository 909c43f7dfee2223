"""Training: the loop and its state, the optimizer, starting values."""

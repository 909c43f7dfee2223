"""Fast paths for the paper's models: planned training steps and evaluations in C."""

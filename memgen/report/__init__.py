"""One page about a run, or several side by side."""

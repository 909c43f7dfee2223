"""The page of `memgen serve`."""

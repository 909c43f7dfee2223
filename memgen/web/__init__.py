"""The local page of `memgen serve`: play with a model, and look into its memory."""

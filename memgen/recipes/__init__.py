"""Recipes: every setting of a model and its training, and the model that they describe."""

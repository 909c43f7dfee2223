"""What a trained model is for: a model and tensors in, tensors or records out. No recipes, no data sets, no files."""

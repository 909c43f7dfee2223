"""What is kept: run folders, model files, the models that come with the package."""

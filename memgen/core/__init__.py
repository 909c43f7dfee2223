"""The method, in plain PyTorch: memory, layers, likelihoods, model, objective, noise."""

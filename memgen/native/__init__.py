"""The element-wise passes of a step as C kernels, which the machine's own compiler makes when they are first used."""

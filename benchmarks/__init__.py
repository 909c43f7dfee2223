"""Measurements beside the package: speed, imputation, density, and the tables they are taken on."""

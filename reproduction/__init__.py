"""Reproduction of the paper's tables and figures: one command per row, and a page of the results."""

"""The paper's tables and figures again: one command per row, and a page of what came out."""

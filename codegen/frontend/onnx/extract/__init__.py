"""Extraction: each node with weights becomes a layer or is skipped with a reason."""

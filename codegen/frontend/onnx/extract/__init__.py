"""Extraction: nodes with constant weights made into layers, or skipped with a reason."""

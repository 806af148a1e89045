"""Fusion: nodes around a product that its kernel computes too."""

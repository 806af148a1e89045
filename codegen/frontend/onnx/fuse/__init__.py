"""Fusion: the nodes around a product that its GPU kernel computes too."""

"""Tuning records: the tiling that was fastest on a real GPU, for a kind of layer."""

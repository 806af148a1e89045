"""The values that every stage speaks of: layer, weights, epilogue, tiling, launch. No CUDA, no files."""

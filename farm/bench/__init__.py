"""Benchmarks: the generated kernels against what a user would call instead, on the GPU at hand."""

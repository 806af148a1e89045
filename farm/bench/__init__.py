"""Benchmarks of the generated kernels against alternatives, on a GPU."""

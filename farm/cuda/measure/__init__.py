"""Measurement of kernels on a GPU: workload, builds, data, timing."""

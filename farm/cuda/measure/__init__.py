"""Measuring kernels on a GPU: layers, their data, timing."""

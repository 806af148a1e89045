"""Targets: GPU architectures, and the GPUs that have them."""

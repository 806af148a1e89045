"""Targets: GPU architectures and GPU models."""

"""Bundles as AOTInductor packages, and as models of Triton Inference Server."""

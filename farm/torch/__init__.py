"""Bundles in PyTorch: `farm.torch.load(path)` is a module that computes what the ONNX model does."""

from __future__ import annotations

from farm.torch.module import load

__all__ = ["load"]

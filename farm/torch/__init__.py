"""Bundles in PyTorch: `load` gives the whole network as a module, `capture` makes one CUDA graph of it, `swap` puts its
layers into a model of one's own."""

from __future__ import annotations

from farm.torch.capture import capture
from farm.torch.module import load
from farm.torch.swap import Swapped, swap

__all__ = ["Swapped", "capture", "load", "swap"]

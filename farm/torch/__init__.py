"""Bundles in PyTorch: `load` gives the whole network as a module, `swap` puts its layers into a model of one's own."""

from __future__ import annotations

from farm.torch.module import load
from farm.torch.swap import Swapped, swap

__all__ = ["Swapped", "load", "swap"]

"""Bundles run without a framework, a store or a compiler: `farm.runtime.load(path)` is a network on a GPU."""

from __future__ import annotations

from farm.runtime.network import load

__all__ = ["load"]

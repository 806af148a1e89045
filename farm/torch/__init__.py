"""Bundles in PyTorch: `load` a whole network, `capture` it as a CUDA graph, or `swap` its layers into your model."""

from __future__ import annotations

from farm.extras import way_out

try:
    from farm.torch.capture import capture
    from farm.torch.module import load
    from farm.torch.swap import Swapped, swap
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise ModuleNotFoundError(f"PyTorch is missing here ({error}): {way_out('torch')}", name="torch") from None

__all__ = ["Swapped", "capture", "load", "swap"]

"""PyTorch: `compile` a pruned model, `load` its bundle, `capture` it as a CUDA graph, or `swap` layers into a model."""

from __future__ import annotations

from farm.extras import way_out

try:
    from farm.torch.capture import capture
    from farm.torch.compilation import Compiled, Sweep, compile, sweep  # noqa: A004 - named like torch.compile
    from farm.torch.module import load
    from farm.torch.packages.aot_inductor import write_package
    from farm.torch.packages.triton import write_triton_model
    from farm.torch.swap import Swapped, swap
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise ModuleNotFoundError(f"PyTorch is missing here ({error}): {way_out('torch')}", name="torch") from None

__all__ = [
    "Compiled",
    "Swapped",
    "Sweep",
    "capture",
    "compile",
    "load",
    "swap",
    "sweep",
    "write_package",
    "write_triton_model",
]

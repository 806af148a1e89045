"""A small layer that reaches some kind of generated code."""

from __future__ import annotations

from dataclasses import dataclass, field

from codegen.ir.layer_spec import AddResidual, Clip, Conv2d, LayerSpec
from codegen.ir.tiling import Accumulator, Tiling

RESIDUAL = (AddResidual(), Clip(low=0.0))
PAD = (1, 1, 1, 1)
ACCUMULATORS: tuple[Accumulator, ...] = ("float32", "float16")
HALVES = Conv2d(5, 9, 11, 7, 3, 3, padding=PAD, epilogue=RESIDUAL, data_type="float16")
BFLOATS = Conv2d(5, 9, 11, 7, 3, 3, padding=PAD, epilogue=RESIDUAL, data_type="bfloat16")


@dataclass(frozen=True)
class Case:
    """A layer, how it is divided, and what it is compiled for; `batch` is in images, or in rows of a Linear."""

    spec: LayerSpec
    tiling: Tiling
    virtual_arch: str = field(default="compute_80", kw_only=True)
    batch: int = field(default=2, kw_only=True)

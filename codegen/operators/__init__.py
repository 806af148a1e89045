"""The operators: CUDA sources with placeholders where the weights go, one module each beside its .cu file."""

from __future__ import annotations

import hashlib
from importlib.resources import files
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from codegen.launch import Launch
from codegen.layers import FloatArray, Weights
from codegen.operators import conv2d
from codegen.operators.region import Region
from codegen.spec import Conv2d, LayerSpec
from codegen.tiling import Tiling


class Operator(Protocol):
    """What an operator's module holds."""

    @property
    def SOURCES(self) -> tuple[str, ...]:  # noqa: N802 - a module's constant
        """The files of this folder that shape its template, the .cu first."""

    def sources(self, spec: Conv2d, tiling: Tiling) -> dict[str, str]:
        """The generated headers that the .cu includes."""

    def launch_of(self, spec: Conv2d, tiling: Tiling) -> Launch:
        """Grid, block and shared memory of the kernel."""

    def tiles(self, spec: Conv2d, tiling: Tiling) -> tuple[int, int]:
        """Blocks per image and K group: down and across."""

    def block_region(self, spec: Conv2d, tiling: Tiling, block: tuple[int, int, int]) -> Region:
        """The outputs that a block writes."""

    def rolled_slots(self, spec: Conv2d, tiling: Tiling) -> NDArray[np.int64]:
        """The weight of every placeholder of the loop body."""

    def rolled_values(
        self, spec: Conv2d, tiling: Tiling, weights: Weights
    ) -> tuple[FloatArray, FloatArray, NDArray[np.bool_]]:
        """What the placeholders of every copy of the loop body stand for."""

    def full_values(self, spec: Conv2d, weights: Weights) -> dict[int, int]:
        """From the bits of every placeholder of the full form to the bits of its weight."""


_OPERATORS: dict[type, Operator] = {Conv2d: conv2d}


def operator_of(spec: LayerSpec) -> Operator:
    """The operator that computes a layer of this spec."""
    return _OPERATORS[type(spec)]


def operator_digest(spec: LayerSpec) -> str:
    """Of everything here that shapes the operator's template."""
    texts = (files("codegen.operators").joinpath(name).read_text() for name in operator_of(spec).SOURCES)
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()


def source_path(spec: LayerSpec) -> Path:
    """Where the operator's CUDA source lies."""
    return Path(str(files("codegen.operators").joinpath(operator_of(spec).SOURCES[0])))


def launch_of(spec: LayerSpec, tiling: Tiling) -> Launch:
    """How the kernel of this layer is launched."""
    return operator_of(spec).launch_of(spec, tiling)

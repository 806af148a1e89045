"""The challenge's kernels without a GPU: the PTX of every layer in the emulator, on a few rows, against float64."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from codegen.emulator.ptx import emulate
from codegen.frontend.tsv.network import tile_rows
from codegen.ptx.rewrite import Kernel, rewrite
from codegen.ptx.template import make_template
from codegen.toolchain.tools import DEFAULT_LIMITS, Toolchain
from farm.bench.graphchallenge.kernels import listed_tiling, listed_virtual_arch
from farm.bench.graphchallenge.network import Challenge, in_tiles, outcome_of
from farm.bench.graphchallenge.rows import check_layer_memory

ARCH = "sm_90"
TOLERANCE = 1e-4
GROUP, THREADS = 32, 32
"""Outputs of a K group, and threads of a block."""


@dataclass(frozen=True)
class EmulatedLayer:
    """What is known after a layer."""

    number: int
    rows: int
    """That are left."""


@dataclass(frozen=True)
class Emulated:
    """The end of a network."""

    rows: int
    """That are left."""
    same_rows: bool
    """As in float64."""
    largest_error: float
    """Of an output, as a share of the largest output; NaN where the rows are others."""

    @property
    def ok(self) -> bool:
        return self.same_rows and self.largest_error <= TOLERANCE

    def __str__(self) -> str:
        left = "1 row is left" if self.rows == 1 else f"{self.rows} rows are left"
        if not self.same_rows:
            return f"{left}, not as in float64"
        return f"{left}, as in float64, the largest error is {self.largest_error:.1e} of the values"


def emulated(challenge: Challenge, toolchain: Toolchain) -> Iterator[EmulatedLayer | Emulated]:
    """Tells each layer, then the end. Raises ToolError and EmulationError, and UsageError for layers too large."""
    check_layer_memory(challenge.neurons)
    checkpoint = challenge.checkpoint()
    spec, width = checkpoint.layers[0].spec, tile_rows(challenge.neurons)
    tiling = listed_tiling(min(GROUP, challenge.neurons), THREADS, challenge.neurons)
    template = make_template(spec, tiling, listed_virtual_arch(ARCH), toolchain, DEFAULT_LIMITS)
    kernels: dict[str, Kernel] = {}
    values = in_tiles(challenge.rows, width)
    names = np.arange(len(challenge.rows))
    places = np.arange(len(challenge.rows), dtype=np.int32)
    for number, layer in enumerate(checkpoint.layers, start=1):
        if layer.weights.digest not in kernels:
            kernels[layer.weights.digest] = rewrite(template, layer.weights)
        kernel = kernels[layer.weights.digest]
        output, marks = np.zeros_like(values), np.zeros(len(values) * width, dtype=np.uint8)
        if len(names):
            given: dict[str, emulate.Argument] = {
                "input": values,
                "output": output,
                "count": np.array([len(names)], dtype=np.int32),
                "places": places,
                "marks": marks,
                **kernel.launch.numbers(len(values)),
            }
            _, _, groups = kernel.launch.grid_at(len(values))
            grid = -(-len(names) // THREADS), 1, groups
            emulate.run(kernel.ptx, grid, kernel.launch.block, 0, [given[name] for name in kernel.launch.arguments])
        places = np.flatnonzero(marks).astype(np.int32)
        values, names = output, names[places]
        yield EmulatedLayer(number, len(names))
    reference = outcome_of(challenge)
    same = names.tolist() == reference.alive.tolist()
    error = float("nan")
    if same:
        got = values.transpose(0, 2, 1).reshape(-1, challenge.neurons)[places]
        got = got[:, np.argsort(challenge.output_order)]
        largest = float(reference.values.max(initial=0)) or 1.0
        error = float(np.abs(got - reference.values).max(initial=0)) / largest
    yield Emulated(len(names), same, error)

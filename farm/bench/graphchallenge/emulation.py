"""The challenge without a GPU: every layer's PTX in the emulator, on a few rows, compared with float64."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from codegen.emulator.ptx import emulate
from codegen.frontend.tsv.network import tile_rows
from codegen.ptx.rewrite import Kernel, rewrite
from codegen.ptx.template import make_template
from codegen.toolchain.tools import DEFAULT_LIMITS, Toolchain
from farm.bench.graphchallenge.inputs import check_layer_memory
from farm.bench.graphchallenge.kernels import listed_tiling, listed_virtual_arch
from farm.bench.graphchallenge.network import ChallengeNetwork, in_tiles, outcome_of

ARCH = "sm_90"
TOLERANCE = 1e-4
GROUP, THREADS = 32, 32
"""Output channels of a K group, and threads of a block."""


@dataclass(frozen=True)
class EmulatedLayer:
    """Event: a layer was emulated."""

    number: int
    rows: int
    """Rows left."""


@dataclass(frozen=True)
class EmulatedNetwork:
    """Event: the network was emulated."""

    rows: int
    """Rows left."""
    same_rows: bool
    """Whether they are the rows of the float64 reference."""
    largest_error: float
    """Largest error of an output as a share of the largest output; NaN if the rows differ."""

    @property
    def ok(self) -> bool:
        return self.same_rows and self.largest_error <= TOLERANCE

    def __str__(self) -> str:
        left = "1 row is left" if self.rows == 1 else f"{self.rows} rows are left"
        if not self.same_rows:
            return f"{left}, not as in float64"
        return f"{left}, as in float64, the largest error is {self.largest_error:.1e} of the values"


def emulate_network(network: ChallengeNetwork, toolchain: Toolchain) -> Iterator[EmulatedLayer | EmulatedNetwork]:
    """Emulates a network; yields an event per layer, then the result.

    Raises ToolError, EmulationError, and UsageError for layers too large for this machine's memory.
    """
    check_layer_memory(network.neurons)
    checkpoint = network.checkpoint()
    spec, width = checkpoint.layers[0].spec, tile_rows(network.neurons)
    tiling = listed_tiling(min(GROUP, network.neurons), THREADS, network.neurons)
    template = make_template(spec, tiling, listed_virtual_arch(ARCH), toolchain, DEFAULT_LIMITS)
    kernels: dict[str, Kernel] = {}
    values = in_tiles(network.rows, width)
    names = np.arange(len(network.rows))
    places = np.arange(len(network.rows), dtype=np.int32)
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
    reference = outcome_of(network)
    same = names.tolist() == reference.alive.tolist()
    error = float("nan")
    if same:
        got = values.transpose(0, 2, 1).reshape(-1, network.neurons)[places]
        got = got[:, np.argsort(network.output_order)]
        largest = float(reference.values.max(initial=0)) or 1.0
        error = float(np.abs(got - reference.values).max(initial=0)) / largest
    yield EmulatedNetwork(len(names), same, error)

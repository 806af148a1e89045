"""What kernels of the sparse DNN challenge are given: columns, and layers one after another."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

import torch

from farm.bench.graphchallenge.pipelined_layers import KERNEL, READ_BYTES, Lots
from farm.cuda.module import Module, allow_shared, launch


@dataclass(frozen=True, eq=False)
class Columns:
    """Which columns a layer computes, and where it marks those with an output."""

    count: torch.Tensor
    places: torch.Tensor | None
    marks: torch.Tensor


@dataclass(frozen=True, eq=False)
class RunData:
    """What a kernel that goes over layers is given."""

    source: torch.Tensor
    target: torch.Tensor
    spare: torch.Tensor
    columns: Columns
    done: torch.Tensor
    first: int
    layers: int


class FirstLayers:
    """A network's first layers by one kernel, lot after lot of its rows."""

    def __init__(self, cubin: bytes, lots: Lots, layers: int, given: torch.Tensor, rows: int) -> None:
        """`given` is the input, [tiles, neurons, width]: it is copied into whole lots. Raises DeviceError."""
        tiles, neurons, width = given.shape
        self.layers = layers
        self._lots, self._rows, self._groups = lots, rows, neurons // lots.group
        self._count = lots.count(rows)
        self.input = torch.zeros((self._count * lots.columns // width, neurons, width), device="cuda")
        self.input[:tiles] = given
        self._between = torch.zeros((layers - 1, lots.columns, neurons), device="cuda")
        self._counters = torch.zeros(lots.counters * READ_BYTES // 4, dtype=torch.int32, device="cuda")
        self._function = Module(cubin).function(KERNEL)
        allow_shared(self._function, lots.shared_bytes)
        torch.cuda.synchronize()  # zeros that came late, from another stream, would be waited for without end

    def enqueue(self, output: torch.Tensor, marks: torch.Tensor, stream: int) -> None:
        """`output` is as large as the input."""
        lots = self._lots
        self._counters.zero_()
        pointers = (self.input, output, self._between, marks, self._counters)
        numbers = (self._rows, lots.turns, self._count)
        arguments = [*map(pointer, pointers), *map(ctypes.c_int32, numbers)]
        grid = (lots.beside, 1, self._groups)
        launch(self._function, grid, (lots.threads, 1, 1), lots.shared_bytes, arguments, stream)


def pointer(tensor: torch.Tensor | None) -> Any:
    """As an argument of a kernel."""
    return ctypes.c_uint64(0 if tensor is None else tensor.data_ptr())

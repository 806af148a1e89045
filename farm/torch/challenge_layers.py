"""What layers of the sparse DNN challenge read for whatever columns: their kernels' code, an index kernel's tables."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
import torch

from codegen.launch import Launch
from codegen.layers import Layer
from farm.gpu.challenge import IndexTable
from farm.gpu.loaded import Code, load_with_code
from farm.torch.challenge_columns import Columns, pointer

LOAD_BYTES = 16
"""Of the widest load."""


@dataclass(frozen=True, eq=False)
class LayerLaunch:
    """How a layer's own kernel is launched."""

    function: ctypes.c_void_p
    rest: tuple[int, int]
    """Of the grid, but for the first dimension."""
    threads: int
    arguments: list[Any]


class OwnKernels:
    """Layers' own kernels, by the digests of their weights."""

    def __init__(self, layers: Sequence[Layer], kernels: Mapping[str, tuple[bytes, Launch]], tiles: int) -> None:
        """Raises DeviceError."""
        self._layers, self._tiles = layers, tiles
        loaded = {digest: (*load_with_code(cubin), how) for digest, (cubin, how) in kernels.items()}
        self._loaded = {
            digest: (module.function(how.kernel), code, how) for digest, (module, code, how) in loaded.items()
        }

    def code(self, layers: range) -> Code | None:
        """Of the first."""
        return self._loaded[self._layers[layers[0]].weights.digest][1]

    def launch(self, layer: int, source: torch.Tensor, target: torch.Tensor, columns: Columns) -> LayerLaunch:
        function, _, how = self._loaded[self._layers[layer].weights.digest]
        pointers = {"input": source, "output": target, **vars(columns)}
        numbers = how.numbers(self._tiles)
        _, y, z = how.grid_at(self._tiles)
        arguments = [
            ctypes.c_int32(numbers[name]) if name in numbers else pointer(pointers[name]) for name in how.arguments
        ]
        return LayerLaunch(function, (y, z), how.block[0], arguments)


class Tables:
    """Of layers, what their index kernel reads: side by side on the GPU, each array where the widest load may begin."""

    def __init__(self, layers: Sequence[Layer], tables: Mapping[str, IndexTable]) -> None:
        """`tables` by the digests of the layers' weights."""
        self._layers = layers
        of = {layer.weights.digest: layer.weights for layer in layers}
        arrays = [
            [
                np.ascontiguousarray(each).view(np.uint8).reshape(-1)
                for each in (of_layer.first, of_layer.inputs, of_layer.weights, weights.bias)
            ]
            for of_layer, weights in ((tables[key], of[key]) for key in of)
        ]
        sizes = [[-(-len(each) // LOAD_BYTES) * LOAD_BYTES for each in of_layer] for of_layer in arrays]
        ends = list(accumulate(size for of_layer in sizes for size in of_layer))
        host = np.zeros(ends[-1], dtype=np.uint8)
        starts = [0, *ends[:-1]]
        for start, each in zip(starts, (each for of_layer in arrays for each in of_layer), strict=True):
            host[start : start + len(each)] = each
        self._memory = torch.from_numpy(host).cuda()
        begin, count = self._memory.data_ptr(), len(arrays[0])
        self._addresses = {
            key: [begin + start for start in starts[count * i : count * (i + 1)]] for i, key in enumerate(of)
        }
        self._bytes = dict(zip(of, map(sum, sizes), strict=True))

    def addresses(self, layer: int) -> list[int]:
        """Of a layer's: what each group reads, from which inputs, their weights, the biases."""
        return self._addresses[self._layers[layer].weights.digest]

    def memory(self, layers: range) -> Code:
        """Of one layer, or of all if it is several."""
        if len(layers) > 1:
            return Code(self._memory.data_ptr(), self._memory.numel())
        return Code(self.addresses(layers[0])[0], self._bytes[self._layers[layers[0]].weights.digest])

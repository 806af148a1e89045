"""The windows of a max pool: which part of a map those of a region have, and what lies at each of their places."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codegen.ir.epilogue import POOL_STRIDE
from codegen.ir.layer_spec import Conv2d, MaxPool
from codegen.kernels.output_region import Region


@dataclass(frozen=True)
class Windows:
    """Those of a region of a pooled layer's output."""

    window: int
    count: tuple[int, int]
    """Rows and columns of windows."""
    region: Region
    """What of the map they have."""
    beside: tuple[tuple[int, int], tuple[int, int]]
    """Rows above and below that, and columns before and after it, that they have beside the map."""

    @staticmethod
    def of(spec: Conv2d, pool: MaxPool, region: Region) -> Windows:
        sizes = ((spec.output_height, spec.map_height), (spec.output_width, spec.map_width))
        slices, beside, count = [], [], []
        for part, (outputs, size), padding in zip((region.rows, region.columns), sizes, pool.padding[:2], strict=True):
            first, end, _ = part.indices(outputs)
            begin = POOL_STRIDE * first - padding
            after = begin + POOL_STRIDE * (end - 1 - first) + pool.window if end > first else begin
            inside = slice(max(begin, 0), max(min(after, size), 0))
            slices.append(inside)
            beside.append((inside.start - begin, max(0, after - size)) if end > first else (0, 0))
            count.append(max(0, end - first))
        return Windows(
            pool.window, (count[0], count[1]), Region(region.images, region.kernels, *slices), (beside[0], beside[1])
        )

    def places(self, map_values: NDArray[Any], nothing: Any) -> list[NDArray[Any]]:
        """[N, K, H', W'] each, of the region of the map: what all windows have at a place; `nothing` beside the map."""
        padded = np.pad(map_values, ((0, 0), (0, 0), *self.beside), constant_values=nothing)
        rows, columns = (POOL_STRIDE * each for each in self.count)
        return [
            padded[..., row : row + rows : POOL_STRIDE, column : column + columns : POOL_STRIDE]
            for row in range(self.window)
            for column in range(self.window)
        ]

    def combined(self, map_values: NDArray[Any], combine: np.ufunc, nothing: Any) -> NDArray[Any]:
        """The values of each window combined; a maximum leaves a NaN."""
        result, *others = self.places(map_values, nothing)
        for each in others:
            result = combine(result, each)
        return result

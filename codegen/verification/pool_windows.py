"""Windows of a max pool: the part of the unpooled map that a region needs, and the values of each window."""

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
    """The windows of a region of a pooled layer's output."""

    window: int
    """Rows and columns of a window."""
    count: tuple[int, int]
    """Rows and columns of windows in the region."""
    region: Region
    """The part of the map inside the windows."""
    padding: tuple[tuple[int, int], tuple[int, int]]
    """Rows above and below that part, and columns before and after it, that windows have outside the map."""

    @staticmethod
    def of(spec: Conv2d, pool: MaxPool, region: Region) -> Windows:
        sizes = ((spec.output_height, spec.map_height), (spec.output_width, spec.map_width))
        slices, outside, count = [], [], []
        for part, (outputs, size), padding in zip((region.rows, region.columns), sizes, pool.padding[:2], strict=True):
            first, end, _ = part.indices(outputs)
            begin = POOL_STRIDE * first - padding
            after = begin + POOL_STRIDE * (end - 1 - first) + pool.window if end > first else begin
            inside = slice(max(begin, 0), max(min(after, size), 0))
            slices.append(inside)
            outside.append((inside.start - begin, max(0, after - size)) if end > first else (0, 0))
            count.append(max(0, end - first))
        return Windows(
            pool.window, (count[0], count[1]), Region(region.images, region.outputs, *slices), (outside[0], outside[1])
        )

    def places(self, map_values: NDArray[Any], nothing: Any) -> list[NDArray[Any]]:
        """The windows' values at each place, [N, K, H', W'] per place, with `nothing` outside the map."""
        padded = np.pad(map_values, ((0, 0), (0, 0), *self.padding), constant_values=nothing)
        rows, columns = (POOL_STRIDE * each for each in self.count)
        return [
            padded[..., row : row + rows : POOL_STRIDE, column : column + columns : POOL_STRIDE]
            for row in range(self.window)
            for column in range(self.window)
        ]

    def combined(self, map_values: NDArray[Any], combine: np.ufunc, nothing: Any) -> NDArray[Any]:
        """The values of each window, combined by `combine`; np.maximum keeps NaN."""
        result, *others = self.places(map_values, nothing)
        for each in others:
            result = combine(result, each)
        return result

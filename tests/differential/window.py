"""Windows of a kernel over a map, and their sums of products, in float64."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

Float64Array = NDArray[np.float64]
Attributes = Mapping[str, Any]


@dataclass(frozen=True)
class Window:
    """Motion of a kernel over a map of height and width, or width alone, which then is a map of height 1."""

    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    begins: tuple[int, ...]
    """Padding; of a transposed convolution what is cut off."""
    ends: tuple[int, ...]
    added: tuple[int, ...]
    """Output padding."""
    group: int

    @staticmethod
    def of(attributes: Attributes, size: tuple[int, ...], kernel: tuple[int, ...], *, transposed: bool) -> Window:
        """From the attributes of a node, with ONNX's defaults."""
        rank = len(size)
        strides, dilations = (tuple(attributes.get(name, (1,) * rank)) for name in ("strides", "dilations"))
        added = tuple(attributes.get("output_padding", (0,) * rank))
        pads = tuple(attributes.get("pads", (0,) * (2 * rank)))
        begins, ends = pads[:rank], pads[rank:]
        mode = attributes.get("auto_pad", b"NOTSET").decode()
        wanted = attributes.get("output_shape")
        extents = [(each - 1) * step + 1 for each, step in zip(kernel, dilations, strict=True)]
        if mode.startswith("SAME") or wanted:
            if transposed:
                whole = [
                    (each - 1) * step + extent + more
                    for each, step, extent, more in zip(size, strides, extents, added, strict=True)
                ]
                wanted = wanted or [each * step for each, step in zip(size, strides, strict=True)]
                totals = [each - want for each, want in zip(whole, wanted, strict=True)]
            else:
                totals = [
                    max((-(-each // step) - 1) * step + extent - each, 0)
                    for each, step, extent in zip(size, strides, extents, strict=True)
                ]
            less, more = tuple(each // 2 for each in totals), tuple(each - each // 2 for each in totals)
            begins, ends = (less, more) if mode == "SAME_UPPER" else (more, less)
        return Window(strides, dilations, begins, ends, added, attributes.get("group", 1))

    def convolve(self, x: Float64Array, w: Float64Array) -> Float64Array:
        """[N, C, H, W] and [K, C / group, R, S] to [N, K, H', W']."""
        rank = x.ndim - 2
        around = [(0, 0), (0, 0), *zip(self.begins, self.ends, strict=True)]
        extents = tuple((each - 1) * step + 1 for each, step in zip(w.shape[2:], self.dilations, strict=True))
        views = sliding_window_view(np.pad(x, around), extents, axis=tuple(range(2, 2 + rank)))
        steps = [slice(None, None, step) for step in (*self.strides, *self.dilations)]
        views = views[:, :, *steps]
        views = views.reshape(len(x), self.group, -1, *views.shape[2:])
        kernels = w.reshape(self.group, -1, *w.shape[1:])
        places, taps = "yx"[:rank], "rs"[:rank]
        sums = np.einsum(f"ngc{places}{taps},gkc{taps}->ngk{places}", views, kernels, optimize=True)
        return sums.reshape(len(x), len(w), *sums.shape[3:])

    def spread(self, x: Float64Array, w: Float64Array) -> Float64Array:
        """[N, C, H, W] and [C, K / group, R, S] to [N, K, H', W']."""
        rank = x.ndim - 2
        size, kernel = x.shape[2:], w.shape[2:]
        whole = [
            (each - 1) * stride + (taps - 1) * dilation + 1 + more
            for each, stride, taps, dilation, more in zip(
                size, self.strides, kernel, self.dilations, self.added, strict=True
            )
        ]
        sums = np.zeros((len(x), self.group, w.shape[1], *whole))
        maps = x.reshape(len(x), self.group, -1, *size)
        kernels = w.reshape(self.group, -1, *w.shape[1:])
        places = "yx"[:rank]
        for tap in np.ndindex(*kernel):
            target = tuple(
                slice(at * dilation, at * dilation + (each - 1) * stride + 1, stride)
                for at, dilation, each, stride in zip(tap, self.dilations, size, self.strides, strict=True)
            )
            sums[:, :, :, *target] += np.einsum(f"ngc{places},gck->ngk{places}", maps, kernels[..., *tap])
        inside = (slice(begin, each - end) for begin, each, end in zip(self.begins, whole, self.ends, strict=True))
        return sums[:, :, :, *inside].reshape(len(x), self.group * w.shape[1], *self._cut(whole))

    def _cut(self, whole: list[int]) -> list[int]:
        return [each - begin - end for each, begin, end in zip(whole, self.begins, self.ends, strict=True)]

"""ONNX convolutions and pools in PyTorch, with asymmetric pads, `auto_pad`, and one to three dimensions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import torch
from torch.nn import functional

T: TypeAlias = torch.Tensor
_CONVOLUTIONS = {1: functional.conv1d, 2: functional.conv2d, 3: functional.conv3d}
_TRANSPOSED = {1: functional.conv_transpose1d, 2: functional.conv_transpose2d, 3: functional.conv_transpose3d}
_MAX_POOLS = {1: functional.max_pool1d, 2: functional.max_pool2d, 3: functional.max_pool3d}


def convolution(x: T, weight: T, bias: T | None = None, **attributes: Any) -> T:
    """Conv."""
    extent = list(weight.shape[2:])
    strides, dilations, begins, ends = window_of(x.shape[2:], extent, attributes)
    if begins != ends:
        x, begins = _padded(x, begins, ends, 0.0), [0] * len(extent)
    return _CONVOLUTIONS[len(extent)](x, weight, bias, strides, begins, dilations, attributes.get("group", 1))


def transposed_convolution(x: T, weight: T, bias: T | None = None, **attributes: Any) -> T:
    """ConvTranspose."""
    extent = list(weight.shape[2:])
    rank = len(extent)
    strides = list(attributes.get("strides") or [1] * rank)
    dilations = list(attributes.get("dilations") or [1] * rank)
    more = list(attributes.get("output_padding") or [0] * rank)
    pads = list(attributes.get("pads") or [0] * 2 * rank)
    reach = [(e - 1) * d + 1 for e, d in zip(extent, dilations, strict=True)]
    wanted = attributes.get("output_shape")
    auto = attributes.get("auto_pad", "NOTSET")
    if wanted is None and auto in ("SAME_UPPER", "SAME_LOWER"):
        wanted = [size * stride for size, stride in zip(x.shape[2:], strides, strict=True)]
    if wanted is not None:
        pads = _transposed_pads(x, strides, reach, more, list(wanted)[-rank:], auto)
    full = _TRANSPOSED[rank](x, weight, None, strides, 0, more, attributes.get("group", 1), dilations)
    output = functional.pad(full, [-n for i in reversed(range(rank)) for n in (pads[i], pads[rank + i])])
    return output if bias is None else output + bias.reshape(-1, *[1] * rank)


def _transposed_pads(
    x: T, strides: Sequence[int], reach: Sequence[int], more: Sequence[int], wanted: Sequence[int], auto: str
) -> list[int]:
    begins, ends = [], []
    for size, stride, extent, added, output in zip(x.shape[2:], strides, reach, more, wanted, strict=True):
        total = stride * (size - 1) + added + extent - output
        if total < 0:  # only the bias reaches these outputs
            begins.append(0)
            ends.append(total)
            continue
        half = total // 2
        begins.append(half if auto == "SAME_UPPER" else total - half)
        ends.append(total - begins[-1])
    return begins + ends


def max_pool(x: T, **attributes: Any) -> T:
    """MaxPool without the indices."""
    extent = list(attributes["kernel_shape"])
    strides, dilations, begins, ends = window_of(x.shape[2:], extent, attributes)
    ceil = bool(attributes.get("ceil_mode", 0))
    if begins != ends or any(2 * pad > size for pad, size in zip(begins, extent, strict=True)):
        low = -math.inf if x.is_floating_point() else torch.iinfo(x.dtype).min
        x, begins = _padded(x, begins, ends, low), [0] * len(extent)
    return _MAX_POOLS[len(extent)](x, extent, strides, begins, dilations, ceil)


def average_pool(x: T, **attributes: Any) -> T:
    """AveragePool, with or without pads in the mean; elements beyond the pads never count."""
    extent = list(attributes["kernel_shape"])
    strides, dilations, begins, ends = window_of(x.shape[2:], extent, attributes)
    inside = torch.ones((1, 1, *x.shape[2:]), dtype=x.dtype, device=x.device)
    counted = _padded(inside, begins, ends, 1.0 if attributes.get("count_include_pad", 0) else 0.0)
    padded = _padded(x, begins, ends, 0.0)
    if attributes.get("ceil_mode", 0):
        over = [
            _overhang(size, begin, end, s, (e - 1) * d + 1)
            for size, begin, end, e, s, d in zip(x.shape[2:], begins, ends, extent, strides, dilations, strict=True)
        ]
        none = [0] * len(extent)
        padded, counted = _padded(padded, none, over, 0.0), _padded(counted, none, over, 0.0)
    channels = padded.shape[1]
    ones = torch.ones((1, 1, *extent), dtype=x.dtype, device=x.device)
    pool = _CONVOLUTIONS[len(extent)]
    sums = pool(padded.reshape(-1, 1, *padded.shape[2:]), ones, None, strides, 0, dilations)
    counts = pool(counted, ones, None, strides, 0, dilations)
    return (sums / counts).reshape(x.shape[0], channels, *sums.shape[2:])


def _overhang(size: int, begin: int, end: int, stride: int, reach: int) -> int:
    """Elements by which the last window of a pool with ceil_mode exceeds the padded input.

    No window begins in the end pad.
    """
    padded = begin + size + end
    windows = -(-(padded - reach) // stride) + 1
    if (windows - 1) * stride >= size + begin:
        windows -= 1
    return max(0, (windows - 1) * stride + reach - padded)


def window_of(
    sizes: Sequence[int], extent: Sequence[int], attributes: Any
) -> tuple[list[int], list[int], list[int], list[int]]:
    """Strides, dilations, begin pads and end pads of a convolution or pool over maps of the given sizes."""
    rank = len(extent)
    strides = list(attributes.get("strides") or [1] * rank)
    dilations = list(attributes.get("dilations") or [1] * rank)
    pads = list(attributes.get("pads") or [0] * 2 * rank)
    auto = attributes.get("auto_pad", "NOTSET")
    if auto in ("SAME_UPPER", "SAME_LOWER"):
        begins, ends = [], []
        for size, e, stride, dilation in zip(sizes, extent, strides, dilations, strict=True):
            total = max(0, (-(-size // stride) - 1) * stride + (e - 1) * dilation + 1 - size)
            half = total // 2
            begins.append(half if auto == "SAME_UPPER" else total - half)
            ends.append(total - begins[-1])
        return strides, dilations, begins, ends
    return strides, dilations, pads[:rank], pads[rank:]


def _padded(x: T, begins: Sequence[int], ends: Sequence[int], value: float) -> T:
    if not any(begins) and not any(ends):
        return x
    widths = [n for begin, end in reversed(list(zip(begins, ends, strict=True))) for n in (begin, end)]
    return functional.pad(x, widths, value=value)

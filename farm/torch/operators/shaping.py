"""ONNX operators in PyTorch that reshape, join, cut or move tensors; operators.py has the others."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import torch
from torch.nn import functional

from farm.errors import UsageError
from farm.runtime.data_movement import REPEATING

T: TypeAlias = torch.Tensor
Numbers: TypeAlias = Sequence[int] | T | None


def numbers(values: Numbers) -> list[int]:
    """Integers of a shape, axes and the like, from constants or a tensor."""
    if values is None:
        return []
    listed = values.tolist() if isinstance(values, torch.Tensor) else values
    listed = listed if isinstance(listed, Sequence) else [listed]
    return [each if isinstance(each, torch.SymInt) else int(each) for each in listed]


def number(value: Any) -> Any:
    """A Python number from a scalar; None stays None."""
    if isinstance(value, torch.Tensor):
        return value.item()
    while isinstance(value, Sequence) and not isinstance(value, str):
        value = value[0] if value else None
    return value


def shape(x: T, start: int = 0, end: int | None = None, beside: T | None = None, **_: Any) -> T:
    """Shape, on the CPU or on the device of `beside`."""
    return _vector(list(x.shape)[start:end], beside)


def size(x: T, beside: T | None = None, **_: Any) -> T:
    """Size, on the CPU or on the device of `beside`."""
    return torch.full((), x.numel(), dtype=torch.int64, device=_device(beside))


def constant_of_shape(shape: Numbers, value: T | None = None, beside: T | None = None, **_: Any) -> T:
    """ConstantOfShape, on the CPU or on the device of `beside`."""
    if value is None:
        return torch.zeros(numbers(shape), device=_device(beside))
    return torch.full(numbers(shape), value.reshape(-1)[0].item(), dtype=value.dtype, device=_device(beside))


def range_of(start: Any, limit: Any, delta: Any, beside: T | None = None, **_: Any) -> T:
    """Range of scalars on the CPU, on the CPU or on the device of `beside`."""
    given = number(start), number(limit), number(delta)
    kind = start.dtype if isinstance(start, torch.Tensor) else torch.int64
    return torch.arange(*given, dtype=kind, device=_device(beside))


def _vector(values: Sequence[int], beside: T | None) -> T:
    """Integers; on a GPU each is an argument of a launch, as a graph that is being recorded copies none."""
    if beside is None or not values:
        return torch.tensor(values, dtype=torch.int64, device=_device(beside))
    return torch.stack([torch.full((), value, dtype=torch.int64, device=beside.device) for value in values])


def _device(beside: T | None) -> torch.device | None:
    return None if beside is None else beside.device


def reshape(x: T, shape: Numbers, allowzero: int = 0, **_: Any) -> T:
    """Reshape."""
    sizes = numbers(shape)
    if not allowzero:
        sizes = [x.shape[i] if size == 0 else size for i, size in enumerate(sizes)]
    return x.reshape(sizes)


def flatten(x: T, axis: int = 1, **_: Any) -> T:
    """Flatten."""
    axis = axis + x.ndim if axis < 0 else axis
    return x.reshape(math.prod(x.shape[:axis]), math.prod(x.shape[axis:]))


def transpose(x: T, perm: Sequence[int] | None = None, **_: Any) -> T:
    """Transpose."""
    return x.permute(*(perm if perm is not None else range(x.ndim - 1, -1, -1)))


def squeeze(x: T, axes: Numbers = None, **_: Any) -> T:
    """Squeeze."""
    chosen = numbers(axes)
    return x.squeeze(tuple(chosen)) if chosen else x.squeeze()


def unsqueeze(x: T, axes: Numbers = None, **_: Any) -> T:
    """Unsqueeze."""
    chosen = numbers(axes)
    rank = x.ndim + len(chosen)
    for axis in sorted(each % rank for each in chosen):
        x = x.unsqueeze(axis)
    return x


def concat(*inputs: T, axis: int, **_: Any) -> T:
    """Concat."""
    return torch.cat(inputs, axis)


def split(
    x: T, split: Numbers = None, axis: int = 0, num_outputs: int | None = None, outputs: int = 1, **_: Any
) -> tuple[T, ...] | T:
    """Split; one tensor, not a tuple, for a node with one output."""
    count = num_outputs or outputs
    sizes = numbers(split)
    if not sizes:
        each = -(-x.shape[axis] // count)
        sizes = [each] * (count - 1) + [x.shape[axis] - each * (count - 1)]
    parts = torch.split(x, sizes, axis)
    return parts if outputs > 1 else parts[0]


def slice_of(
    x: T, starts: Numbers = None, ends: Numbers = None, axes: Numbers = None, steps: Numbers = None, **_: Any
) -> T:
    """Slice."""
    begins, stops = numbers(starts), numbers(ends)
    chosen = numbers(axes) or list(range(len(begins)))
    strides = numbers(steps) or [1] * len(begins)
    for axis, begin, stop, stride in zip(chosen, begins, stops, strides, strict=True):
        taken = range(x.shape[axis])[slice(begin, stop if abs(stop) < 2**31 - 1 or stride > 0 else None, stride)]
        if stride > 0:
            first, last = (taken[0], taken[-1] + 1) if taken else (0, 0)
            x = x[(slice(None),) * (axis % x.ndim) + (slice(first, last, stride),)]
        else:
            x = x.index_select(axis, torch.arange(taken.start, taken.stop, taken.step, device=x.device))
    return x


def gather(x: T, indices: T, axis: int = 0, **_: Any) -> T:
    """Gather."""
    axis %= x.ndim
    taken = x.index_select(axis, _from_start(indices, x.shape[axis]).reshape(-1))
    return taken.reshape([*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]])


def gather_elements(x: T, indices: T, axis: int = 0, **_: Any) -> T:
    """GatherElements."""
    return x.gather(axis, _from_start(indices, x.shape[axis]).long())


def scatter_elements(x: T, indices: T, updates: T, axis: int = 0, reduction: str = "none", **_: Any) -> T:
    """ScatterElements."""
    places = _from_start(indices, x.shape[axis]).long()
    if reduction == "none":
        return x.scatter(axis, places, updates)
    return x.scatter_reduce(
        axis, places, updates, {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}[reduction]
    )


def _from_start(indices: T, size: int) -> T:
    """Indices of which negative ones count from the end."""
    return torch.where(indices < 0, indices + size, indices)


def expand(x: T, shape: Numbers, **_: Any) -> T:
    """Expand, where sizes of one give way on both sides."""
    sizes = numbers(shape)
    have = [1] * (len(sizes) - x.ndim) + list(x.shape)
    wanted = [1] * (x.ndim - len(sizes)) + sizes
    return x.expand([mine if size == 1 else size for mine, size in zip(have, wanted, strict=True)])


def tile(x: T, repeats: Numbers, **_: Any) -> T:
    """Tile."""
    return x.repeat(numbers(repeats))


def pad(
    x: T, pads: Numbers = None, value: Any = None, axes: Numbers = None, mode: str = "constant", **attributes: Any
) -> T:
    """Pad."""
    widths = numbers(pads)
    fill = number(value)
    if fill is None:
        fill = attributes.get("value", 0)
    chosen = [axis % x.ndim for axis in numbers(axes)] or list(range(x.ndim))
    begins, ends = [0] * x.ndim, [0] * x.ndim
    for i, axis in enumerate(chosen):
        begins[axis], ends[axis] = widths[i], widths[i + len(chosen)]
    if mode == "constant":
        return functional.pad(x, [n for i in reversed(range(x.ndim)) for n in (begins[i], ends[i])], value=fill)
    for axis in range(x.ndim):
        if begins[axis] or ends[axis]:
            places = torch.arange(-begins[axis], x.shape[axis] + ends[axis], device=x.device)
            x = x.index_select(axis, _padded_places(places, x.shape[axis], mode))
    return x


def _padded_places(places: T, size: int, mode: str) -> T:
    """Source index of each place of a padded axis."""
    if mode == "edge":
        return places.clamp(0, size - 1)
    if mode == "wrap":
        return places % size
    period = max(1, 2 * (size - 1))
    return torch.minimum(places % period, period - places % period)


def resize(
    x: T,
    _roi: Any = None,
    scales: Any = None,
    sizes: Numbers = None,
    mode: str = "nearest",
    coordinate_transformation_mode: str = "half_pixel",
    nearest_mode: str = "round_prefer_floor",
    **more: Any,
) -> T:
    """Resize in nearest and linear mode. Raises UsageError for other modes and options."""
    given = numbers(sizes)
    factors = scales.tolist() if isinstance(scales, torch.Tensor) else list(scales or [])
    policy = more.get("keep_aspect_ratio_policy", "stretch") if given else "stretch"
    if more.get("axes") is not None or more.get("antialias") or policy != "stretch":
        raise _not_run("with axes, antialias or an aspect ratio policy")
    target = given or [math.floor(size * factor) for size, factor in zip(x.shape, factors, strict=True)]
    known = dict(enumerate(factors)) if not given else {}
    for axis in range(x.ndim):
        if target[axis] != x.shape[axis]:
            scale = known.get(axis, target[axis] / x.shape[axis])
            x = _resize_axis(x, axis, target[axis], scale, mode, coordinate_transformation_mode, nearest_mode)
    return x


def _not_run(how: str) -> UsageError:
    return UsageError(f"farm.torch does not support Resize {how}: export it otherwise, or use another runtime")


def _resize_axis(x: T, axis: int, size: int, scale: float, mode: str, coordinates: str, nearest: str) -> T:
    """Resize one axis; ONNX's interpolation is separable."""
    if mode == "nearest" and (coordinates, nearest) in REPEATING and scale == size // x.shape[axis] > 1:
        return x.repeat_interleave(size // x.shape[axis], axis)
    place = torch.arange(size, device=x.device, dtype=torch.float64)
    old = x.shape[axis]
    if coordinates == "asymmetric":
        source = place / scale
    elif coordinates == "align_corners":
        source = place * ((old - 1) / (scale * old - 1) if size > 1 else 0.0)
    elif coordinates == "pytorch_half_pixel" and size == 1:
        source = place * 0
    elif coordinates in ("half_pixel", "pytorch_half_pixel"):
        source = (place + 0.5) / scale - 0.5
    else:
        raise _not_run(f"by {coordinates}")
    if mode == "nearest":
        rounded = {
            "round_prefer_floor": lambda s: torch.ceil(s - 0.5),
            "round_prefer_ceil": lambda s: torch.floor(s + 0.5),
            "floor": torch.floor,
            "ceil": torch.ceil,
        }[nearest](source)
        return x.index_select(axis, rounded.clamp(0, old - 1).long())
    if mode != "linear":
        raise _not_run(f"with mode {mode}")
    low = torch.floor(source)
    share = (source - low).to(x.dtype)
    share = share.reshape([-1 if i == axis else 1 for i in range(x.ndim)])
    first = x.index_select(axis, low.clamp(0, old - 1).long())
    second = x.index_select(axis, (low + 1).clamp(0, old - 1).long())
    return first * (1 - share) + second * share


def depth_to_space(x: T, blocksize: int, mode: str = "DCR", **_: Any) -> T:
    """DepthToSpace."""
    n, c, h, w = x.shape
    if mode == "CRD":
        return functional.pixel_shuffle(x, blocksize)
    x = x.reshape(n, blocksize, blocksize, c // blocksize**2, h, w).permute(0, 3, 4, 1, 5, 2)
    return x.reshape(n, c // blocksize**2, h * blocksize, w * blocksize)


def space_to_depth(x: T, blocksize: int, mode: str = "DCR", **_: Any) -> T:
    """SpaceToDepth."""
    n, c, h, w = x.shape
    blocks = x.reshape(n, c, h // blocksize, blocksize, w // blocksize, blocksize)
    x = blocks.permute(0, 1, 3, 5, 2, 4) if mode == "CRD" else blocks.permute(0, 3, 5, 1, 2, 4)
    return x.reshape(n, c * blocksize**2, h // blocksize, w // blocksize)

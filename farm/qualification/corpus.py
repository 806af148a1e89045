"""The corpus: shapes drawn by number, each with many masks and values, those at their edges first."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from math import prod
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from codegen.errors import TilingError
from codegen.ir.checkpoint import Weights
from codegen.ir.dtypes import from_float32
from codegen.ir.layer_spec import (
    AddResidual,
    Clip,
    Conv2d,
    ConvTranspose2d,
    DataType,
    Gelu,
    HardSigmoid,
    HardSwish,
    LayerSpec,
    LeakyRelu,
    Linear,
    MaxPool,
    Mish,
    Sigmoid,
    Step,
    Swish,
    Tanh,
)
from codegen.ir.tiling import Accumulator, Tiling
from codegen.model_zoo import prune
from codegen.selection.choose import choose_tiling, ranked_tilings
from codegen.verification.compare import random_input
from farm.qualification.values import drawn_biases, drawn_bounds, drawn_values

LAYERS_OF_SHAPE = 40
"""Layers of one shape: they share a template and a skeleton, which take longer to make than their cubins."""
MOST_WEIGHTS = 1024
"""Of a drawn shape: ptxas takes a tenth of a second for most such layers."""
MOST_SPLIT_WEIGHTS = 3072
"""Of a shape whose channels are split over the blocks of a cluster: each has a stream of its own."""
SPLIT_EVERY = 3
"""Of so many float32 and float16 shapes one has its channels split over the blocks of a cluster."""
GATED_EVERY = 5
"""Of so many shapes, but for float16, one has its input multiplied by gates."""
BOUNDED_EVERY = 5
"""Of so many float32 shapes one has bounds for its input, as a normalisation before a layer leads to."""
POOLED_EVERY = 4
"""Of so many shapes one has a max pool behind it."""
WIDE_EVERY = 8
"""Of so many shapes that is one whose windows overlap."""
MOST_ELEMENTS = 200_000
"""Of a batch's input or output."""
STEPS: tuple[Step, ...] = (
    AddResidual(),
    Clip(low=0.0),
    Clip(low=0.0, high=6.0),
    Clip(high=0.5),
    LeakyRelu(0.1),
    Sigmoid(),
    HardSigmoid(1 / 6, 0.5),
    HardSwish(1 / 6, 0.5),
    Swish(),
    Gelu(),
    Gelu("tanh"),
    Tanh(),
    Mish(),
)
SPARSITIES = (0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99)


@dataclass(frozen=True)
class Shape:
    """A template to be tried: LAYERS_OF_SHAPE layers have it. What is drawn for it depends on its number alone."""

    number: int
    spec: LayerSpec
    tiling: Tiling
    batch: int

    @property
    def name(self) -> str:
        """As in `float32 17`."""
        return f"{self.spec.data_type} {self.number}"

    def layer_name(self, variant: int) -> str:
        """As in `float32 17:3 (one weight)`."""
        return f"{self.name}:{variant} ({mask_name(variant)})"

    def weights(self, variant: int) -> Weights:
        """Of its layer of this number, from 0 up to LAYERS_OF_SHAPE."""
        rng = np.random.default_rng((self.number, variant))
        mask = np.asarray(_masks()[variant][1](self, rng), dtype=bool)
        kernel = np.where(mask, drawn_values(self.spec, rng), np.float32(0))
        return Weights(kernel, drawn_biases(self.spec, rng), drawn_bounds(self.spec, rng))

    def input(self) -> NDArray[Any]:
        """[batch, ...]: normal values; in some shapes with zeros of both signs, infinities, NaN or subnormal ones."""
        x = random_input(self.spec, self.batch, self.number)
        rng = np.random.default_rng((self.number, LAYERS_OF_SHAPE))
        odd = {0: (0.0, -0.0), 1: (np.inf, -np.inf, np.nan), 2: (1e-40, -1e-44, 6e-8)}.get(int(rng.integers(8)))
        if odd is not None:
            chosen = from_float32(rng.choice(np.array(odd, np.float32), x.shape), self.spec.data_type)
            x = np.where(rng.random(x.shape) < 0.2, chosen, x)
        return np.ascontiguousarray(x)


def numbers(data_types: tuple[DataType, ...], first: int = 0) -> Iterator[tuple[int, DataType]]:
    """Endless: what `drawn_shape` takes, from `first` on, a shape of each data type in turn."""
    return ((number, data_type) for number in count(first) for data_type in data_types)


def drawn_shape(number: int, data_type: DataType) -> Shape | None:
    """The shape of a number; None if no tiling fits it."""
    rng = np.random.default_rng((number, list(get_args(DataType)).index(data_type), 7))
    split = data_type != "bfloat16" and number % SPLIT_EVERY == 1
    spec = _split_spec(rng, data_type) if split else _spec(rng, data_type)
    if data_type != "float16" and number % GATED_EVERY == 0:
        spec = _gated_spec(rng, data_type, split=split)
    elif data_type == "float32" and number % BOUNDED_EVERY == BOUNDED_EVERY - 1:
        spec = _bounded_spec(rng, split=split)
    elif not split and number % POOLED_EVERY == 3:
        spec = _pooled_spec(rng, data_type, wide=number % WIDE_EVERY == WIDE_EVERY - 1)
    batch = int(rng.choice([1, 2, 3, 8, 16, 33, 100]))
    batch = max(1, min(batch, MOST_ELEMENTS // max(prod(spec.input_shape), prod(spec.output_shape))))
    accumulate: Accumulator = "float16" if data_type == "float16" and rng.random() < 0.5 else "float32"
    density = float(rng.choice([0.05, 0.2, 0.6]))
    nonzeros = np.full(spec.output_channels, max(1, round(density * spec.weights_count / spec.output_channels)))
    try:
        if split:
            ranked = ranked_tilings(spec, batch, nonzeros, accumulate, clusters=True)
            clustered = [each for each in ranked if each.cluster > 1]
            tiling = clustered[int(rng.integers(len(clustered)))]
        elif rng.random() < 0.4:
            tiling = choose_tiling(spec, batch, nonzeros, accumulate=accumulate, tables=False)
        else:
            ranked = ranked_tilings(spec, batch, nonzeros, accumulate, tables=False)
            tiling = ranked[int(rng.integers(len(ranked)))]
    except (TilingError, ValueError):
        return None
    return Shape(number, spec, tiling, batch)


def _spec(rng: np.random.Generator, data_type: DataType) -> LayerSpec:
    kind, epilogue = rng.random(), _epilogue(rng)
    weights = int(np.exp(rng.uniform(np.log(24), np.log(MOST_WEIGHTS))))
    if kind < 0.25:
        inputs = int(np.clip(np.exp(rng.uniform(np.log(4), np.log(600))), 1, weights))
        return Linear(inputs, max(1, weights // inputs), epilogue, data_type)
    height, width = (int(size) for size in rng.choice([1, 2, 3, 5, 7, 8, 11, 14, 16, 23, 28, 33], 2))
    rows, columns = (int(size) for size in rng.choice([1, 1, 2, 3, 3, 3, 5], 2))
    height, width = max(height, rows), max(width, columns)
    groups = int(rng.choice([1, 1, 1, 2, 4]))
    each = max(1, weights // (rows * columns))
    channels = groups * int(rng.choice([1, 2, 3, 4, 6, 8, 12, 16, 24, 32]))
    kernels = groups * max(1, min(64, round(each / channels)))
    stride, pads = _pair(rng, (1, 1, 2, 3)), tuple(int(pad) for pad in rng.integers(0, 3, 4))
    padding = (min(pads[0], rows - 1), min(pads[1], columns - 1), min(pads[2], rows - 1), min(pads[3], columns - 1))
    size = (channels, height, width, kernels, rows, columns)
    if kind < 0.4:
        more = (int(rng.integers(stride[0])), int(rng.integers(stride[1])))
        cut = (0, 0, min(rows, height) // 2, min(columns, width) // 2)
        return ConvTranspose2d(*size, stride, cut, (1, 1), groups, more, epilogue, data_type)
    return Conv2d(*size, stride, padding, _dilation(rng, size), groups, epilogue, data_type)


def _split_spec(rng: np.random.Generator, data_type: DataType) -> LayerSpec:
    """A convolution that has tilings with clusters, of at least one quad of channels a block."""
    height, width = (int(size) for size in rng.choice([4, 5, 7, 8, 9, 11, 14, 16], 2))
    rows, columns = (int(size) for size in rng.choice([1, 1, 2, 3, 3, 3], 2))
    channels = int(rng.choice([8, 16, 24, 32, 48, 64, 96, 128]))
    weights = int(np.exp(rng.uniform(np.log(256), np.log(MOST_SPLIT_WEIGHTS))))
    kernels = int(np.clip(round(weights / (channels * rows * columns)), 1, 64))
    top, left, bottom, right = (int(rng.integers(0, size)) for size in (rows, columns, rows, columns))
    size, padding = (channels, height, width, kernels, rows, columns), (top, left, bottom, right)
    return Conv2d(*size, _pair(rng, (1, 1, 2)), padding, _dilation(rng, size), 1, _epilogue(rng), data_type)


def _gated_spec(rng: np.random.Generator, data_type: DataType, *, split: bool) -> LayerSpec:
    """A 1x1 convolution, of a map and channels that have tilings with clusters if it is to be split."""
    height, width = (int(size) for size in rng.choice([4, 5, 7, 8, 9, 11, 14, 16], 2))
    groups = 1 if split else int(rng.choice([1, 1, 1, 2, 3]))
    channels = groups * int(rng.choice([8, 16, 24, 32, 48, 64, 96, 128] if split else [1, 3, 5, 8, 12, 16, 24, 40]))
    weights = int(np.exp(rng.uniform(np.log(64), np.log(MOST_SPLIT_WEIGHTS if split else MOST_WEIGHTS))))
    kernels = groups * int(np.clip(round(weights / channels), 1, 64))
    size, stride = (channels, height, width, kernels, 1, 1), _pair(rng, (1, 1, 1, 2))
    return Conv2d(*size, stride, groups=groups, epilogue=_epilogue(rng), data_type=data_type, gated=True)


def _bounded_spec(rng: np.random.Generator, *, split: bool) -> LayerSpec:
    """A 1x1 convolution of float32, of a map and channels that have tilings with clusters if it is to be split."""
    sizes = [4, 5, 7, 8, 9, 11, 14, 16] if split else [1, 4, 5, 7, 8, 11, 14, 16, 28, 33]
    height, width = (int(size) for size in rng.choice(sizes, 2))
    channels = int(rng.choice([8, 16, 24, 32, 48, 64, 96, 128] if split else [1, 3, 5, 8, 12, 16, 24, 40, 64]))
    weights = int(np.exp(rng.uniform(np.log(64), np.log(MOST_SPLIT_WEIGHTS if split else MOST_WEIGHTS))))
    size = (channels, height, width, int(np.clip(round(weights / channels), 1, 64)), 1, 1)
    return Conv2d(*size, epilogue=_epilogue(rng), bounded=True)


def _pooled_spec(rng: np.random.Generator, data_type: DataType, *, wide: bool) -> LayerSpec:
    """A convolution with a max pool as its last step, of 3x3 windows if that is to be wide."""
    height, width = (int(size) for size in rng.choice([4, 5, 7, 8, 11, 14, 16, 23, 28], 2))
    rows, columns = (int(size) for size in rng.choice([2, 3, 3, 3, 4], 2))
    channels = int(rng.choice([1, 2, 3, 4, 6, 8, 12, 16]))
    weights = int(np.exp(rng.uniform(np.log(24), np.log(MOST_WEIGHTS))))
    kernels = max(1, min(64, round(weights / (channels * rows * columns))))
    top, left, bottom, right = (int(rng.integers(0, size)) for size in (rows, columns, rows, columns))
    size, padding = (channels, height, width, kernels, rows, columns), (top, left, bottom, right)
    before: Step = (Clip(low=0.0), Clip(low=0.0, high=6.0), LeakyRelu(0.1))[int(rng.integers(3))]
    alone = rng.random() >= 0.8
    beside = (int(rng.integers(2)), int(rng.integers(2)), int(rng.integers(2)), int(rng.integers(2))) if wide else None
    pool = MaxPool() if beside is None else MaxPool(3, beside)
    epilogue = (pool,) if alone else (before, pool)
    return Conv2d(*size, (1, 1), padding, epilogue=epilogue, data_type=data_type)


def _dilation(rng: np.random.Generator, size: tuple[int, ...]) -> tuple[int, int]:
    """Of channels, height, width, kernels, rows, columns."""
    _, height, width, _, rows, columns = size
    down, across = _pair(rng, (1, 1, 1, 2))
    fits = (rows - 1) * down < height and (columns - 1) * across < width
    return (down, across) if fits else (1, 1)


def _pair(rng: np.random.Generator, choices: tuple[int, ...]) -> tuple[int, int]:
    first, second = rng.choice(choices, 2)
    return int(first), int(second)


def _epilogue(rng: np.random.Generator) -> tuple[Step, ...]:
    steps = int(rng.choice([0, 0, 1, 1, 2]))
    return tuple(STEPS[int(i)] for i in rng.choice(len(STEPS), steps, replace=False))


Mask = Callable[[Shape, np.random.Generator], NDArray[Any]]
"""Which weights of a shape are not zero."""


def mask_name(variant: int) -> str:
    """Of the layers of this number, in words."""
    return _masks()[variant][0]


def _masks() -> tuple[tuple[str, Mask], ...]:
    edges: tuple[tuple[str, Mask], ...] = (
        ("no zero", lambda shape, _: np.ones(shape.spec.weights_shape)),
        ("no weight", lambda shape, _: np.zeros(shape.spec.weights_shape)),
        ("one weight", _one_weight),
        ("one chunk empty", _without_chunk),
        ("one chunk left", lambda shape, rng: ~_without_chunk(shape, rng)),
        ("one share of the channels empty", _without_share),
        ("one share of the channels left", lambda shape, rng: ~_without_share(shape, rng)),
        ("one K group empty", _without_group),
        ("one K group left", lambda shape, rng: ~_without_group(shape, rng)),
        ("kernels pruned", _without_kernels),
        ("one position of the kernel left", _one_position),
        ("two of four", _two_of_four),
    )
    drawn = tuple(
        (f"sparsity {SPARSITIES[i % len(SPARSITIES)]}", _pruned_to(SPARSITIES[i % len(SPARSITIES)]))
        for i in range(LAYERS_OF_SHAPE - len(edges))
    )
    return edges + drawn


def _one_weight(shape: Shape, rng: np.random.Generator) -> NDArray[Any]:
    mask = np.zeros(shape.spec.weights_count, dtype=bool)
    mask[rng.integers(len(mask))] = True
    return mask.reshape(shape.spec.weights_shape)


def _without_chunk(shape: Shape, rng: np.random.Generator) -> NDArray[Any]:
    mask, size = np.ones(shape.spec.weights_shape, dtype=bool), shape.tiling.chunk_channels
    first = size * int(rng.integers(-(-mask.shape[1] // size)))
    mask[:, first : first + size] = False
    return mask


def _without_share(shape: Shape, rng: np.random.Generator) -> NDArray[Any]:
    """Of the blocks of a cluster one has nothing to do; where there is none, half of the channels is empty."""
    mask = np.ones(shape.spec.weights_shape, dtype=bool)
    size = -(-mask.shape[1] // max(2, shape.tiling.cluster))
    first = size * int(rng.integers(-(-mask.shape[1] // size)))
    mask[:, first : first + size] = False
    return mask


def _without_group(shape: Shape, rng: np.random.Generator) -> NDArray[Any]:
    mask, size = np.ones(shape.spec.weights_shape, dtype=bool), shape.tiling.group_outputs
    first = size * int(rng.integers(-(-len(mask) // size)))
    mask[first : first + size] = False
    return mask


def _without_kernels(shape: Shape, rng: np.random.Generator) -> NDArray[Any]:
    mask = rng.random(shape.spec.weights_shape) < 0.5
    mask[rng.random(len(mask)) < 0.5] = False
    return mask


def _one_position(shape: Shape, rng: np.random.Generator) -> NDArray[Any]:
    positions = np.zeros(shape.spec.weights_shape[2:] or (shape.spec.weights_shape[1],), dtype=bool)
    positions.reshape(-1)[rng.integers(positions.size)] = True
    return np.broadcast_to(positions, shape.spec.weights_shape)


def _two_of_four(shape: Shape, rng: np.random.Generator) -> NDArray[Any]:
    order = rng.random((-(-shape.spec.weights_count // 4), 4)).argsort(axis=1)
    return np.resize(order < 2, shape.spec.weights_shape)


def _pruned_to(sparsity: float) -> Mask:
    def mask(shape: Shape, rng: np.random.Generator) -> NDArray[Any]:
        kept: NDArray[Any] = prune(rng.standard_normal(shape.spec.weights_shape, dtype=np.float32), sparsity) != 0
        return kept

    return mask

"""The qualification corpus: numbered random shapes, each with many masks and values, edge cases first.

A shape and its layers depend on the shape's number and data type, and on whether the architecture has clusters, so a
run can be repeated or extended.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import count
from math import prod
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from codegen.errors import TilingError
from codegen.ir.checkpoint import FloatArray, Weights
from codegen.ir.dtypes import PRECISIONS, from_float32, to_float32
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
    Quantize,
    Scale,
    Sigmoid,
    Step,
    Swish,
    Tanh,
    is_bounded,
)
from codegen.ir.tiling import Accumulator, Tiling
from codegen.kernels import tiled
from codegen.kernels.lowering import can_wait
from codegen.model_zoo import prune
from codegen.selection.choose import ranked_tilings
from codegen.selection.feasibility import block_fits, comes_out_even
from codegen.verification.compare import random_input

LAYERS_PER_SHAPE = 40
"""Layers of one shape share a template and a skeleton, which take longer to build than the cubins."""
MAX_WEIGHTS = 1024
"""Most weights of a shape; ptxas takes a tenth of a second for most layers of this size."""
MAX_SPLIT_WEIGHTS = 3072
"""Most weights of a shape split over the blocks of a cluster, where each block has its own instruction stream."""
SPLIT_EVERY = 3
"""Float32 and float16 shapes of one remainder of their number by this split their channels over the blocks of a
cluster. Of the kinds that share a number `draw_shape` takes one, so each is rarer than its remainder."""
GATED_EVERY = 5
"""Float32 and bfloat16 shapes of one remainder by this have channel gates."""
BOUNDED_EVERY = 5
"""Float32 shapes of one remainder by this have input bounds, as a normalisation before a layer leads to."""
BY_PLACE_EVERY = 6
"""Shapes of one remainder by this begin their blocks in the order `place`, where the architecture has clusters."""
LINEAR_EVERY = 12
"""Float32 and float16 shapes of three remainders by this are linear layers of LINEAR_KINDS."""
SEVERAL_EVERY = 7
"""Shapes of one remainder by this without gates, bounds and pool are convolutions whose blocks have two or four K
groups, where their tiling allows that."""
WAITING_EVERY = 4
"""Shapes of one remainder by this begin before the kernel ahead of them has ended, where the architecture has that."""
POOLED_EVERY = 4
"""Shapes of one remainder by this end with a max pool."""
WIDE_EVERY = 8
"""Shapes of one remainder by this end with a max pool whose windows overlap."""
MAX_ELEMENTS = 200_000
"""Most elements of a batch's input or output."""
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
    Scale(0.7),
    Scale(-1.5, 0.25),
    Quantize(0.05, -128, 127),
    Quantize(0.25, 0, 15),
)
SPARSITIES = (0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99)


Kind = Literal["ordinary", "split", "by place", "linear cluster", "large", "large cluster"]
"""split: channels of a convolution divided over a cluster; large: large blocks of a linear layer."""
LINEAR_KINDS: dict[int, Kind] = {1: "linear cluster", 5: "large", 7: "large cluster"}
BATCHES: dict[Kind, tuple[int, ...]] = {
    "linear cluster": (1, 3, 8, 33, 64),
    "large": (100, 320, 417, 700),
    "large cluster": (100, 320, 417, 700),
}
"""Rows of linear layers for which these tilings are predicted."""
IS_OF_KIND: dict[Kind, Callable[[Tiling], bool]] = {
    "ordinary": lambda tiling: tiling.cluster == 1,
    "split": lambda tiling: tiling.cluster > 1,
    "by place": lambda tiling: tiling.order == "place",
    "linear cluster": lambda tiling: tiling.cluster > 1,
    "large": lambda tiling: tiling.is_large and tiling.cluster == 1,
    "large cluster": lambda tiling: tiling.is_large and tiling.cluster > 1,
}


@dataclass(frozen=True)
class Shape:
    """One template of the corpus, with its batch; it has LAYERS_PER_SHAPE layers, numbered variants from 0."""

    number: int
    spec: LayerSpec
    tiling: Tiling
    batch: int

    @property
    def name(self) -> str:
        """Name in messages, such as `float32 17`."""
        return f"{self.spec.data_type} {self.number}"

    def layer_name(self, variant: int) -> str:
        """Name of a layer in messages, such as `float32 17:2 (one weight)`."""
        return f"{self.name}:{variant} ({mask_name(variant)})"

    def weights(self, variant: int) -> Weights:
        """Weights, biases and input bounds of a layer."""
        rng = np.random.default_rng((self.number, variant))
        mask = np.asarray(_masks()[variant][1](self, rng), dtype=bool)
        kernel = np.where(mask, _draw_weights(self.spec, rng), np.float32(0))
        return Weights(kernel, _draw_biases(self.spec, rng), _draw_bounds(self.spec, rng))

    def input(self) -> NDArray[Any]:
        """Input [batch, ...]: normal values; some shapes mix in signed zeros, infinities and NaN, or subnormals."""
        x = random_input(self.spec, self.batch, self.number)
        rng = np.random.default_rng((self.number, LAYERS_PER_SHAPE))
        odd = {0: (0.0, -0.0), 1: (np.inf, -np.inf, np.nan), 2: (1e-40, -1e-44, 6e-8)}.get(int(rng.integers(8)))
        if odd is not None:
            chosen = from_float32(rng.choice(np.array(odd, np.float32), x.shape), self.spec.data_type)
            x = np.where(rng.random(x.shape) < 0.2, chosen, x)
        return np.ascontiguousarray(x)


def shape_numbers(data_types: tuple[DataType, ...], first: int = 0) -> Iterator[tuple[int, DataType]]:
    """Endless arguments of `draw_shape`, from number `first`, each number with every data type."""
    return ((number, data_type) for number in count(first) for data_type in data_types)


def draw_shape(number: int, data_type: DataType, *, clusters: bool = True) -> Shape | None:
    """The shape of a number and data type, for an architecture with clusters or without; None if no tiling fits it."""
    rng = np.random.default_rng((number, list(get_args(DataType)).index(data_type), 7))
    gated = data_type != "float16" and number % GATED_EVERY == 0
    bounded = data_type == "float32" and number % BOUNDED_EVERY == BOUNDED_EVERY - 1
    several = number % SEVERAL_EVERY == 4 and not (gated or bounded or number % POOLED_EVERY == 3)
    kind = _kind(number, data_type, linear=not (several or gated or bounded)) if clusters else "ordinary"
    split = kind == "split"
    if kind in LINEAR_KINDS.values():
        spec: LayerSpec = _linear_spec(rng, data_type, kind)
    elif gated:
        spec = _gated_spec(rng, data_type, split=split)
    elif bounded:
        spec = _bounded_spec(rng, split=split)
    elif split or several:
        spec = _split_spec(rng, data_type)
    elif number % POOLED_EVERY == 3:
        spec = _pooled_spec(rng, data_type, wide=number % WIDE_EVERY == WIDE_EVERY - 1)
    else:
        spec = _spec(rng, data_type)
    batch = int(rng.choice(BATCHES.get(kind, (1, 2, 3, 8, 16, 33, 100))))
    batch = max(1, min(batch, MAX_ELEMENTS // max(prod(spec.input_shape), prod(spec.output_shape))))
    accumulate: Accumulator = "float16" if data_type == "float16" and rng.random() < 0.5 else "float32"
    density = float(rng.choice([0.05, 0.2, 0.6]))
    nonzeros = np.full(spec.output_channels, max(1, round(density * spec.weights_count / spec.output_channels)))
    try:
        tiling = _tiling(rng, kind, spec, batch, nonzeros, accumulate)
    except (TilingError, ValueError):
        return None
    if several:
        tiling = _with_groups(spec, tiling, 2 + 2 * (number // SEVERAL_EVERY // 2 % 2))
    if clusters and number % WAITING_EVERY == 1:
        tiling = replace(tiling, waits=can_wait(tiling))
    return Shape(number, spec, tiling, batch)


def _kind(number: int, data_type: DataType, *, linear: bool) -> Kind:
    """The tilings that a shape of this number has on an architecture with clusters."""
    if number % BY_PLACE_EVERY == 2:
        return "by place"
    if data_type == "bfloat16":
        return "ordinary"
    if linear and number % LINEAR_EVERY in LINEAR_KINDS:
        return LINEAR_KINDS[number % LINEAR_EVERY]
    return "split" if number % SPLIT_EVERY == 1 else "ordinary"


def _tiling(
    rng: np.random.Generator,
    kind: Kind,
    spec: LayerSpec,
    batch: int,
    nonzeros: NDArray[np.integer],
    accumulate: Accumulator,
) -> Tiling:
    """A tiling of this kind, or where a convolution has one block only an ordinary one. Raises TilingError."""
    ranked = ranked_tilings(spec, batch, nonzeros, accumulate, clusters=kind != "ordinary", tables=False)
    possible = [each for each in ranked if IS_OF_KIND[kind](each)]
    if kind == "by place" and not possible:
        possible = [each for each in ranked if each.cluster == 1]
    if not possible:
        raise TilingError(f"no tiling is {kind}")
    return possible[0] if kind == "ordinary" and rng.random() < 0.4 else possible[int(rng.integers(len(possible)))]


def _with_groups(spec: LayerSpec, tiling: Tiling, groups: int) -> Tiling:
    """The tiling with this number of K groups in a block, of fewer outputs each; itself if that does not fit."""
    outputs = max(1, tiling.group_outputs // groups // tiling.cluster) * tiling.cluster
    try:
        layer = tiled(spec, replace(tiling, groups=groups, group_outputs=outputs))
    except TilingError:
        return tiling
    return layer.tiling if comes_out_even(layer) and block_fits(layer, measured=True) else tiling


def _spec(rng: np.random.Generator, data_type: DataType) -> LayerSpec:
    kind, epilogue = rng.random(), _epilogue(rng)
    weights = int(np.exp(rng.uniform(np.log(24), np.log(MAX_WEIGHTS))))
    if kind < 0.25:
        inputs = int(np.clip(np.exp(rng.uniform(np.log(4), np.log(600))), 1, weights))
        return Linear(inputs, max(1, weights // inputs), epilogue, data_type)
    height, width = (int(size) for size in rng.choice([1, 2, 3, 5, 7, 8, 11, 14, 16, 23, 28, 33], 2))
    rows, columns = (int(size) for size in rng.choice([1, 1, 2, 3, 3, 3, 5], 2))
    height, width = max(height, rows), max(width, columns)
    groups = int(rng.choice([1, 1, 1, 2, 4]))
    each = max(1, weights // (rows * columns))
    channels = groups * int(rng.choice([1, 2, 3, 4, 6, 8, 12, 16, 24, 32]))
    outputs = groups * max(1, min(64, round(each / channels)))
    stride, pads = _pair(rng, (1, 1, 2, 3)), tuple(int(pad) for pad in rng.integers(0, 3, 4))
    padding = (min(pads[0], rows - 1), min(pads[1], columns - 1), min(pads[2], rows - 1), min(pads[3], columns - 1))
    size = (channels, height, width, outputs, rows, columns)
    if kind < 0.4:
        more = (int(rng.integers(stride[0])), int(rng.integers(stride[1])))
        cut = (0, 0, min(rows, height) // 2, min(columns, width) // 2)
        return ConvTranspose2d(*size, stride, cut, (1, 1), groups, more, epilogue, data_type)
    return Conv2d(*size, stride, padding, _dilation(rng, size), groups, epilogue, data_type)


def _split_spec(rng: np.random.Generator, data_type: DataType) -> LayerSpec:
    """A convolution with cluster tilings: at least four channels per block."""
    height, width = (int(size) for size in rng.choice([4, 5, 7, 8, 9, 11, 14, 16], 2))
    rows, columns = (int(size) for size in rng.choice([1, 1, 2, 3, 3, 3], 2))
    channels = int(rng.choice([8, 16, 24, 32, 48, 64, 96, 128]))
    weights = int(np.exp(rng.uniform(np.log(256), np.log(MAX_SPLIT_WEIGHTS))))
    outputs = int(np.clip(round(weights / (channels * rows * columns)), 1, 64))
    top, left, bottom, right = (int(rng.integers(0, size)) for size in (rows, columns, rows, columns))
    size, padding = (channels, height, width, outputs, rows, columns), (top, left, bottom, right)
    return Conv2d(*size, _pair(rng, (1, 1, 2)), padding, _dilation(rng, size), 1, _epilogue(rng), data_type)


def _linear_spec(rng: np.random.Generator, data_type: DataType, kind: Kind) -> LayerSpec:
    """A linear layer with clusters or large blocks, which have inputs of whole chunks and of chunks left over."""
    large, divided = (64, 70, 96, 128, 200, 256), (512, 520, 600, 1024)
    inputs = int(rng.choice(divided if kind == "large cluster" else large))
    weights = int(np.exp(rng.uniform(np.log(512), np.log(MAX_SPLIT_WEIGHTS))))
    return Linear(inputs, int(np.clip(round(weights / inputs), 2, 64)), _epilogue(rng), data_type)


def _gated_spec(rng: np.random.Generator, data_type: DataType, *, split: bool) -> LayerSpec:
    """A 1x1 convolution with channel gates; with `split`, large enough for cluster tilings."""
    height, width = (int(size) for size in rng.choice([4, 5, 7, 8, 9, 11, 14, 16], 2))
    groups = 1 if split else int(rng.choice([1, 1, 1, 2, 3]))
    channels = groups * int(rng.choice([8, 16, 24, 32, 48, 64, 96, 128] if split else [1, 3, 5, 8, 12, 16, 24, 40]))
    weights = int(np.exp(rng.uniform(np.log(64), np.log(MAX_SPLIT_WEIGHTS if split else MAX_WEIGHTS))))
    outputs = groups * int(np.clip(round(weights / channels), 1, 64))
    size, stride = (channels, height, width, outputs, 1, 1), _pair(rng, (1, 1, 1, 2))
    return Conv2d(*size, stride, groups=groups, epilogue=_epilogue(rng), data_type=data_type, gated=True)


def _bounded_spec(rng: np.random.Generator, *, split: bool) -> LayerSpec:
    """A float32 1x1 convolution with input bounds; with `split`, large enough for cluster tilings."""
    sizes = [4, 5, 7, 8, 9, 11, 14, 16] if split else [1, 4, 5, 7, 8, 11, 14, 16, 28, 33]
    height, width = (int(size) for size in rng.choice(sizes, 2))
    channels = int(rng.choice([8, 16, 24, 32, 48, 64, 96, 128] if split else [1, 3, 5, 8, 12, 16, 24, 40, 64]))
    weights = int(np.exp(rng.uniform(np.log(64), np.log(MAX_SPLIT_WEIGHTS if split else MAX_WEIGHTS))))
    size = (channels, height, width, int(np.clip(round(weights / channels), 1, 64)), 1, 1)
    return Conv2d(*size, epilogue=_epilogue(rng), bounded=True)


def _pooled_spec(rng: np.random.Generator, data_type: DataType, *, wide: bool) -> LayerSpec:
    """A convolution that ends with a max pool; with `wide`, of 3x3 windows."""
    height, width = (int(size) for size in rng.choice([4, 5, 7, 8, 11, 14, 16, 23, 28], 2))
    rows, columns = (int(size) for size in rng.choice([2, 3, 3, 3, 4], 2))
    channels = int(rng.choice([1, 2, 3, 4, 6, 8, 12, 16]))
    weights = int(np.exp(rng.uniform(np.log(24), np.log(MAX_WEIGHTS))))
    outputs = max(1, min(64, round(weights / (channels * rows * columns))))
    top, left, bottom, right = (int(rng.integers(0, size)) for size in (rows, columns, rows, columns))
    size, padding = (channels, height, width, outputs, rows, columns), (top, left, bottom, right)
    steps: tuple[Step, ...] = (Clip(low=0.0), Clip(low=0.0, high=6.0), LeakyRelu(0.1), Quantize(0.05, -128, 127))
    before = steps[int(rng.integers(len(steps)))]
    alone = rng.random() >= 0.8
    beside = (int(rng.integers(2)), int(rng.integers(2)), int(rng.integers(2)), int(rng.integers(2))) if wide else None
    pool = MaxPool() if beside is None else MaxPool(3, beside)
    epilogue = (pool,) if alone else (before, pool)
    return Conv2d(*size, (1, 1), padding, epilogue=epilogue, data_type=data_type)


def _dilation(rng: np.random.Generator, size: tuple[int, ...]) -> tuple[int, int]:
    """Dilation for a size (channels, height, width, output channels, rows, columns)."""
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
"""Draws the non-zero positions of a shape's weights."""


def mask_name(variant: int) -> str:
    """Name of a variant's mask."""
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
        ("output channels pruned", _without_outputs),
        ("one filter position left", _one_position),
        ("two of four", _two_of_four),
    )
    drawn = tuple(
        (f"sparsity {SPARSITIES[i % len(SPARSITIES)]}", _pruned_to(SPARSITIES[i % len(SPARSITIES)]))
        for i in range(LAYERS_PER_SHAPE - len(edges))
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
    """Leaves one block of the cluster without weights; without a cluster, empties half of the channels."""
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


def _without_outputs(shape: Shape, rng: np.random.Generator) -> NDArray[Any]:
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


def _draw_weights(spec: LayerSpec, rng: np.random.Generator) -> FloatArray:
    """Weight values: normal; some layers have few values, one value, or every magnitude of the data type."""
    normal = rng.standard_normal(spec.weights_shape, dtype=np.float32)
    kind = rng.random()
    if kind < 0.2:
        normal = rng.choice(np.array([-1, 1, 0.5, -2, 0.25, 3], np.float32), spec.weights_shape)
    elif kind < 0.25:
        normal = np.full(spec.weights_shape, normal.flat[0])
    elif kind < 0.4:
        precision = PRECISIONS[spec.data_type]
        least, most = np.log2(precision.smallest_subnormal), np.log2(precision.largest) - 2
        normal = np.sign(normal) * np.exp2(rng.uniform(least, most, spec.weights_shape)).astype(np.float32)
    values = to_float32(from_float32(normal.astype(np.float32), spec.data_type), spec.data_type)
    return np.where(values == 0, np.float32(1), values)


def _draw_bounds(spec: LayerSpec, rng: np.random.Generator) -> FloatArray | None:
    """Input bounds [channels, 2], normal and extreme, for none to all channels; None for a layer without bounds."""
    if not is_bounded(spec):
        return None
    shape = (spec.channels, 2)
    odd = rng.choice(np.array([0.0, -0.0, 1e-40, -1e-44, 3e38, -3e38], np.float32), shape)
    values = np.sort(np.where(rng.random(shape) < 0.2, odd, rng.standard_normal(shape, dtype=np.float32)), axis=1)
    exists = rng.random(shape) < rng.choice([0.0, 0.3, 0.6, 1.0], 2)
    return np.where(exists, values, np.array([-np.inf, np.inf])).astype(np.float32)


def _draw_biases(spec: LayerSpec, rng: np.random.Generator) -> FloatArray:
    """Bias values: normal; in some layers half or all of them are signed zeros."""
    normal, zeros = rng.standard_normal(spec.output_channels, dtype=np.float32), rng.choice([0.0, 0.5, 1.0])
    zero = np.array([0.0, -0.0], np.float32)[rng.integers(0, 2, spec.output_channels)]
    values = np.where(rng.random(spec.output_channels) < zeros, zero, normal)
    return to_float32(from_float32(values, spec.data_type), spec.data_type)

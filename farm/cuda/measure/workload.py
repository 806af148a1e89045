"""The workload: which layers are measured, at which batches, sparsities and data types. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from codegen.ir.checkpoint import Checkpoint, Layer, Weights
from codegen.ir.dtypes import from_float32, numpy_dtype, to_float32
from codegen.ir.epilogue import POOL_STRIDE
from codegen.ir.layer_spec import DataType, LayerSpec, plain
from codegen.model_zoo.pruning import prune, random_weights
from codegen.model_zoo.ten_operators import TEN_OPERATORS
from farm.errors import UsageError

OPERATOR_SPARSITY = 0.9
"""Default sparsity of the ten operators: that of the papers' main figures."""
NONZERO_BYTES = 24
"""Machine code of a non-zero weight, about: the compiled networks that ship have 20 to 25 bytes."""


@dataclass(frozen=True)
class CaseKey:
    """What is measured: a layer at a batch and a sparsity, in a data type."""

    operator: str
    """Name of the operator, or of the model's layer."""
    batch: int
    sparsity: float
    """As it was asked for, or the checkpoint's own."""
    data_type: str


@dataclass(frozen=True, eq=False)
class Case:
    """One layer at one batch, with its weights."""

    key: CaseKey
    spec: LayerSpec
    weights: Weights
    rows: int = 1
    """Rows per image of a Linear."""
    peers_only: bool = False
    """No kernel is made for it: structurally pruned layers run on the peers."""
    others_bytes: int | None = None
    """What the other layers of its network move between two runs of it, code and data; None: nobody knows, so much."""

    @property
    def images(self) -> int:
        """What a kernel is launched for: images, or rows of a Linear."""
        return self.key.batch * self.rows


@dataclass(frozen=True)
class Choice:
    """What is asked for; empty sparsities mean the checkpoint's own, or 0.9 for the ten operators."""

    batches: tuple[int, ...] = (64, 1)
    sparsities: tuple[float, ...] = ()
    data_types: tuple[DataType, ...] = ("float32",)
    seed: int = 0
    with_pools: bool = False
    """Whether a layer before a pool whose windows overlap is asked for with it too, as its tiles are others then."""


def operator_cases(names: Sequence[str], choice: Choice) -> Iterator[Case]:
    """Some of the ten operators with random weights pruned by magnitude; all of them for no name. Raises UsageError."""
    unknown = [name for name in names if name not in TEN_OPERATORS]
    if unknown:
        raise UsageError(f"there is no operator {unknown[0]}: there are {', '.join(TEN_OPERATORS)}")
    for name in names or TEN_OPERATORS:
        spec = TEN_OPERATORS[name]
        dense = random_weights(spec, 0.0, choice.seed)
        layer = Layer(name, spec, dense, "input", "output")
        yield from _cases(layer, replace(choice, sparsities=choice.sparsities or (OPERATOR_SPARSITY,)))


def model_cases(checkpoint: Checkpoint, names: Sequence[str], choice: Choice) -> Iterator[Case]:
    """Some layers of a model, or all; with sparsities, its weights pruned further. Raises UsageError."""
    layers = {layer.name: layer for layer in checkpoint.layers}
    skipped = {layer.name: layer.reason for layer in checkpoint.skipped}
    for name in names:
        if name in skipped:
            raise UsageError(f"{checkpoint.path}: layer {name} cannot be compiled: {skipped[name]}")
        if name not in layers:
            raise UsageError(f"{checkpoint.path}: there is no layer {name}: there are {', '.join(layers)}")
    for name in names or layers:
        layer = layers[name]
        if any(sparsity < layer.weights.sparsity - 0.005 for sparsity in choice.sparsities):
            raise UsageError(
                f"{checkpoint.path}: layer {name} has {layer.weights.sparsity:.2f} zeros already: give sparsities "
                "above that, or a checkpoint that is not pruned"
            )
        kinds = [layer]
        if choice.with_pools and layer.pool is not None and layer.pool.step.window > POOL_STRIDE:
            kinds.append(replace(layer.with_pool(), name=f"{name} with its pool"))
        for kind in kinds:
            for case in _cases(kind, replace(choice, data_types=(kind.spec.data_type,))):
                others = sum(_moved_bytes(each, case.key.batch) for each in checkpoint.layers if each.name != name)
                yield replace(case, others_bytes=others)


def _moved_bytes(layer: Layer, batch: int) -> int:
    """What one run of a layer reads and writes, its code too."""
    spec = layer.spec
    values = math.prod(spec.input_shape) + math.prod(spec.output_shape)
    item = numpy_dtype(spec.data_type).itemsize
    return values * item * batch * layer.likely_rows + NONZERO_BYTES * layer.weights.nonzeros


def structured_cases(names: Sequence[str], batches: Sequence[int], seed: int = 0) -> Iterator[Case]:
    """The ten operators pruned structurally: half the input channels (PC), half the kernels (PF), both; dense."""
    for name in names or TEN_OPERATORS:
        spec = TEN_OPERATORS[name]
        fewer_channels, fewer_kernels = max(1, spec.channels // 2), max(1, spec.output_channels // 2)
        structures = {
            "PC": replace(spec, channels=fewer_channels),
            "PF": replace(spec, output_channels=fewer_kernels),
            "Both": replace(spec, channels=fewer_channels, output_channels=fewer_kernels),
        }
        for structure, pruned in structures.items():
            weights = random_weights(pruned, 0.0, seed)
            for batch in batches:
                key = CaseKey(f"{name}, {structure}", batch, 0.0, "float32")
                yield Case(key, pruned, weights, peers_only=True)


def _cases(layer: Layer, choice: Choice) -> Iterator[Case]:
    for data_type in choice.data_types:
        for batch in choice.batches:
            for sparsity in choice.sparsities or (None,):
                kernel = layer.weights.kernel if sparsity is None else prune(layer.weights.kernel, sparsity)
                spec = replace(plain(layer.spec), data_type=data_type)  # peers have no bounds and no gates
                weights = Weights(_rounded(kernel, data_type), _rounded(layer.weights.bias, data_type))
                named = round(layer.weights.sparsity, 4) if sparsity is None else sparsity
                yield Case(CaseKey(layer.name, batch, named, data_type), spec, weights, layer.likely_rows)


def _rounded(values: np.ndarray, data_type: DataType) -> np.ndarray:
    return to_float32(from_float32(np.ascontiguousarray(values, dtype=np.float32), data_type), data_type)

"""The workload: measured layers with batches, sparsities and data types. Pure."""

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
"""Default sparsity of the ten operators, as in the main figures of the papers."""
NONZERO_BYTES = 24
"""Approximate machine code per non-zero weight; the networks of the model zoo have 20 to 25 bytes."""


@dataclass(frozen=True)
class CaseKey:
    """Identifies a measurement: a layer at a batch, a sparsity and a data type."""

    operator: str
    """Name of the operator, or of the model's layer."""
    batch: int
    sparsity: float
    """Requested sparsity, or the checkpoint's own."""
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
    """Whether only peers run it, as for structurally pruned layers."""
    others_bytes: int | None = None
    """Bytes of data and code that the other layers move between two runs; None: unknown, assume the most."""

    @property
    def images(self) -> int:
        """Number of images of a launch, or of rows of a Linear."""
        return self.key.batch * self.rows


@dataclass(frozen=True)
class Choice:
    """A selection of cases; without sparsities the checkpoint's own, or OPERATOR_SPARSITY for the ten operators."""

    batches: tuple[int, ...] = (64, 1)
    sparsities: tuple[float, ...] = ()
    data_types: tuple[DataType, ...] = ("float32",)
    seed: int = 0
    with_pools: bool = False
    """Whether layers before an overlapping pool are measured with the pool too, since their tiles differ then."""


def operator_cases(names: Sequence[str], choice: Choice) -> Iterator[Case]:
    """Named operators (all without names) of the ten, with random weights pruned by magnitude. Raises UsageError."""
    unknown = [name for name in names if name not in TEN_OPERATORS]
    if unknown:
        raise UsageError(f"no such operator: {unknown[0]}. Known: {', '.join(TEN_OPERATORS)}")
    for name in names or TEN_OPERATORS:
        spec = TEN_OPERATORS[name]
        dense = random_weights(spec, 0.0, choice.seed)
        layer = Layer(name, spec, dense, "input", "output")
        yield from _cases(layer, replace(choice, sparsities=choice.sparsities or (OPERATOR_SPARSITY,)))


def model_cases(checkpoint: Checkpoint, names: Sequence[str], choice: Choice) -> Iterator[Case]:
    """Named layers of a model (all without names), pruned further if there are sparsities. Raises UsageError."""
    layers = {layer.name: layer for layer in checkpoint.layers}
    skipped = {layer.name: layer.reason for layer in checkpoint.skipped}
    for name in names:
        if name in skipped:
            raise UsageError(f"{checkpoint.path}: layer {name} cannot be compiled: {skipped[name]}")
        if name not in layers:
            raise UsageError(f"{checkpoint.path}: no such layer: {name}. Known: {', '.join(layers)}")
    for name in names or layers:
        layer = layers[name]
        if any(sparsity < layer.weights.sparsity - 0.005 for sparsity in choice.sparsities):
            raise UsageError(
                f"{checkpoint.path}: layer {name} has sparsity {layer.weights.sparsity:.2f} already: "
                "use higher sparsities, or a checkpoint that is not pruned"
            )
        kinds = [layer]
        if choice.with_pools and layer.pool is not None and layer.pool.step.window > POOL_STRIDE:
            kinds.append(replace(layer.with_pool(), name=f"{name} with its pool"))
        for kind in kinds:
            for case in _cases(kind, replace(choice, data_types=(kind.spec.data_type,))):
                others = sum(_moved_bytes(each, case.key.batch) for each in checkpoint.layers if each.name != name)
                yield replace(case, others_bytes=others)


def _moved_bytes(layer: Layer, batch: int) -> int:
    """Bytes that one run of a layer reads and writes, including its code."""
    spec = layer.spec
    values = math.prod(spec.input_shape) + math.prod(spec.output_shape)
    item = numpy_dtype(spec.data_type).itemsize
    return values * item * batch * layer.likely_rows + NONZERO_BYTES * layer.weights.nonzeros


def structured_cases(names: Sequence[str], batches: Sequence[int]) -> Iterator[Case]:
    """Named operators (all without names) with half the input channels (PC), half the outputs (PF), or both; dense."""
    for name in names or TEN_OPERATORS:
        spec = TEN_OPERATORS[name]
        fewer_channels, fewer_outputs = max(1, spec.channels // 2), max(1, spec.output_channels // 2)
        structures = {
            "PC": replace(spec, channels=fewer_channels),
            "PF": replace(spec, output_channels=fewer_outputs),
            "Both": replace(spec, channels=fewer_channels, output_channels=fewer_outputs),
        }
        for structure, pruned in structures.items():
            weights = random_weights(pruned, 0.0)
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

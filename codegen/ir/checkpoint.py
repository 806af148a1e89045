"""Checkpoint, Layer, Weights: a checkpoint is layers, a layer is a spec (its shape) and its weights."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from codegen.ir.layer_spec import LIKELY_ROWS, LayerSpec, MaxPool, SkippedLayer, is_bounded

FloatArray = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Weights:
    """The values of one layer: `kernel` of the spec's weights_shape and `bias` [K], float32, finite; -0.0 is zero.

    Weights of float16 and bfloat16 layers are values that these types have. Layers whose spec is bounded have `bounds`
    [C, 2] of their input elements, the lowest and the highest, which may be infinite.
    """

    kernel: FloatArray
    bias: FloatArray
    bounds: FloatArray | None = None

    def to_bytes(self) -> bytes:
        """Kernel, bias and bounds, little-endian float32: the blob whose digest identifies the layer's values."""
        return b"".join(part.data for part in self._parts())

    def _parts(self) -> list[FloatArray]:
        """The arrays of `to_bytes`, in order; an array that has that layout is not copied."""
        parts = (self.kernel, self.bias, *(() if self.bounds is None else (self.bounds,)))
        return [np.ascontiguousarray(part, "<f4") for part in parts]

    @staticmethod
    def from_bytes(spec: LayerSpec, data: bytes) -> Weights:
        """The inverse of `to_bytes`. Raises ValueError if the length does not fit the spec."""
        values = np.frombuffer(data, dtype="<f4").astype(np.float32)
        ends = np.cumsum(
            [spec.weights_count, spec.output_channels, 2 * spec.channels if is_bounded(spec) else 0]
        ).tolist()
        if len(values) != ends[-1]:
            raise ValueError(f"{len(data)} bytes of weights for a layer of {spec.weights_count} weights")
        kernel, bias, bounds, _ = np.split(values, ends)
        return Weights(kernel.reshape(spec.weights_shape), bias, bounds.reshape(-1, 2) if is_bounded(spec) else None)

    @cached_property
    def digest(self) -> str:
        digest = hashlib.sha256()
        for part in self._parts():
            digest.update(part.data)
        return digest.hexdigest()

    @property
    def nonzeros_per_output(self) -> NDArray[np.int64]:
        """[K]: non-zero weights of each output channel, by which a tiling is chosen."""
        counts: NDArray[np.int64] = np.count_nonzero(self.kernel.reshape(len(self.kernel), -1), axis=1)
        return counts

    @property
    def nonzeros(self) -> int:
        return int(np.count_nonzero(self.kernel))

    @property
    def sparsity(self) -> float:
        """Zeros / weights, 0 to 1."""
        return 1.0 - self.nonzeros / self.kernel.size


@dataclass(frozen=True)
class Pool:
    """A max pool behind a layer, which the layer's kernel can compute as well."""

    node: str
    """The node, such as `MaxPool pool1`."""
    output: str
    """The tensor's name."""
    step: MaxPool = field(default_factory=MaxPool)
    """The step that it becomes in the layer's epilogue."""


@dataclass(frozen=True)
class Layer:
    """One layer of a checkpoint; `input`, `output`, `residual` and `gate` are the ONNX tensor names."""

    name: str
    spec: LayerSpec
    weights: Weights
    input: str
    output: str
    residual: str = ""
    """The tensor that AddResidual adds; empty without one."""
    rows: int | None = 1
    """Rows per image of a Linear, such as the length of a sequence; None if not known before the model runs."""
    folded: tuple[str, ...] = ()
    """The nodes that are folded into this one, in graph order, such as `BatchNormalization bn1`."""
    operator: str = ""
    """The ONNX operator of the node."""
    reshaped: tuple[str, ...] = ()
    """Outputs of folded nodes that only reshape or transpose: the kernel leaves them out, and they follow it."""
    gate: str = ""
    """The tensor that a gated layer's input is multiplied by; empty otherwise."""
    pool: Pool | None = None
    """The max pool that follows the layer and is not part of it yet."""

    def with_pool(self) -> Layer:
        """The layer with its pool as its last step. Raises ValueError if it has none."""
        if self.pool is None:
            raise ValueError(f"layer {self.name} has no pool behind it")
        spec = replace(self.spec, epilogue=(*self.spec.epilogue, self.pool.step))
        return replace(self, spec=spec, output=self.pool.output, folded=(*self.folded, self.pool.node), pool=None)

    @property
    def likely_rows(self) -> int:
        """Rows per image to choose a tiling by; the tiling is correct for any number of rows."""
        return LIKELY_ROWS if self.rows is None else self.rows


class ResidualGraph(Protocol):
    """The model that layers were read from, for the rest of its network."""

    def with_layers(self, layers: Sequence[Layer]) -> bytes:
        """The model as an ONNX file with these layers as single nodes. Raises CheckpointError if it is too large."""


@dataclass(frozen=True)
class Checkpoint:
    """A model file read into layers, in graph order."""

    name: str
    """The file's stem."""
    path: str
    digest: str
    """SHA-256 over the layers (names, specs, weights, tensor names) and the skipped ones: equal means the same job."""
    layers: tuple[Layer, ...]
    skipped: tuple[SkippedLayer, ...] = field(default=())
    residual_graph: ResidualGraph | None = field(default=None, compare=False, repr=False)
    """None for layers without a model around them."""
    notes: tuple[str, ...] = ()
    """Remarks on the file for the user, although it compiles."""
    fixed_images: int | None = None
    """The only number of images that the network takes; None if it leaves the batch open."""

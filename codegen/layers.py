"""What every stage speaks: a checkpoint is layers, a layer is a spec (its shape) and its weights."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float32]


@dataclass(frozen=True)
class Conv2d:
    """Everything a template of a 2-D convolution depends on, and nothing more (weights and batch are not in it)."""

    channels: int
    height: int
    width: int
    kernels: int
    kernel_height: int
    kernel_width: int
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int, int, int] = (0, 0, 0, 0)
    """Top, left, bottom, right, in input elements."""

    @property
    def output_height(self) -> int:
        return (self.height + self.padding[0] + self.padding[2] - self.kernel_height) // self.stride[0] + 1

    @property
    def output_width(self) -> int:
        return (self.width + self.padding[1] + self.padding[3] - self.kernel_width) // self.stride[1] + 1

    @property
    def input_shape(self) -> tuple[int, int, int]:
        """C, H, W of one image."""
        return self.channels, self.height, self.width

    @property
    def output_shape(self) -> tuple[int, int, int]:
        """K, H', W' of one image."""
        return self.kernels, self.output_height, self.output_width

    @property
    def weights_shape(self) -> tuple[int, int, int, int]:
        """K, C, R, S."""
        return self.kernels, self.channels, self.kernel_height, self.kernel_width

    @property
    def weights_count(self) -> int:
        return self.kernels * self.channels * self.kernel_height * self.kernel_width

    def to_json(self) -> dict[str, Any]:
        """The spec as plain JSON values; `spec_from_json` is its inverse."""
        return {
            "operator": "conv2d",
            "channels": self.channels,
            "height": self.height,
            "width": self.width,
            "kernels": self.kernels,
            "kernel_height": self.kernel_height,
            "kernel_width": self.kernel_width,
            "stride": list(self.stride),
            "padding": list(self.padding),
        }

    def __str__(self) -> str:
        c, h, w = self.input_shape
        return f"{c}x{h}x{w} -> {self.kernels}, {self.kernel_height}x{self.kernel_width}"


LayerSpec = Conv2d
"""The union of the operators' specs; a second operator joins it here."""


def spec_from_json(value: dict[str, Any]) -> LayerSpec:
    """Reads what `to_json` wrote. Raises KeyError or ValueError on anything else."""
    fields = dict(value)
    if (operator := fields.pop("operator")) != "conv2d":
        raise ValueError(f"unknown operator {operator!r}")
    sy, sx = fields.pop("stride")
    top, left, bottom, right = fields.pop("padding")
    return Conv2d(**fields, stride=(sy, sx), padding=(top, left, bottom, right))


@dataclass(frozen=True, eq=False)
class Weights:
    """The values of one layer: `kernel` [K, C, R, S] and `bias` [K], float32, finite; -0.0 counts as zero."""

    kernel: FloatArray
    bias: FloatArray

    def to_bytes(self) -> bytes:
        """Kernel then bias, little-endian float32: the blob whose digest identifies the layer's values."""
        return self.kernel.astype("<f4").tobytes() + self.bias.astype("<f4").tobytes()

    @staticmethod
    def from_bytes(spec: LayerSpec, data: bytes) -> Weights:
        """The inverse of `to_bytes`. Raises ValueError if the length does not fit the spec."""
        values = np.frombuffer(data, dtype="<f4").astype(np.float32)
        if len(values) != spec.weights_count + spec.kernels:
            raise ValueError(f"{len(data)} bytes of weights for a layer of {spec.weights_count} weights")
        return Weights(values[: spec.weights_count].reshape(spec.weights_shape), values[spec.weights_count :])

    @cached_property
    def digest(self) -> str:
        return hashlib.sha256(self.to_bytes()).hexdigest()

    @property
    def nonzeros(self) -> int:
        return int(np.count_nonzero(self.kernel))

    @property
    def sparsity(self) -> float:
        """Zeros / weights, 0 to 1."""
        return 1.0 - self.nonzeros / self.kernel.size


@dataclass(frozen=True)
class Layer:
    """One layer of a checkpoint; `input` and `output` are the ONNX tensor names."""

    name: str
    spec: LayerSpec
    weights: Weights
    input: str
    output: str


@dataclass(frozen=True)
class SkippedLayer:
    """A node that is not compiled, and why, in words."""

    name: str
    operator: str
    reason: str


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

"""Specs: the shape of a layer. Needs no NumPy."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from math import prod
from typing import Any, Literal, TypeGuard, cast

from codegen.ir.epilogue import (
    STEPS,
    Activation,
    AddResidual,
    Clip,
    Gelu,
    HardSigmoid,
    HardSwish,
    LeakyRelu,
    MaxPool,
    Mish,
    Quantize,
    Scale,
    Sigmoid,
    Step,
    Swish,
    Tanh,
)

__all__ = [
    "Activation",
    "AddResidual",
    "Clip",
    "Gelu",
    "HardSigmoid",
    "HardSwish",
    "LeakyRelu",
    "MaxPool",
    "Mish",
    "Quantize",
    "Scale",
    "Sigmoid",
    "Step",
    "Swish",
    "Tanh",
]
"""Steps are imported from here as well."""

DataType = Literal["float32", "float16", "bfloat16"]
"""Data type of inputs, outputs and weights. bfloat16 is computed in float32."""

LIKELY_ROWS = 128
"""Rows per image assumed for a Linear whose model does not say: a sequence of common length."""

Pair = tuple[int, int]


@dataclass(frozen=True)
class _Spec(ABC):
    """The base of all specs."""

    @property
    @abstractmethod
    def weights_shape(self) -> tuple[int, ...]: ...

    @property
    @abstractmethod
    def positions(self) -> int:
        """Positions of one image, or of one row of a Linear, at which each weight is used; borders count as inside."""

    @property
    def weights_count(self) -> int:
        return prod(self.weights_shape)

    @property
    def multiply_adds(self) -> int:
        """Multiply-adds per image, or per row of a Linear, if no weight is zero."""
        return self.weights_count * self.positions

    def to_json(self) -> dict[str, Any]:
        """The spec as plain JSON values; `spec_from_json` is its inverse."""
        operator = next(name for name, spec in _SPECS.items() if isinstance(self, spec))
        fields = _lists(asdict(self))
        names = {step: name for name, step in STEPS.items()}
        fields["epilogue"] = [{"step": names[type(step)], **_fields(step)} for step in cast("LayerSpec", self).epilogue]
        return {"operator": operator, **fields}


@dataclass(frozen=True)
class _Convolution(_Spec):
    """The base of convolutions, transposed or not."""

    channels: int
    height: int
    width: int
    output_channels: int
    kernel_height: int
    kernel_width: int
    stride: Pair = (1, 1)
    padding: tuple[int, int, int, int] = (0, 0, 0, 0)
    """Top, left, bottom, right: input elements, or output elements that a transposed convolution cuts off."""
    dilation: Pair = (1, 1)
    groups: int = 1
    """Output channel k reads the input channels of group k // (output_channels / groups) only."""

    @property
    @abstractmethod
    def output_height(self) -> int: ...

    @property
    @abstractmethod
    def output_width(self) -> int: ...

    @property
    def input_shape(self) -> tuple[int, int, int]:
        """C, H, W of one image."""
        return self.channels, self.height, self.width

    @property
    def output_shape(self) -> tuple[int, int, int]:
        """K, H', W' of one image."""
        return self.output_channels, self.output_height, self.output_width

    @property
    def weights_shape(self) -> tuple[int, int, int, int]:
        """K, C / groups, R, S: of a transposed convolution too, unlike in ONNX, where output channels come second."""
        return self.output_channels, self.channels // self.groups, self.kernel_height, self.kernel_width

    def __str__(self) -> str:
        c, h, w = self.input_shape
        groups = f", {self.groups} groups" if self.groups > 1 else ""
        return f"{c}x{h}x{w} -> {self.output_channels}, {self.kernel_height}x{self.kernel_width}{groups}"


@dataclass(frozen=True)
class Conv2d(_Convolution):
    """A convolution: everything that its template depends on, which excludes weights and batch.

    A 1-D convolution is one of height 1.
    """

    epilogue: tuple[Step, ...] = ()
    data_type: DataType = "float32"
    bounded: bool = False
    """Whether input elements are clipped to the bounds of their channel, which come with the weights; NaN stays NaN.

    For 1x1 convolutions of float32 without padding and groups.
    """
    gated: bool = False
    """Whether input elements are multiplied by the gate of their image and channel.

    For 1x1 convolutions without padding and bounds.
    """

    @cached_property
    def map_height(self) -> int:
        """Rows of sums, before a pool."""
        extent = (self.kernel_height - 1) * self.dilation[0] + 1
        return (self.height + self.padding[0] + self.padding[2] - extent) // self.stride[0] + 1

    @cached_property
    def map_width(self) -> int:
        """Columns of sums, before a pool."""
        extent = (self.kernel_width - 1) * self.dilation[1] + 1
        return (self.width + self.padding[1] + self.padding[3] - extent) // self.stride[1] + 1

    @cached_property
    def output_height(self) -> int:
        return self.pool.outputs(self.map_height, self.map_width)[0] if self.pool else self.map_height

    @cached_property
    def output_width(self) -> int:
        return self.pool.outputs(self.map_height, self.map_width)[1] if self.pool else self.map_width

    @cached_property
    def pool(self) -> MaxPool | None:
        """The max pool behind the layer, if its kernel computes that too."""
        last = self.epilogue[-1] if self.epilogue else None
        return last if isinstance(last, MaxPool) else None

    @property
    def positions(self) -> int:
        return self.map_height * self.map_width


@dataclass(frozen=True)
class ConvTranspose2d(_Convolution):
    """A transposed convolution: filters times every input element, added up `stride` output elements apart."""

    output_padding: Pair = (0, 0)
    """Additional rows and columns at the output's bottom and right."""
    epilogue: tuple[Step, ...] = ()
    data_type: DataType = "float32"

    @cached_property
    def output_height(self) -> int:
        extent = (self.kernel_height - 1) * self.dilation[0] + 1
        whole = (self.height - 1) * self.stride[0] + extent + self.output_padding[0]
        return whole - self.padding[0] - self.padding[2]

    @cached_property
    def output_width(self) -> int:
        extent = (self.kernel_width - 1) * self.dilation[1] + 1
        whole = (self.width - 1) * self.stride[1] + extent + self.output_padding[1]
        return whole - self.padding[1] - self.padding[3]

    @property
    def positions(self) -> int:
        return self.height * self.width

    def __str__(self) -> str:
        return f"{super().__str__()} transposed"


@dataclass(frozen=True)
class Linear(_Spec):
    """A fully connected layer: rows of `inputs` values to rows of `outputs` values."""

    inputs: int
    outputs: int
    epilogue: tuple[Step, ...] = ()
    data_type: DataType = "float32"

    @property
    def output_channels(self) -> int:
        """The outputs, by their name in the other layers."""
        return self.outputs

    @property
    def input_shape(self) -> tuple[int]:
        """Shape of one input row."""
        return (self.inputs,)

    @property
    def output_shape(self) -> tuple[int]:
        """Shape of one output row."""
        return (self.outputs,)

    @property
    def positions(self) -> int:
        return 1

    @property
    def weights_shape(self) -> tuple[int, int]:
        """Outputs, inputs."""
        return self.outputs, self.inputs

    def __str__(self) -> str:
        return f"{self.inputs} -> {self.outputs}"


LayerSpec = Conv2d | ConvTranspose2d | Linear
"""The spec of any layer; another kind of layer joins here."""


def is_bounded(spec: LayerSpec) -> TypeGuard[Conv2d]:
    """Whether input elements are brought within the bounds of their channel."""
    return isinstance(spec, Conv2d) and spec.bounded


def is_gated(spec: LayerSpec) -> TypeGuard[Conv2d]:
    """Whether input elements are multiplied by the gate of their image and channel."""
    return isinstance(spec, Conv2d) and spec.gated


def prepares_inputs(spec: LayerSpec) -> bool:
    """Whether input elements are changed before they are multiplied by weights."""
    return is_bounded(spec) or is_gated(spec)


def is_pooled(spec: LayerSpec) -> TypeGuard[Conv2d]:
    """Whether the layer's kernel computes the max pool behind it as well."""
    return isinstance(spec, Conv2d) and spec.pool is not None


def unpooled(spec: LayerSpec) -> LayerSpec:
    """The layer without its max pool."""
    return replace(spec, epilogue=spec.epilogue[:-1]) if is_pooled(spec) else spec


def plain(spec: LayerSpec) -> LayerSpec:
    """The layer without input bounds and gates."""
    return replace(spec, bounded=False, gated=False) if isinstance(spec, Conv2d) else spec


_SPECS: dict[str, type[LayerSpec]] = {"conv2d": Conv2d, "conv_transpose2d": ConvTranspose2d, "linear": Linear}


def spec_from_json(value: dict[str, Any]) -> LayerSpec:
    """Reads what `to_json` wrote. Raises KeyError, TypeError or ValueError on anything else."""
    fields: dict[str, Any] = {name: _value(each) for name, each in value.items()}
    operator = fields.pop("operator")
    if operator not in _SPECS:
        raise ValueError(f"unknown operator {operator!r}")
    fields["epilogue"] = tuple(
        STEPS[step["step"]](**{name: _value(each) for name, each in step.items() if name != "step"})
        for step in fields["epilogue"]
    )
    return _SPECS[operator](**fields)


def _fields(step: Step) -> dict[str, Any]:
    """The fields of a step as JSON; none for a pool of 2x2, the first kind there was."""
    return {} if step == MaxPool() else _lists(asdict(step))


def _lists(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: list(value) if isinstance(value, tuple) else value for name, value in fields.items()}


def _value(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


@dataclass(frozen=True)
class SkippedLayer:
    """A node that is not compiled, and the reason."""

    name: str
    operator: str
    reason: str
    weights: int | None = None
    """Number of weights; None if unknown."""
    multiply_adds: int | None = None
    """Multiply-adds per image if no weight is zero; None if unknown."""
    kind: str = ""
    """A short name of the cause, by which skipped layers are grouped."""

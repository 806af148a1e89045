"""Geometries: everything about a drawn layer but its values, and how `make fuzz` draws them."""

from __future__ import annotations

import operator
from dataclasses import asdict, dataclass
from math import prod
from typing import Any, Literal

from hypothesis import strategies as st

from codegen.ir.layer_spec import DataType

Operator = Literal["Conv", "ConvTranspose", "Gemm", "MatMul"]
OPERATORS: tuple[Operator, ...] = ("Conv", "ConvTranspose", "Gemm", "MatMul")

DRAWN_STEPS = (
    "relu",
    "clip",
    "clip_low",
    "clip_high",
    "leaky_relu",
    "batch_norm",
    "multiply",
    "multiply_scalar",
    "add_scalar",
    "add",
    "residual",
    "residual_first",
    "sigmoid",
    "hard_sigmoid",
    "hard_swish",
    "silu",
    "gelu",
    "gelu_by_tanh",
    "gelu_of_nodes",
    "tanh",
    "mish",
    "quantize",
    "residual_of_rows",
)
"""The nodes that may follow in any geometry: `residual` adds a second input of the model, `residual_first` adds to it,
and `residual_of_rows`, which comes last, adds to each image or row as one row."""
STEPS = (*DRAWN_STEPS, "pool", "wide_pool")
"""Drawn steps, and those of listed geometries only: a last max pool of a 2-D convolution, 2x2, or 3x3 with padding."""


@dataclass(frozen=True)
class Geometry:
    """One operator and the nodes after it; an attribute that is empty is left out of the node."""

    operator: Operator
    channels: int
    output_channels: int
    size: tuple[int, ...] = ()
    """Size of the input: width, or height and width; of a MatMul the dimensions between batch and channels."""
    window: tuple[int, ...] = ()
    """Size of the filters."""
    strides: tuple[int, ...] = ()
    pads: tuple[int, ...] = ()
    """All beginnings, then all ends, as in ONNX."""
    auto_pad: str = ""
    dilations: tuple[int, ...] = ()
    group: int = 1
    output_padding: tuple[int, ...] = ()
    output_shape: tuple[int, ...] = ()
    bias: bool = True
    transposed_weights: bool = False
    """transB of a Gemm."""
    alpha: float = 1.0
    beta: float = 1.0
    steps: tuple[str, ...] = ()
    data_type: DataType = "float32"
    batch: int = 2
    virtual_arch: str = "compute_80"
    gated: bool = False
    """Whether the input is multiplied by another one of the model first, of a number for each image and channel."""

    @property
    def convolves(self) -> bool:
        return self.operator in ("Conv", "ConvTranspose")

    @property
    def input_shape(self) -> tuple[int, ...]:
        return (self.batch, self.channels, *self.size) if self.convolves else (self.batch, *self.size, self.channels)

    @property
    def gate_shape(self) -> tuple[int, ...]:
        return (self.batch, self.channels, *(1 for _ in self.size))

    @property
    def weights_shape(self) -> tuple[int, ...]:
        """Shape of the weights in ONNX."""
        if self.operator == "Conv":
            return self.output_channels, self.channels // self.group, *self.window
        if self.operator == "ConvTranspose":
            return self.channels, self.output_channels // self.group, *self.window
        return (
            (self.output_channels, self.channels) if self.transposed_weights else (self.channels, self.output_channels)
        )

    @property
    def result_shape(self) -> tuple[int, ...]:
        """Shape of the operator's output."""
        if not self.convolves:
            return self.batch, *self.size, self.output_channels
        return self.batch, self.output_channels, *(self._result_size(axis) for axis in range(len(self.size)))

    @property
    def final_shape(self) -> tuple[int, ...]:
        """Shape of the last node's output."""
        result = self.result_shape
        if "pool" in self.steps:
            return *result[:2], *(size // 2 for size in result[2:])
        if "wide_pool" in self.steps:
            return *result[:2], *((size + 1) // 2 for size in result[2:])
        return (result[0], prod(result[1:])) if "residual_of_rows" in self.steps else result

    @property
    def runs_in_onnxruntime(self) -> bool:
        """Its CPU provider has no bfloat16, and no dilation beside SAME."""
        dilated_same = (
            self.operator == "Conv" and self.auto_pad.startswith("SAME") and max(self.dilations, default=1) > 1
        )
        return self.data_type != "bfloat16" and not dilated_same

    @property
    def extents(self) -> tuple[int, ...]:
        """Extents of the dilated filter."""
        dilations = self.dilations or (1,) * len(self.window)
        return tuple((size - 1) * step + 1 for size, step in zip(self.window, dilations, strict=True))

    @property
    def terms(self) -> int:
        """Products of one output, at most."""
        return self.channels // self.group * prod(self.window)

    def _result_size(self, axis: int) -> int:
        rank, size, extent = len(self.size), self.size[axis], self.extents[axis]
        stride = self.strides[axis] if self.strides else 1
        padding = self.pads[axis] + self.pads[axis + rank] if self.pads else 0
        same = self.auto_pad.startswith("SAME")
        if self.operator == "Conv":
            return -(-size // stride) if same else (size + padding - extent) // stride + 1
        if self.output_shape:
            return self.output_shape[axis]
        added = self.output_padding[axis] if self.output_padding else 0
        return size * stride if same else (size - 1) * stride + extent + added - padding

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(fields: dict[str, Any]) -> Geometry:
        plain: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in fields.items()}
        return Geometry(**plain)


WIDEST = 1_024
"""Columns of a drawn layer's input, at most."""

MOST_RESULTS = 5_000
"""Elements of a drawn layer's output: what the emulator's time grows with."""


@st.composite
def geometries(draw: st.DrawFn) -> Geometry:
    """Any small geometry."""
    kind = draw(st.sampled_from(("Conv", "Conv", "Conv", "Conv", "ConvTranspose", "ConvTranspose", "Gemm", "MatMul")))
    steps = tuple(draw(st.lists(st.sampled_from(DRAWN_STEPS), max_size=4, unique=True)))
    if "residual_of_rows" in steps:
        steps = (*(step for step in steps if not step.startswith("residual")), "residual_of_rows")
    if "residual" in steps:
        steps = tuple(step for step in steps if step != "residual_first")
    data_type = draw(st.sampled_from(("float32", "float32", "float32", "float16", "bfloat16")))
    archs = ("compute_80",) if data_type == "bfloat16" else ("compute_80", "compute_80", "compute_75")
    chosen = {"data_type": data_type, "virtual_arch": draw(st.sampled_from(archs)), "steps": steps}
    if kind == "Gemm":
        return draw(_gemms(chosen))
    if kind == "MatMul":
        return draw(_matrix_products(chosen))
    return draw(_convolutions(kind, chosen).filter(_can_be_computed))


def _gemms(chosen: dict[str, Any]) -> st.SearchStrategy[Geometry]:
    return st.builds(
        Geometry,
        operator=st.just("Gemm"),
        channels=st.integers(1, 48),
        output_channels=st.integers(1, 24),
        bias=st.booleans(),
        transposed_weights=st.booleans(),
        alpha=st.sampled_from((1.0, 1.0, 0.75, -0.5)),
        beta=st.sampled_from((1.0, 1.0, 0.5)),
        batch=st.integers(1, 6),
        **{name: st.just(value) for name, value in chosen.items()},
    )


@st.composite
def _matrix_products(draw: st.DrawFn, chosen: dict[str, Any]) -> Geometry:
    size = tuple(draw(st.lists(st.integers(1, 6), max_size=2)))
    if size:  # then the second dimension, which batch normalisation is for, is not the channels
        chosen = {**chosen, "steps": tuple(step for step in chosen["steps"] if step != "batch_norm")}
    channels, kernels = draw(st.integers(1, 48)), draw(st.integers(1, 24))
    return Geometry("MatMul", channels, kernels, size, bias=False, batch=draw(st.integers(1, 4)), **chosen)


@st.composite
def wide_convolutions(draw: st.DrawFn) -> Geometry:
    """Convolutions of one to three rows of up to 1,024 columns: their blocks are tiles of a row."""
    rank = draw(st.sampled_from((1, 2)))
    width, taps = draw(st.integers(100, WIDEST)), draw(st.integers(1, 7))
    group = draw(st.sampled_from((1, 1, 2, 4)))
    across, stride, dilation = draw(st.sampled_from((0, taps // 2))), draw(st.integers(1, 3)), draw(st.integers(1, 2))
    one = (1,) * (rank - 1)
    fields: dict[str, Any] = {
        "size": ((draw(st.integers(1, 3)),) * (rank - 1)) + (width,),
        "window": (*one, taps),
        "strides": (*one, stride),
        "dilations": (*one, dilation),
        "pads": (0,) * (rank - 1) + (across,) + (0,) * (rank - 1) + (across,),
    }
    kernels = max(1, min(8, MOST_RESULTS * stride // (width * prod(fields["size"][:-1]) * group)))
    return Geometry(
        "Conv",
        channels=group * draw(st.sampled_from((4, 8, 16, 32))),
        output_channels=group * draw(st.integers(1, kernels)),
        group=group,
        batch=1,
        data_type=draw(st.sampled_from(("float32", "float32", "float16"))),
        virtual_arch=draw(st.sampled_from(("compute_80", "compute_80", "compute_75"))),
        steps=draw(st.sampled_from(((), ("relu",)))),
        **fields,
    )


@st.composite
def _convolutions(draw: st.DrawFn, kind: Operator, chosen: dict[str, Any]) -> Geometry:
    rank = draw(st.sampled_from((1, 2, 2, 2)))

    def each(low: int, high: int) -> tuple[int, ...]:
        return tuple(draw(st.lists(st.integers(low, high), min_size=rank, max_size=rank)))

    if draw(st.integers(0, 4)) == 0:  # depthwise
        group, channels, kernels = draw(st.integers(2, 12)), 1, draw(st.integers(1, 2))
    else:
        group = draw(st.sampled_from((1, 1, 1, 2, 3, 4)))
        channels, kernels = draw(st.integers(1, 24 // group)), draw(st.integers(1, 16 // group))
    window = each(1, draw(st.sampled_from((3, 5, 11))))
    strides = draw(st.sampled_from((0, 2, 3)))
    dilations = draw(st.sampled_from((0, 0, 2, 4)))
    attributes: dict[str, Any] = {
        "strides": each(1, strides) if strides else (),
        "dilations": each(1, dilations) if dilations else (),
    }
    padding = draw(st.sampled_from(("", "pads", "pads", "SAME_UPPER", "SAME_LOWER", "VALID")))
    if padding == "pads":
        attributes["pads"] = each(0, 3) + each(0, 3)
    elif padding:
        attributes["auto_pad"] = padding
    if kind == "ConvTranspose" and strides and padding in ("", "pads"):
        attributes["output_padding"] = tuple(draw(st.integers(0, stride - 1)) for stride in attributes["strides"])
    return Geometry(
        kind,
        channels=group * channels,
        output_channels=group * kernels,
        size=each(1, draw(st.sampled_from((8, 20)))),
        window=window,
        group=group,
        bias=draw(st.booleans()),
        batch=draw(st.integers(1, 3)),
        **attributes,
        **chosen,
    )


def _can_be_computed(geometry: Geometry) -> bool:
    """There is an output, and it is small; and no dimension of it is larger than what the input gives."""
    if min(geometry.result_shape) < 1 or max(prod(geometry.result_shape), 2 * geometry.terms) > MOST_RESULTS:
        return False
    # Where a stride is larger than the kernel, SAME asks for more elements than a transposed convolution has.
    asks_for_more = geometry.operator == "ConvTranspose" and geometry.auto_pad.startswith("SAME")
    return not asks_for_more or all(map(operator.ge, geometry.extents, geometry.strides))

"""Geometries: everything about a drawn layer but its values, listed for each landing and drawn for `make fuzz`."""

from __future__ import annotations

import operator
from dataclasses import asdict, dataclass
from math import prod
from typing import Any, Literal

from hypothesis import strategies as st

from codegen.spec import DataType

Operator = Literal["Conv", "ConvTranspose", "Gemm", "MatMul"]
OPERATORS: tuple[Operator, ...] = ("Conv", "ConvTranspose", "Gemm", "MatMul")

STEPS = (
    "relu",
    "clip",
    "clip_low",
    "clip_high",
    "leaky_relu",
    "batch_norm",
    "multiply",
    "multiply_scalar",
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
    "residual_of_rows",
)
"""The nodes that may follow: `residual` adds a second input of the model, `residual_first` adds to it, and
`residual_of_rows`, which comes last, adds to each image or row as one row."""


@dataclass(frozen=True)
class Geometry:
    """One operator and the nodes after it; an attribute that is empty is left out of the node."""

    operator: Operator
    channels: int
    kernels: int
    size: tuple[int, ...] = ()
    """Of the input: width, or height and width; of a MatMul the dimensions between batch and channels."""
    window: tuple[int, ...] = ()
    """Of the kernels."""
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
    """Of a Gemm: transB."""
    alpha: float = 1.0
    beta: float = 1.0
    steps: tuple[str, ...] = ()
    data_type: DataType = "float32"
    batch: int = 2
    virtual_arch: str = "compute_80"

    @property
    def convolves(self) -> bool:
        return self.operator in ("Conv", "ConvTranspose")

    @property
    def input_shape(self) -> tuple[int, ...]:
        return (self.batch, self.channels, *self.size) if self.convolves else (self.batch, *self.size, self.channels)

    @property
    def weights_shape(self) -> tuple[int, ...]:
        """As ONNX has it."""
        if self.operator == "Conv":
            return self.kernels, self.channels // self.group, *self.window
        if self.operator == "ConvTranspose":
            return self.channels, self.kernels // self.group, *self.window
        return (self.kernels, self.channels) if self.transposed_weights else (self.channels, self.kernels)

    @property
    def result_shape(self) -> tuple[int, ...]:
        """Of the operator's output."""
        if not self.convolves:
            return self.batch, *self.size, self.kernels
        return self.batch, self.kernels, *(self._result_size(axis) for axis in range(len(self.size)))

    @property
    def final_shape(self) -> tuple[int, ...]:
        """Of the last node's output."""
        result = self.result_shape
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
        """Of the dilated kernel."""
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


GEOMETRIES: dict[str, Geometry] = {
    "3x3": Geometry("Conv", 5, 7, (9, 11), (3, 3), pads=(1, 1, 1, 1), steps=("relu",)),
    "1x1": Geometry("Conv", 9, 10, (7, 7), (1, 1), bias=False),
    "1x1 with stride 2": Geometry("Conv", 16, 6, (8, 9), (1, 1), (2, 2), steps=("batch_norm", "relu")),
    "2x2 with stride 3": Geometry("Conv", 4, 5, (13, 13), (2, 2), (3, 3), batch=1, virtual_arch="compute_75"),
    "5x5 VALID": Geometry("Conv", 3, 8, (12, 10), (5, 5), auto_pad="VALID", steps=("clip",)),
    "7x7 with stride 2": Geometry("Conv", 3, 8, (20, 20), (7, 7), (2, 2), (3, 3, 3, 3), bias=False),
    "11x11 with stride 4": Geometry("Conv", 3, 4, (20, 19), (11, 11), (4, 4), (2, 2, 2, 2), batch=1, steps=("relu",)),
    "patches of 16x16": Geometry("Conv", 3, 12, (48, 32), (16, 16), (16, 16), batch=1),
    "patches of 4x4, rows left over": Geometry("Conv", 3, 8, (19, 24), (4, 4), (4, 4), steps=("add",)),
    "3x1 and 1x3 strides": Geometry("Conv", 4, 6, (11, 12), (3, 1), (1, 3), (1, 0, 0, 2), steps=("leaky_relu",)),
    "1x7": Geometry("Conv", 6, 5, (4, 16), (1, 7), pads=(0, 3, 0, 3), steps=("add", "relu")),
    "9x2, uneven pads": Geometry("Conv", 2, 3, (14, 8), (9, 2), (2, 1), (4, 1, 3, 0), steps=("multiply",)),
    "4x6 SAME_UPPER": Geometry("Conv", 3, 6, (10, 13), (4, 6), (2, 3), auto_pad="SAME_UPPER", steps=("clip_low",)),
    "2x4 SAME_LOWER": Geometry("Conv", 5, 4, (9, 8), (2, 4), (2, 1), auto_pad="SAME_LOWER", virtual_arch="compute_75"),
    "dilation 2": Geometry("Conv", 6, 8, (12, 12), (3, 3), pads=(2, 2, 2, 2), dilations=(2, 2), steps=("relu",)),
    "dilation 3x1 SAME_UPPER": Geometry(
        "Conv", 4, 5, (14, 9), (3, 4), (2, 1), auto_pad="SAME_UPPER", dilations=(3, 1), steps=("residual", "relu")
    ),
    "dilation 1x4 VALID, stride 2": Geometry("Conv", 3, 4, (8, 20), (2, 3), (1, 2), auto_pad="VALID", dilations=(1, 4)),
    "two groups": Geometry("Conv", 8, 6, (8, 8), (3, 3), pads=(1, 1, 1, 1), group=2, steps=("batch_norm",)),
    "four groups, dilation, stride": Geometry(
        "Conv", 12, 8, (11, 11), (3, 2), (2, 1), (1, 0, 2, 1), dilations=(1, 2), group=4, steps=("relu",)
    ),
    "depthwise": Geometry(
        "Conv", 12, 12, (9, 9), (3, 3), pads=(1, 1, 1, 1), group=12, bias=False, steps=("batch_norm", "clip")
    ),
    "depthwise with multiplier": Geometry("Conv", 5, 15, (10, 8), (5, 3), (2, 2), (2, 1, 2, 1), group=5),
    "depthwise 7x7, dilated": Geometry(
        "Conv", 6, 6, (15, 15), (7, 7), pads=(6, 6, 6, 6), dilations=(2, 2), group=6, batch=1, steps=("residual",)
    ),
    "residual after batch normalisation": Geometry(
        "Conv", 8, 8, (7, 7), (3, 3), pads=(1, 1, 1, 1), bias=False, steps=("batch_norm", "residual", "relu")
    ),
    "residual first, then clipped": Geometry("Conv", 4, 6, (6, 10), (3, 3), steps=("residual_first", "clip")),
    "residual after the activation": Geometry(
        "Conv", 6, 4, (8, 8), (3, 3), (2, 2), (0, 0, 1, 1), steps=("leaky_relu", "residual")
    ),
    "everything that folds": Geometry(
        "Conv", 5, 6, (8, 9), (2, 3), steps=("multiply", "batch_norm", "add", "multiply_scalar", "clip_high")
    ),
    "what follows an activation does not fold": Geometry("Conv", 4, 5, (7, 8), (3, 3), steps=("relu", "batch_norm")),
    "SiLU after batch normalisation": Geometry(
        "Conv", 5, 6, (8, 7), (3, 3), pads=(1, 1, 1, 1), steps=("batch_norm", "silu")
    ),
    "GELU and a residual": Geometry("Conv", 8, 6, (7, 7), (1, 1), steps=("gelu", "residual")),
    "hard swish, depthwise": Geometry(
        "Conv", 6, 6, (9, 8), (5, 5), (2, 2), (2, 2, 2, 2), group=6, steps=("hard_swish",)
    ),
    "sigmoid and hard sigmoid": Geometry(
        "Conv", 4, 5, (6, 7), (2, 2), steps=("hard_sigmoid", "residual", "sigmoid"), virtual_arch="compute_75"
    ),
    "Mish and tanh, transposed": Geometry("ConvTranspose", 4, 5, (5, 4), (3, 3), (2, 2), steps=("mish", "tanh")),
    "GELU of nodes, of sequences": Geometry("MatMul", 16, 9, (4,), bias=False, steps=("add", "gelu_of_nodes")),
    "residual of flat maps": Geometry("Conv", 4, 6, (7, 8), (3, 3), steps=("silu", "residual_of_rows")),
    "residual of flat sequences": Geometry("MatMul", 12, 7, (3,), bias=False, steps=("add", "residual_of_rows")),
    "float16 GELU by tanh": Geometry("Gemm", 20, 9, steps=("gelu_by_tanh",), data_type="float16"),
    "bfloat16 SiLU": Geometry("Conv", 6, 5, (6, 6), (3, 3), steps=("silu", "residual"), data_type="bfloat16"),
    "1-D": Geometry("Conv", 6, 8, (20,), (5,), pads=(2, 2), steps=("relu",)),
    "1-D, dilated, strided, grouped": Geometry("Conv", 8, 4, (19,), (3,), (2,), (3, 1), dilations=(3,), group=4),
    "1-D, 160 wide": Geometry("Conv", 32, 8, (160,), (3,), pads=(1, 1), batch=1, steps=("relu",)),
    "1-D, 1,024 wide": Geometry("Conv", 4, 4, (1024,), (5,), pads=(2, 2), batch=1, steps=("batch_norm",)),
    "1-D, 196 wide, strided": Geometry("Conv", 16, 8, (196,), (7,), (2,), (3, 3), batch=2),
    "1-D, 200 wide, depthwise": Geometry("Conv", 16, 16, (200,), (3,), pads=(1, 1), group=16, batch=1),
    "1x3 on one row": Geometry("Conv", 24, 6, (1, 198), (1, 3), pads=(0, 1, 0, 1), steps=("leaky_relu",)),
    "3x3 on one row": Geometry("Conv", 8, 6, (1, 180), (3, 3), pads=(1, 1, 1, 1), steps=("relu",)),
    "float16, 1-D, 192 wide": Geometry("Conv", 32, 8, (192,), (3,), pads=(1, 1), data_type="float16"),
    "1-D SAME_LOWER": Geometry("Conv", 3, 5, (18,), (4,), (2,), auto_pad="SAME_LOWER", steps=("leaky_relu",)),
    "transposed 3x3": Geometry("ConvTranspose", 5, 6, (6, 7), (3, 3), pads=(1, 1, 1, 1), steps=("relu",)),
    "transposed 4x4 with stride 2": Geometry(
        "ConvTranspose", 6, 4, (7, 6), (4, 4), (2, 2), (1, 1, 1, 1), bias=False, steps=("batch_norm", "relu")
    ),
    "transposed with output padding": Geometry(
        "ConvTranspose", 4, 5, (5, 6), (3, 2), (2, 3), (1, 0, 0, 1), output_padding=(1, 2), steps=("leaky_relu",)
    ),
    "transposed in groups, dilated": Geometry(
        "ConvTranspose", 8, 6, (6, 5), (3, 3), (1, 2), (2, 0, 1, 1), dilations=(2, 1), group=2, steps=("clip",)
    ),
    "transposed depthwise": Geometry("ConvTranspose", 6, 6, (5, 5), (2, 2), (2, 2), group=6, steps=("residual",)),
    "transposed SAME_UPPER": Geometry("ConvTranspose", 3, 4, (6, 5), (3, 4), (2, 2), auto_pad="SAME_UPPER"),
    "transposed to a shape": Geometry(
        "ConvTranspose", 3, 4, (5, 5), (4, 3), (2, 2), output_shape=(11, 10), virtual_arch="compute_75"
    ),
    "transposed 1-D": Geometry("ConvTranspose", 4, 5, (9,), (5,), (3,), (1, 2), steps=("add", "relu")),
    "Gemm": Geometry("Gemm", 24, 10, transposed_weights=True, batch=3, steps=("relu",)),
    "Gemm with alpha and beta": Geometry("Gemm", 17, 9, alpha=0.75, beta=0.5, batch=5, steps=("batch_norm", "clip")),
    "MatMul": Geometry("MatMul", 20, 12, bias=False, batch=4, steps=("add", "residual", "relu")),
    "MatMul of sequences": Geometry("MatMul", 16, 7, (5,), bias=False, steps=("multiply", "add", "leaky_relu")),
    "float16 3x3": Geometry(
        "Conv", 8, 6, (8, 8), (3, 3), pads=(1, 1, 1, 1), steps=("batch_norm", "relu"), data_type="float16"
    ),
    "float16 in groups, dilated, residual": Geometry(
        "Conv", 8, 8, (9, 10), (3, 2), (1, 2), (1, 1, 1, 0), dilations=(2, 1), group=2, steps=("residual", "clip"),
        data_type="float16",
    ),
    "float16 patches of 14x14": Geometry(
        "Conv", 3, 6, (42, 28), (14, 14), (14, 14), batch=2, data_type="float16"
    ),
    "float16 depthwise": Geometry(
        "Conv", 6, 6, (8, 7), (5, 3), auto_pad="SAME_UPPER", group=6, steps=("leaky_relu",), data_type="float16",
        virtual_arch="compute_75",
    ),
    "float16 transposed": Geometry(
        "ConvTranspose", 4, 4, (5, 6), (4, 4), (2, 2), (1, 1, 1, 1), steps=("relu",), data_type="float16"
    ),
    "float16 Gemm": Geometry("Gemm", 24, 11, transposed_weights=True, steps=("relu",), data_type="float16"),
    "bfloat16 3x3": Geometry(
        "Conv", 6, 5, (7, 9), (3, 3), (2, 1), (1, 1, 1, 1), steps=("batch_norm", "residual", "relu"),
        data_type="bfloat16",
    ),
    "bfloat16 transposed": Geometry(
        "ConvTranspose", 4, 6, (5, 5), (3, 3), (2, 2), output_padding=(1, 1), group=2, data_type="bfloat16"
    ),
    "bfloat16 MatMul": Geometry("MatMul", 18, 8, (3,), bias=False, steps=("add", "clip_low"), data_type="bfloat16"),
}  # fmt: skip
"""Small, so that the emulator takes no time; together they have every value of every attribute."""

NOT_ALL_FOLDED = {"what follows an activation does not fold"}
"""Of the listed ones, those whose last node is not computed with the layer."""

WIDEST = 1_024
"""Columns of a drawn layer's input, at most."""

MOST_RESULTS = 5_000
"""Elements of a drawn layer's output: what the emulator's time grows with."""


@st.composite
def geometries(draw: st.DrawFn) -> Geometry:
    """Any small geometry."""
    kind = draw(st.sampled_from(("Conv", "Conv", "Conv", "Conv", "ConvTranspose", "ConvTranspose", "Gemm", "MatMul")))
    steps = tuple(draw(st.lists(st.sampled_from(STEPS), max_size=4, unique=True)))
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
        kernels=st.integers(1, 24),
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
        kernels=group * draw(st.integers(1, kernels)),
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
        kernels=group * kernels,
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

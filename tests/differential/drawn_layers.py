"""Drawn layers: a geometry with values, as an ONNX model and inputs for it. One line of JSON says all of one."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import ml_dtypes
import numpy as np
import onnx
from hypothesis import strategies as st
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from codegen.ir.layer_spec import DataType
from tests.differential.geometries import Geometry

OPSET = 22
"""The first in which all operators take bfloat16."""
DTYPES: dict[DataType, type] = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}

Kind = Literal["normal", "repeated", "powers of two", "ones", "subnormal", "largest", "mixed"]
Generator = np.random.Generator
Values = Callable[[Generator, tuple[int, ...], ml_dtypes.finfo], NDArray[np.floating[Any]]]


def _mixed(rng: Generator, shape: tuple[int, ...], limits: ml_dtypes.finfo) -> NDArray[np.floating[Any]]:
    each = [KINDS[kind](rng, shape, limits) for kind in ("normal", "repeated", "powers of two", "ones", "subnormal")]
    return np.choose(rng.integers(len(each), size=shape), each)


KINDS: dict[Kind, Values] = {
    "normal": lambda rng, shape, limits: rng.standard_normal(shape),
    "repeated": lambda rng, shape, limits: rng.choice(rng.standard_normal(3), shape),
    "powers of two": lambda rng, shape, limits: rng.choice([-1.0, 1.0], shape) * 2.0 ** rng.integers(-8, 9, shape),
    "ones": lambda rng, shape, limits: rng.choice([-1.0, 1.0], shape),
    "subnormal": lambda rng, shape, limits: float(limits.smallest_subnormal) * rng.integers(-200, 201, shape),
    "largest": lambda rng, shape, limits: rng.choice([-1.0, 1.0], shape) * float(limits.max),
    "mixed": _mixed,
}


@dataclass(frozen=True)
class Recipe:
    """Origin of a layer's values."""

    seed: int
    kind: Kind = "normal"
    sparsity: float = 0.5
    """Share of the weights that are zero."""
    empty_slices: tuple[float, float] = (0.0, 0.0)
    """Share of the slices along the first and second axis of the weights that are zero: kernels and channels."""
    negative_zeros: bool = False
    """Whether about half of the zeros are -0.0."""
    reach: float = 1.0
    """Factor of the inputs: activations of large ones are saturated."""

    def weights(self, shape: tuple[int, ...], dtype: type) -> NDArray[Any]:
        """Weights of that shape and type, always the same."""
        rng = np.random.default_rng(self.seed)
        values = KINDS[self.kind](rng, shape, ml_dtypes.finfo(dtype))
        zero = rng.random(shape) < self.sparsity
        for axis, share in enumerate(self.empty_slices):
            empty = rng.random(shape[axis]) < share
            zero |= empty.reshape([-1 if i == axis else 1 for i in range(len(shape))])
        zeros = np.where(rng.random(shape) < 0.5, -0.0, 0.0) if self.negative_zeros else 0.0
        return np.where(zero, zeros, values).astype(dtype)


def recipes() -> st.SearchStrategy[Recipe]:
    share = st.sampled_from((0.0, 0.0, 0.0, 0.3, 0.8))
    return st.builds(
        Recipe,
        seed=st.integers(0, 2**32 - 1),
        kind=st.sampled_from(tuple(KINDS)),
        sparsity=st.sampled_from((0.0, 0.5, 0.7, 0.9, 0.95, 1.0)) | st.floats(0, 1).map(lambda value: round(value, 3)),
        empty_slices=st.tuples(share, share),
        negative_zeros=st.booleans(),
        reach=st.sampled_from((1.0, 1.0, 1.0, 30.0, 1000.0)),
    )


def places() -> st.SearchStrategy[float]:
    """Places of tilings in a ranking, from 0 to 1."""
    return st.integers(0, 1000).map(lambda thousandths: thousandths / 1000)


@dataclass(frozen=True)
class DrawnLayer:
    """One layer; `line` is how to get it again."""

    geometry: Geometry
    recipe: Recipe
    place: float = 0.0
    """Place of its tiling in the ranking: 0 is the first choice, 1 the last."""

    @property
    def line(self) -> str:
        plain: dict[str, Any] = {"geometry": self.geometry.to_json(), "recipe": asdict(self.recipe)}
        default = {"geometry": Geometry("Conv", 0, 0).to_json(), "recipe": asdict(Recipe(0))}
        always = ("operator", "channels", "output_channels", "seed")
        for part, fields in plain.items():
            plain[part] = {k: v for k, v in fields.items() if k in always or v != default[part][k]}
        return json.dumps(plain | ({"place": self.place} if self.place else {}))

    @staticmethod
    def from_line(line: str) -> DrawnLayer:
        plain = json.loads(line)
        recipe: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in plain["recipe"].items()}
        return DrawnLayer(Geometry.from_json(plain["geometry"]), Recipe(**recipe), plain.get("place", 0.0))

    def on(self, virtual_arch: str) -> DrawnLayer:
        """The layer with PTX for a virtual architecture."""
        return replace(self, geometry=replace(self.geometry, virtual_arch=virtual_arch))

    @property
    def model(self) -> onnx.ModelProto:
        """The model: input x, r where a residual is added, g where x is multiplied; the last node's output is y."""
        return _Builder(self).model()

    @property
    def inputs(self) -> dict[str, NDArray[Any]]:
        """x, r, g; x is small where the weights are large, so that no sum comes near the largest value of the type."""
        geometry, dtype = self.geometry, DTYPES[self.geometry.data_type]
        largest_weight = np.abs(self.recipe.weights(geometry.weights_shape, dtype).astype(np.float64)).max()
        room = float(ml_dtypes.finfo(dtype).max) / (64 * geometry.terms * max(largest_weight, 1.0))
        scale = min(self.recipe.reach, 2.0 ** np.floor(np.log2(room)))
        rng = np.random.default_rng([self.recipe.seed, 1])
        x = np.clip(rng.standard_normal(geometry.input_shape), -4, 4)
        arrays = {"x": (x * scale).astype(dtype)}
        if {"residual", "residual_first", "residual_of_rows"} & set(geometry.steps):
            arrays["r"] = rng.standard_normal(geometry.final_shape).astype(dtype)
        if geometry.gated:
            arrays["g"] = rng.uniform(-1, 1, geometry.gate_shape).astype(dtype)
        return arrays


class _Builder:
    """Collects the nodes and constants of one model."""

    def __init__(self, layer: DrawnLayer) -> None:
        self.layer = layer
        self.geometry = layer.geometry
        self.dtype = DTYPES[layer.geometry.data_type]
        self.rng = np.random.default_rng([layer.recipe.seed, 2])
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def model(self) -> onnx.ModelProto:
        geometry = self.geometry
        self._operator()
        for step in geometry.steps:
            self._step(step)
        self.nodes[-1].output[0] = "y"
        element_type = helper.np_dtype_to_tensor_dtype(np.dtype(self.dtype))
        inputs = {name: array.shape for name, array in self.layer.inputs.items()}
        graph = helper.make_graph(
            self.nodes,
            "drawn",
            [helper.make_tensor_value_info(name, element_type, shape) for name, shape in inputs.items()],
            [helper.make_tensor_value_info("y", element_type, geometry.final_shape)],
            self.constants,
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=10)

    def _constant(self, values: NDArray[Any] | float) -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(values).astype(self.dtype), name))
        return name

    def _integer(self, value: int) -> str:
        self.constants.append(numpy_helper.from_array(np.array(value, np.uint8), f"c{len(self.constants)}"))
        return self.constants[-1].name

    def _node(self, operator: str, *inputs: str, **attributes: Any) -> None:
        output = f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, inputs, [output], f"{operator}{len(self.nodes)}", **attributes))

    @property
    def _last(self) -> str:
        return self.nodes[-1].output[0]

    def _operator(self) -> None:
        geometry = self.geometry
        if geometry.gated:
            self._node("Mul", "x", "g")
        x = self._last if geometry.gated else "x"
        inputs = [x, self._constant(self.layer.recipe.weights(geometry.weights_shape, self.dtype))]
        if geometry.bias:
            inputs.append(self._constant(self.rng.standard_normal(geometry.output_channels)))
        attributes: dict[str, Any] = {}
        if geometry.convolves:
            names = ("strides", "pads", "auto_pad", "dilations", "output_padding", "output_shape")
            attributes = {name: value for name in names if (value := getattr(geometry, name))}
            attributes |= {"group": geometry.group} if geometry.group > 1 else {}
        elif geometry.operator == "Gemm":
            attributes = {"transB": int(geometry.transposed_weights), "alpha": geometry.alpha, "beta": geometry.beta}
        self._node(geometry.operator, *inputs, **attributes)

    def _step(self, step: str) -> None:
        before, channels = self._last, self._channels
        match step:
            case "relu":
                self._node("Relu", before)
            case "clip":
                self._node("Clip", before, self._constant(-0.75), self._constant(1.5))
            case "clip_low":
                self._node("Clip", before, self._constant(-0.25))
            case "clip_high":
                self._node("Clip", before, "", self._constant(0.5))
            case "leaky_relu":
                self._node("LeakyRelu", before, alpha=0.1)
            case "batch_norm":
                self._batch_norm(before)
            case "multiply":
                self._node("Mul", before, self._constant(channels(-1, 1)))
            case "multiply_scalar":
                self._node("Mul", self._constant(-0.7), before)
            case "add_scalar":
                self._node("Add", before, self._constant(0.3))
            case "add":
                self._node("Add", self._constant(channels(-1, 1)), before)
            case "residual":
                self._node("Add", before, "r")
            case "residual_first":
                self._node("Add", "r", before)
            case "residual_of_rows":
                self._node("Flatten", before)
                self._node("Add", self._last, "r")
            case "quantize":
                parameters = self._constant(0.05), self._integer(100)
                self._node("QuantizeLinear", before, *parameters)
                self._node("DequantizeLinear", self._last, *parameters)
            case "pool":
                self._node("MaxPool", before, kernel_shape=[2, 2], strides=[2, 2])
            case "wide_pool":
                self._node("MaxPool", before, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
            case "sigmoid" | "tanh" | "mish" | "gelu":
                self._node(step.capitalize(), before)
            case "hard_swish":
                self._node("HardSwish", before)
            case "hard_sigmoid":
                self._node("HardSigmoid", before, alpha=0.3, beta=0.4)
            case "silu":
                self._node("Sigmoid", before)
                self._node("Mul", before, self._last)
            case "gelu_by_tanh":
                self._node("Gelu", before, approximate="tanh")
            case "gelu_of_nodes":
                self._gelu_of_nodes(before)

    def _gelu_of_nodes(self, before: str) -> None:
        """GELU in the nodes that exporters write."""
        self._node("Div", before, self._constant(math.sqrt(2)))
        self._node("Erf", self._last)
        self._node("Add", self._last, self._constant(1))
        self._node("Mul", before, self._last)
        self._node("Mul", self._last, self._constant(0.5))

    def _channels(self, low: float, high: float) -> NDArray[np.float64]:
        """One value for each channel, in a shape that goes with the operator's output."""
        values = self.rng.uniform(low, high, self.geometry.output_channels)
        return values.reshape(-1, *[1] * len(self.geometry.size)) if self.geometry.convolves else values

    def _batch_norm(self, before: str) -> None:
        kernels = self.geometry.output_channels
        scale = self.rng.uniform(-1, 1, kernels) * (self.rng.random(kernels) < 0.8)  # zero: the kernel is pruned
        offset, mean = self.rng.standard_normal((2, kernels))
        variance = self.rng.uniform(1, 3, kernels)
        constants = [self._constant(each) for each in (scale, offset, mean, variance)]
        self._node("BatchNormalization", before, *constants, epsilon=1e-5)

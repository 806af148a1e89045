"""Operators of the runtime beside compiled layers: kernels in the emulator, compared with onnxruntime."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest

from codegen.frontend.onnx.export.network import read_network
from farm.bundle.reader import CONSTANTS, GLUE
from farm.errors import UsageError
from farm.runtime.emulated import run_emulated
from farm.runtime.operators import OPERATORS
from farm.runtime.plan import Plan
from farm.runtime.plan_text import plan_lines, read_plan, with_end
from farm.runtime.planner import Planned, plan_network
from tests.unit.onnx_models import info, model, node, tensor, values

IMAGE = ("N", 3, 9, 7)


def text_of(planned: Planned) -> bytes:
    """The text of a plan without layers."""
    files = {CONSTANTS: planned.constants, GLUE: b"PTX"}
    listed = [f"file {len(data)} {'0' * 64} {name}" for name, data in files.items() if data]
    return with_end([*listed, *plan_lines(planned.plan, [])])


def computed(proto: onnx.ModelProto, *arrays: np.ndarray) -> tuple[list[np.ndarray], Plan]:
    """By the plan as it is written and read again."""
    planned = plan_network(read_network(proto.SerializeToString()), {})
    plan = read_plan(text_of(planned)).plan
    assert plan == planned.plan
    return run_emulated(plan, {}, planned.constants, arrays), plan


def expected(proto: onnx.ModelProto, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    import onnxruntime

    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    names = [each.name for each in session.get_inputs()]
    return list(session.run(None, dict(zip(names, arrays, strict=True))))


def check(proto: onnx.ModelProto, *shapes: tuple[int, ...], tolerance: float = 2e-6) -> Plan:
    arrays = [values(*shape, seed=i) for i, shape in enumerate(shapes)]
    found, plan = computed(proto, *arrays)
    for got, wanted in zip(found, expected(proto, arrays), strict=True):
        assert got.shape == wanted.shape
        np.testing.assert_allclose(got, wanted, rtol=tolerance, atol=tolerance)
    return plan


def one(
    operator: str, tensors: dict[str, Any] | None = None, *, shape: Any = IMAGE, opset: int = 17, **more: Any
) -> Any:
    """A model of one node, of x and constants."""
    constants = {name: np.asarray(value) for name, value in (tensors or {}).items()}
    nodes = [node(operator, " ".join(["x", *constants]), "y", operator.lower(), **more)]
    made = [tensor(name, array) for name, array in constants.items()]
    return model(nodes, made, inputs=[info("x", shape)], opset=opset)


WINDOW = {"kernel_shape": [3, 2], "strides": [2, 2]}
HALF = np.array(0.5, np.float32)
NONE = {"r": np.zeros(0, np.float32)}
INTS = {"dtype": np.int64}
ONE = {
    "relu": one("Relu"),
    "clip": one("Clip", {"low": np.float32(-0.2), "high": np.float32(0.4)}),
    "clip of old": one("Clip", min=-0.1, max=0.2, opset=10),
    "leaky": one("LeakyRelu", alpha=0.1),
    "elu": one("Elu", alpha=0.7),
    "sigmoid": one("Sigmoid"),
    "tanh": one("Tanh"),
    "hard sigmoid": one("HardSigmoid", alpha=0.3, beta=0.4),
    "hard swish": one("HardSwish"),
    "gelu": one("Gelu", opset=20),
    "gelu tanh": one("Gelu", opset=20, approximate="tanh"),
    "mish": one("Mish", opset=18),
    "exp": one("Exp"),
    "abs": one("Abs"),
    "neg": one("Neg"),
    "max pool": one("MaxPool", **WINDOW),
    "max pool padded": one("MaxPool", **WINDOW, pads=[1, 0, 1, 1]),
    "max pool of three": one("MaxPool", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]),
    "max pool of two": one("MaxPool", kernel_shape=[2, 2], strides=[2, 1]),
    "max pool dilated": one("MaxPool", kernel_shape=[2, 2], dilations=[3, 2]),
    "max pool up": one("MaxPool", **WINDOW, ceil_mode=1),
    "max pool same": one("MaxPool", **WINDOW, auto_pad="SAME_UPPER"),
    "average pool": one("AveragePool", **WINDOW),
    "average pool padded": one("AveragePool", **WINDOW, pads=[1, 1, 1, 0]),
    "average pool counted": one("AveragePool", **WINDOW, pads=[1, 1, 1, 1], count_include_pad=1),
    "average pool up": one("AveragePool", **WINDOW, ceil_mode=1, opset=19),
    "average pool lower": one("AveragePool", **WINDOW, auto_pad="SAME_LOWER"),
    "pool of lines": one("MaxPool", shape=("N", 3, 21), kernel_shape=[3], strides=[2]),
    "global max": one("GlobalMaxPool"),
    "global average": one("GlobalAveragePool"),
    "mean": one("ReduceMean", axes=[2, 3], keepdims=0),
    "mean of new": one("ReduceMean", {"axes": np.array([-1])}, opset=18),
    "softmax": one("Softmax", axis=1),
    "softmax of the last": one("Softmax"),
    "softmax of old": one("Softmax", axis=1, opset=11),
    "log softmax": one("LogSoftmax", axis=2),
    "flatten": one("Flatten"),
    "reshape": one("Reshape", {"s": np.array([0, -1, 21])}),
    "rows": one("Reshape", {"s": np.array([-1, 7])}),
    "transpose": one("Transpose", perm=[0, 2, 3, 1]),
    "slice": one(
        "Slice", {"a": np.array([1, 7]), "b": np.array([9, 0]), "c": np.array([2, 3]), "d": np.array([2, -3])}
    ),
    "pad": one("Pad", {"p": np.array([0, 1, 2, 0, 0, 0, 1, 3]), "v": np.float32(0.5)}),
    "square": one("Pow", {"e": np.float32(2)}),
    "resize": one("Resize", NONE | {"c": np.array([1, 1, 2, 3], np.float32)}),
    "resize lines": one("Resize", NONE | {"c": np.array([1, 1, 1, 2], np.float32)}, nearest_mode="round_prefer_ceil"),
    "resize to a size": one(
        "Resize",
        NONE | {"c": np.zeros(0, np.float32), "d": np.array([3, 3, 18, 28])},
        shape=(3, 3, 9, 7),
        coordinate_transformation_mode="asymmetric",
        nearest_mode="floor",
        antialias=0,
        keep_aspect_ratio_policy="stretch",
        opset=18,
    ),
    "add a number": one("Add", {"c": np.float32(2)}),
    "scale channels": one("Mul", {"c": values(3, 1, 1)}),
    "add rows": one("Add", {"c": values(7)}),
    "divide": one("Div", {"c": values(1, 3, 9, 7) + 4}),
    "gemm": one("Gemm", {"w": values(5, 40), "b": values(5)}, shape=("N", 40), transB=1, alpha=0.5, beta=2.0),
    "matmul": one("MatMul", {"w": values(7, 33)}),
    "norm": one("BatchNormalization", {"a": values(3), "b": values(3), "m": values(3), "v": values(3) ** 2 + 0.1}),
}


@pytest.mark.parametrize("name", ONE)
def test_an_operator_computes_what_onnxruntime_does(name: str) -> None:
    proto = ONE[name]
    shape = [3 if each.dim_param else each.dim_value for each in proto.graph.input[0].type.tensor_type.shape.dim]
    check(proto, tuple(shape))


def test_a_variance_below_zero_gives_nan_without_a_warning() -> None:
    numbers = dict.fromkeys("abm", values(3)) | {"v": np.array([-1, 1, 1], np.float32)}
    [found], _ = computed(one("BatchNormalization", numbers), values(2, 3, 9, 7))
    assert np.isnan(found).all(axis=(0, 2, 3)).tolist() == [True, False, False]


def two(*nodes: Any, tensors: Any = (), x: Any = IMAGE, z: Any = IMAGE) -> onnx.ModelProto:
    return model(nodes, tensors, inputs=[info("x", x), info("z", z)])


def test_tensors_are_concatenated_beside_each_other() -> None:
    proto = two(node("Relu", "x", "a"), node("Concat", "a z x", "y", axis=1), z=("N", 2, 9, 7))
    check(proto, (2, 3, 9, 7), (2, 2, 9, 7))


def test_channels_are_scaled_by_numbers_that_the_network_computes() -> None:
    proto = two(node("Sigmoid", "z", "a"), node("Mul", "x a", "y"), z=("N", 3, 1, 1))
    check(proto, (2, 3, 9, 7), (2, 3, 1, 1))


def test_a_split_gives_each_part() -> None:
    nodes = [node("Split", "x", "a b", axis=2, num_outputs=2), node("Concat", "b a", "y", axis=2)]
    check(model(nodes, inputs=[info("x", IMAGE)], opset=18), (2, 3, 9, 7))


def test_a_shape_that_the_network_computes_is_followed() -> None:
    nodes = [
        node("Shape", "x", "s"),
        node("Gather", "s zero", "n", axis=0),
        node("Unsqueeze", "n axes", "u"),
        node("Concat", "u rest", "t", axis=0),
        node("Reshape", "x t", "y"),
    ]
    tensors = [tensor("zero", np.array(0)), tensor("axes", np.array([0])), tensor("rest", np.array([-1]))]
    check(model(nodes, tensors, inputs=[info("x", IMAGE)]), (2, 3, 9, 7))


def test_outputs_may_be_inputs_and_each_other() -> None:
    nodes = [node("Flatten", "x", "y"), node("Relu", "x", "a"), node("Flatten", "a", "b")]
    proto = model(nodes, inputs=[info("x", IMAGE)])
    proto.graph.output.extend([info("a", None), info("b", None)])
    check(proto, (2, 3, 9, 7))


def test_a_network_for_one_image_takes_one() -> None:
    proto = one("Reshape", {"s": np.array([1, -1])}, shape=(1, 3, 9, 7))
    assert check(proto, (1, 3, 9, 7)).images == 1
    with pytest.raises(UsageError, match="2 images, but the ONNX file fixes the batch size at 1"):
        computed(proto, values(2, 3, 9, 7))


def test_buffers_are_used_again() -> None:
    nodes = [node("Relu", "x", "a0"), *(node("Neg", f"a{i}", f"a{i + 1}") for i in range(9)), node("Abs", "a9", "y")]
    plan = check(model(nodes, inputs=[info("x", IMAGE)]), (2, 3, 9, 7))
    assert plan.buffers == (768, 768)  # 3 x 9 x 7 floats, rounded up


def test_a_constant_is_stored_once_and_aligned() -> None:
    nodes = [node("Add", "x a", "b"), node("Mul", "b c", "d"), node("Sub", "d e", "y")]
    tensors = [tensor("a", values(7)), tensor("c", values(3, 1, 1)), tensor("e", values(7))]
    proto = model(nodes, tensors, inputs=[info("x", IMAGE)])
    check(proto, (2, 3, 9, 7))
    assert len(plan_network(read_network(proto.SerializeToString()), {}).constants) == 256 + 12


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_elements_may_be_of_half_the_size(dtype: Any) -> None:
    x = values(2, 3, 9, 7).astype(dtype)
    nodes = [node("Softmax", "x", "s", axis=1), node("MaxPool", "s", "y", kernel_shape=[2, 2])]
    proto = model(nodes, inputs=[info("x", IMAGE, onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))])
    [found], _ = computed(proto, x)
    assert found.dtype == dtype
    [wanted] = expected(one("Identity"), [x.astype(np.float32)])
    exponential = np.exp(wanted)
    pooled = exponential / exponential.sum(1, keepdims=True)
    largest = np.max([pooled[:, :, i : i + 8, j : j + 6] for i in (0, 1) for j in (0, 1)], axis=0)
    np.testing.assert_allclose(found, largest, rtol=1e-3 if dtype == np.float16 else 2e-6)


REFUSED = {
    "GridSample, NonZero": model([node("NonZero", "x", "a"), node("GridSample", "x z", "y")]),
    "along the images": one("Softmax", axis=0),
    "of the images with something else": one("Transpose", perm=[1, 0, 2, 3]),
    "its window is larger than the image": one("MaxPool", kernel_shape=[10, 10]),
    "has open sizes": one("Relu", shape=("N", 3, "H", "W")),
    "the input z is one number: fix it with --input-value z=NUMBER": model(
        [node("Mul", "x z", "y")], inputs=[info("x", IMAGE), info("z", ())]
    ),
    "with several outputs": model([node("MaxPool", "x", "y i", kernel_shape=[2, 2])]),
    "treats an image differently by": one("Reshape", {"s": np.array([480, -1])}, shape=("N", 2, 9, 7)),
    "y does not have the images as its first size": one("Reshape", {"s": np.array([7, -1])}),
    "quantized otherwise": model(
        [node("QuantizeLinear", "x s", "q"), node("DequantizeLinear", "q t", "y")],
        [tensor("s", np.float32(0.5)), tensor("t", np.float32(0.25))],
    ),
    "with zero points of 8 bits for each channel": one("QuantizeLinear", {"s": values(3), "z": np.zeros(3, np.int8)}),
    "y is no tensor of floats": one("QuantizeLinear", {"s": np.float32(0.5)}),
    "with anything but the nearest element": one(
        "Resize", NONE | {"c": np.array([1, 1, 2, 2], np.float32)}, mode="linear"
    ),
    "Resize resize .with anything but": one(
        "Resize",
        NONE | {"c": np.zeros(0, np.float32), "d": np.array([3, 3, 18, 28])},
        shape=(3, 3, 9, 7),
        keep_aspect_ratio_policy="not_larger",
        opset=18,
    ),
    "to the power of 3": one("Pow", {"e": np.float32(3)}),
    "a whole number of times": one("Resize", NONE | {"c": np.array([1, 1, 1.5, 2], np.float32)}),
    "without constant scales": one("Resize", NONE | {"c": np.zeros(0, np.float32)}),
    "for each image": one("Add", {"c": values(240, 1, 1, 1)}),
}


@pytest.mark.parametrize("divisor", [1, 1000])
def test_a_network_that_computes_with_the_number_of_images_is_refused(divisor: int) -> None:
    nodes = [
        *[node("Shape", "x", "s"), node("Gather", "s zero", "n"), node("Div", "n divisor", "d")],
        *[node("Cast", "d", "f", to=1), node("Add", "x f", "y")],
    ]
    numbers = [tensor("zero", np.array([0])), tensor("divisor", np.array([divisor]))]
    proto = model(nodes, numbers, inputs=[info("x", IMAGE)])
    with pytest.raises(UsageError, match="treats an image differently by"):
        plan_network(read_network(proto.SerializeToString()), {})


@pytest.mark.parametrize("why", REFUSED)
def test_an_unsupported_operator_is_named_in_the_error(why: str) -> None:
    with pytest.raises(UsageError, match=f"{why}.*"):
        plan_network(read_network(REFUSED[why].SerializeToString()), {})


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((2, 3, 9), r"the input 'x' has shape \[2, 3, 9\], expected \[N, 3, 9, 7\]"),
        ((2, 3, 9, 8), r"has shape \[2, 3, 9, 8\]"),
    ],
)
def test_arrays_that_the_network_does_not_take_are_refused(shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        computed(one("Relu"), values(*shape))
    with pytest.raises(UsageError, match="the input 'x' has type float64, expected float32"):
        computed(one("Relu"), values(*shape).astype(np.float64))


def test_outputs_that_are_no_images_are_refused() -> None:
    for proto in (
        one("Flatten", shape=(2, 3, 9, 7), axis=0),
        one("Unsqueeze", {"axes": np.array([0])}, shape=(2, 3, 9, 7)),
    ):
        with pytest.raises(
            UsageError, match=r"y does not have the images as its first size: use farm run or farm.torch"
        ):
            computed(proto, values(2, 3, 9, 7))


def test_a_mask_that_the_model_gives_is_refused() -> None:
    proto = model([node("Dropout", "x", "y")], inputs=[info("x", IMAGE)])
    proto.graph.node[0].output.append("mask")
    proto.graph.output.append(info("mask", None, onnx.TensorProto.BOOL))
    with pytest.raises(UsageError, match=r"does not compute the output mask: use farm run or farm.torch"):
        computed(proto, values(2, 3, 9, 7))


def test_every_operator_is_tried() -> None:
    tried = {each.op_type for proto in ONE.values() for each in proto.graph.node}
    elsewhere = {"Concat", "Split", "Identity", "Dropout", "Cast", "Squeeze", "Unsqueeze"}
    elsewhere |= {"QuantizeLinear", "DequantizeLinear", "Sum", "Sub", "Max", "Min", "Sqrt", "Swish"}
    assert set(OPERATORS) == tried | elsewhere


def test_swish_is_computed() -> None:
    proto = one("Swish", alpha=1.5, opset=24)
    x = values(2, 3, 9, 7)
    [found], _ = computed(proto, x)
    np.testing.assert_allclose(found, x / (1 + np.exp(-1.5 * x)), rtol=2e-6)


def quantized(zero: Any) -> onnx.ModelProto:
    """x rounded to 8 bits, with a Reshape between the two nodes."""
    nodes = [node("QuantizeLinear", "x s z", "q"), node("Flatten", "q", "f"), node("DequantizeLinear", "f s z", "y")]
    return model(nodes, [tensor("s", np.float32(0.013)), tensor("z", zero)], inputs=[info("x", IMAGE)])


MORE = [
    (quantized(np.uint8(112)), ((2, 3, 9, 7),)),
    (quantized(np.int8(-3)), ((2, 3, 9, 7),)),
    (two(node("Sum", "x z x", "a"), node("Sub", "a z", "y")), ((2, 3, 9, 7), (2, 3, 9, 7))),
    (two(node("Max", "x z", "a"), node("Min", "a x", "y")), ((2, 3, 9, 7), (2, 3, 9, 7))),
    (
        two(node("Abs", "x", "a"), node("Pow", "a e", "b"), node("Add", "b z", "y"), tensors=[tensor("e", HALF)]),
        ((2, 3, 9, 7), (2, 3, 9, 7)),
    ),
    (two(node("Abs", "x", "a"), node("Sqrt", "a", "b"), node("Add", "b z", "y")), ((2, 3, 9, 7), (2, 3, 9, 7))),
    (
        two(
            node("GlobalAveragePool", "x", "a"),
            node("Squeeze", "a last", "b"),
            node("Unsqueeze", "b last", "c"),
            node("Dropout", "c", "d"),
            node("Cast", "d", "e", to=1),
            node("Mul", "z e", "y"),
            tensors=[tensor("last", np.array([2, 3]))],
        ),
        ((2, 3, 9, 7), (2, 3, 9, 7)),
    ),
]


@pytest.mark.parametrize("number", range(len(MORE)))
def test_several_operators_compute_what_onnxruntime_does(number: int) -> None:
    proto, shapes = MORE[number]
    check(proto, *shapes)

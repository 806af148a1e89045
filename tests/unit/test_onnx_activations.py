"""ONNX reader: activations after a layer, as one node or as patterns of several nodes."""

from __future__ import annotations

from math import pi, sqrt
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from codegen.ir.layer_spec import AddResidual, Clip, Gelu, HardSigmoid, HardSwish, Mish, Sigmoid, Step, Swish, Tanh
from tests.unit.onnx_models import assert_layer_computes_its_output, constants, info, layer_of, model, node, values

SQUARE = values(3, 3, 3, 3)
SIXTH = float(np.float32(1 / 6))
HARD_SWISH = HardSwish(SIXTH, 0.5)


def after_conv(*nodes: onnx.NodeProto, opset: int = 22, **arrays: Any) -> onnx.ModelProto:
    inputs = [info(name, ("N", 3, 8, 8)) for name in "xr"]
    conv = node("Conv", "x w", "c", "conv", pads=[1, 1, 1, 1])
    return model([conv, *nodes], constants(**{"w": SQUARE, **arrays}), inputs=inputs, opset=opset)


def written(text: str) -> list[onnx.NodeProto]:
    """Nodes from text: `OUTPUT = OPERATOR INPUTS`, separated by semicolons."""
    found = []
    for line in text.split(";"):
        output, _, rest = line.strip().partition(" = ")
        operator, *inputs = rest.split()
        found.append(node(operator, " ".join(inputs), output))
    return found


TWO, HALF = {"two": 2.0}, {"half": 0.5}
GELU = {"root": sqrt(2), "one": 1.0, "half": 0.5}
GELU_BY_TANH = {"three": 3.0, "cubic": 0.044715, "factor": sqrt(2 / pi), "one": 1.0, "half": 0.5}

CHAINS: dict[str, tuple[str, dict[str, Any], Step]] = {
    "sigmoid": ("y = Sigmoid c", {}, Sigmoid()),
    "tanh": ("y = Tanh c", {}, Tanh()),
    "SiLU": ("s = Sigmoid c; y = Mul c s", {}, Swish()),
    "SiLU, the other way round": ("s = Sigmoid c; y = Mul s c", {}, Swish()),
    "SiLU, the sum passed on": ("i = Identity c; s = Sigmoid c; y = Mul i s", {}, Swish()),
    "QuickGELU": ("m = Mul c k; s = Sigmoid m; y = Mul c s", {"k": 1.702}, Swish(float(np.float32(1.702)))),
    "GELU, by torch": ("d = Div c root; e = Erf d; a = Add e one; m = Mul c a; y = Mul m half", GELU, Gelu()),
    "GELU, halved first": ("h = Mul half c; d = Div c root; e = Erf d; a = Add one e; y = Mul h a", GELU, Gelu()),
    "GELU, the factor halved": (
        "m = Mul c root; e = Erf m; a = Add e one; h = Mul a half; y = Mul c h", {**GELU, "root": sqrt(0.5)}, Gelu()
    ),
    "GELU by tanh, with powers": (
        "p = Pow c three; q = Mul p cubic; s = Add c q; f = Mul s factor; t = Tanh f; a = Add t one; m = Mul c a; "
        "y = Mul m half", GELU_BY_TANH, Gelu("tanh")
    ),
    "GELU by tanh, with products": (
        "h = Mul half c; p = Mul c c; q = Mul p c; r3 = Mul cubic q; s = Add c r3; f = Mul factor s; t = Tanh f; "
        "a = Add one t; y = Mul h a", GELU_BY_TANH, Gelu("tanh")
    ),
    "GELU by tanh, factored": (
        "f = Mul c factor; k = Mul c cubic; p = Mul k c; o = Add one p; g = Mul f o; t = Tanh g; a = Add one t; "
        "h = Mul c half; y = Mul h a", GELU_BY_TANH, Gelu("tanh")
    ),
    "Mish": ("s = Softplus c; t = Tanh s; y = Mul c t", {}, Mish()),
    "hard swish": ("h = HardSwish c; y = Identity h", {}, HARD_SWISH),
    "hard swish of torch before opset 14": (
        "a = Add c three; b = Clip a zero six; m = Mul c b; y = Div m six", {"three": 3.0, "zero": 0.0, "six": 6.0},
        HARD_SWISH,
    ),
    "hard swish by a sixth": (
        "a = Add c three; b = Clip a zero six; d = Mul b sixth; y = Mul d c",
        {"three": 3.0, "zero": 0.0, "six": 6.0, "sixth": 1 / 6}, HARD_SWISH,
    ),
    "hard sigmoid of torch before opset 14": (
        "a = Add c three; b = Clip a zero six; y = Div b six", {"three": 3.0, "zero": 0.0, "six": 6.0},
        HardSigmoid(SIXTH, 0.5),
    ),
    "GELU, its exponent a whole number": (
        "p = Pow c three; q = Mul p cubic; s = Add c q; f = Mul s factor; t = Tanh f; a = Add t one; m = Mul c a; "
        "y = Mul m half", {**GELU_BY_TANH, "three": np.array(3, np.int64)}, Gelu("tanh")
    ),
}  # fmt: skip


def assert_step(tmp_path: Path, proto: onnx.ModelProto, *steps: Step) -> None:
    layer = layer_of(tmp_path, proto)
    assert layer.spec.epilogue == steps
    assert layer.output == "y"
    assert len(layer.folded) == len(proto.graph.node) - 1
    assert_layer_computes_its_output(layer, proto, x=values(2, 3, 8, 8, seed=2), r=values(2, 3, 8, 8, seed=3))


@pytest.mark.parametrize("name", CHAINS)
def test_a_chain_of_nodes_becomes_the_activation_that_it_computes(name: str, tmp_path: Path) -> None:
    text, arrays, step = CHAINS[name]
    assert_step(tmp_path, after_conv(*written(text), **arrays), step)


OPERATORS: list[tuple[onnx.NodeProto, Step]] = [
    (node("HardSigmoid", "c", "y"), HardSigmoid(float(np.float32(0.2)), 0.5)),
    (node("HardSigmoid", "c", "y", alpha=0.25, beta=0.375), HardSigmoid(0.25, 0.375)),
    (node("Gelu", "c", "y"), Gelu()),
    (node("Gelu", "c", "y", approximate="none"), Gelu()),
    (node("Gelu", "c", "y", approximate="tanh"), Gelu("tanh")),
    (node("Mish", "c", "y"), Mish()),
]


@pytest.mark.parametrize(("written_as", "step"), OPERATORS, ids=str)
def test_an_operator_becomes_its_activation(written_as: onnx.NodeProto, step: Step, tmp_path: Path) -> None:
    assert_step(tmp_path, after_conv(written_as), step)


@pytest.mark.parametrize(("alpha", "step"), [({}, Swish()), ({"alpha": 2.0}, Swish(2.0))])
def test_the_operator_swish_has_a_slope_within(alpha: dict[str, float], step: Step, tmp_path: Path) -> None:
    proto = after_conv(node("Swish", "c", "y", **alpha), opset=24)  # which onnxruntime does not run
    assert layer_of(tmp_path, proto).spec.epilogue == (step,)


def test_a_hard_sigmoid_times_its_argument_is_one_step(tmp_path: Path) -> None:
    nodes = [node("HardSigmoid", "c", "s", alpha=SIXTH, beta=0.5), node("Mul", "c s", "y")]
    assert_step(tmp_path, after_conv(*nodes), HARD_SWISH)


def test_activations_stand_between_other_steps(tmp_path: Path) -> None:
    text = "k1 = Mul c k; s = Sigmoid k1; m = Mul k1 s; a = Add m r; t = Tanh a; y = Relu t"
    proto = after_conv(*written(text), k=values(3, 1, 1))
    assert_step(tmp_path, proto, Swish(), AddResidual(), Tanh(), Clip(low=0.0))


@pytest.mark.parametrize("data_type", [np.float16, "bfloat16"])
def test_the_constants_of_a_chain_may_be_rounded_to_its_type(data_type: Any, tmp_path: Path) -> None:
    import ml_dtypes

    dtype = ml_dtypes.bfloat16 if data_type == "bfloat16" else data_type
    element_type = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    for name in ("GELU, by torch", "GELU by tanh, with powers"):
        text, arrays, step = CHAINS[name]
        arrays = {"w": SQUARE, **arrays}
        tensors = constants(**{key: np.asarray(value, np.float32).astype(dtype) for key, value in arrays.items()})
        conv = node("Conv", "x w", "c", "conv", pads=[1, 1, 1, 1])
        proto = model([conv, *written(text)], tensors, inputs=[info("x", ("N", 3, 8, 8), element_type)], opset=22)
        assert layer_of(tmp_path, proto).spec.epilogue == (step,)


NOT_ACTIVATIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "the sigmoid is read elsewhere": ("s = Sigmoid c; m = Mul c s; y = Add m s", {}),
    "the sum is read elsewhere": ("s = Sigmoid c; m = Mul c s; e = Exp c; y = Add m e", {}),
    "the sigmoid of another tensor": ("s = Sigmoid r; y = Mul c s", {}),
    "a wrong constant": (CHAINS["GELU, by torch"][0], {**GELU, "root": 1.4}),
    "a quarter": (CHAINS["GELU, by torch"][0], {**GELU, "half": 0.25}),
    "a cubic sigmoid": ("p = Pow c k; s = Sigmoid p; y = Mul c s", {"k": 3.0}),
    "a root": ("p = Pow c k; s = Sigmoid p; y = Mul c s", {"k": 0.5}),
    "a quotient of sums": ("s = Sigmoid c; y = Div s c", {}),
    "by zero": ("d = Div c k; s = Sigmoid d; y = Mul c s", {"k": 0.0}),
    "by infinity": ("d = Mul c k; s = Sigmoid d; y = Mul c s", {"k": np.inf}),
    "by zero within": ("d = Mul c k; s = Sigmoid d; y = Mul c s", {"k": 0.0}),
    "a factor for each channel": ("d = Mul c k; s = Sigmoid d; y = Mul c s", {"k": values(3, 1, 1)}),
    "a factor of more dimensions": ("d = Mul c k; s = Sigmoid d; y = Mul c s", {"k": np.ones((1,) * 5, np.float32)}),
    "the product of two sigmoids": ("s = Sigmoid c; y = Mul s s", {}),
    "the square of it": ("s = Sigmoid c; m = Mul c s; y = Mul c m", {}),
    "a clip from below zero": ("a = Clip c low; m = Mul c a; y = Identity m", {"low": -1.0}),
}


@pytest.mark.parametrize("name", NOT_ACTIVATIONS)
def test_what_is_no_activation_stays_outside(name: str, tmp_path: Path) -> None:
    text, arrays = NOT_ACTIVATIONS[name]
    layer = layer_of(tmp_path, after_conv(*written(text), **arrays))
    steps = (Sigmoid(),) if name == "the product of two sigmoids" else ()
    assert (layer.spec.epilogue, layer.residual) == (steps, "")
    assert layer.output == ("s" if steps else "c")


@pytest.mark.parametrize("alpha", [np.inf, np.nan, 0.0])
def test_an_operator_whose_slope_is_no_number_stays_outside(alpha: float, tmp_path: Path) -> None:
    assert layer_of(tmp_path, after_conv(node("HardSigmoid", "c", "y", alpha=alpha))).output == "c"


def test_an_activation_that_is_a_model_output_ends_the_layer(tmp_path: Path) -> None:
    proto = after_conv(*written("s = Sigmoid c; m = Mul c s; y = Relu m"))
    proto.graph.output.append(info("s", None))
    assert layer_of(tmp_path, proto).output == "c"
    proto = after_conv(*written("s = Sigmoid c; m = Mul c s; y = Relu m"))
    proto.graph.output.append(info("m", None))
    assert layer_of(tmp_path, proto).output == "m"


def test_a_clip_between_zero_and_one_is_a_clip(tmp_path: Path) -> None:
    assert_step(tmp_path, after_conv(*written("y = Clip c l h"), l=0.0, h=1.0), Clip(0.0, 1.0))

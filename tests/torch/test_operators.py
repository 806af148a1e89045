"""Each operator that farm.torch runs beside compiled layers, on the cases that the onnx package tests backends with."""

from __future__ import annotations

import warnings
from dataclasses import replace
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install torch")

from codegen.frontend.onnx.export.network import Network, NetworkNode
from codegen.frontend.onnx.export.residual_graph import Tensor
from farm.errors import UsageError
from farm.torch.module import SEVERAL, module_of
from farm.torch.operators.table import OPERATORS

LEFT_OUT = (
    "resize_tf_crop",
    "resize_downsample_scales_cubic",
    "resize_downsample_sizes_cubic",
    "resize_upsample_scales_cubic",
    "resize_upsample_sizes_cubic",
    "antialias",
    "not_larger",
    "not_smaller",
    "axes_2_3",
    "axes_3_2",
    "half_pixel_symmetric",
    "training_dropout",
    "to_STRING",
    "from_STRING",
    "string",
    "training_mode",
    "empty_set",
    "peepholes",
    "seq_length",
    "reduce_max_bool",
    "reduce_min_bool",
    "attention_3d_local_window",
    "attention_bidirectional_window",
    "attention_local_window",
    "nonpad",
    "padded_kv",
    "past_and_present",
    "softcap",
    "softmax_precision",
)

ROUNDED = {"test_averagepool_2d_ceil_last_window_starts_on_pad"}
"""The package writes their outputs with four digits."""


def _cases() -> dict[str, Any]:
    from onnx.backend.test.case import node

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of casts that overflow, as they should
        for module in iter_modules(node.__path__):
            import_module(f"{node.__name__}.{module.name}")
    wanted = {}
    for case in node._NodeTestCases:
        nodes = case.model.graph.node
        known = len(nodes) == 1 and nodes[0].op_type in OPERATORS and nodes[0].domain == ""
        if known and not any(part in case.name for part in LEFT_OUT) and _has_plain_types(case.model):
            wanted[case.name] = case
    return wanted


def _has_plain_types(model: onnx.ModelProto) -> bool:
    plain = {1, 2, 3, 6, 7, 9, 10, 11}
    values = [*model.graph.input, *model.graph.output]
    return all(value.type.HasField("tensor_type") and value.type.tensor_type.elem_type in plain for value in values)


_ALL = _cases()
CASES = {
    name: each
    for name, each in _ALL.items()
    if len(each.model.graph.output) == 1 or each.model.graph.node[0].op_type in SEVERAL
}
WITH_MORE_OUTPUTS = {name: each for name, each in _ALL.items() if name not in CASES}
"""Masks, indices and statistics, of which farm.torch computes none."""


def network_of(model: onnx.ModelProto, constants: dict[str, np.ndarray]) -> Network:
    [node] = model.graph.node
    attributes: dict[str, Any] = {}
    for attribute in node.attribute:
        value = onnx.helper.get_attribute_value(attribute)
        if isinstance(value, onnx.TensorProto):
            value = numpy_helper.to_array(value)
        attributes[attribute.name] = value.decode() if isinstance(value, bytes) else value
    made = NetworkNode(node.op_type, node.name, tuple(node.input), tuple(node.output), attributes)
    inputs = tuple(Tensor(each.name, "", ()) for each in model.graph.input if each.name not in constants)
    outputs = tuple(Tensor(each.name, "", ()) for each in model.graph.output)
    return Network((made,), constants, inputs, outputs, model.opset_import[0].version, {})


@pytest.mark.parametrize("constant", [False, True], ids=["computed", "constant"])
@pytest.mark.parametrize("name", CASES)
def test_an_operator_computes_what_onnx_says(name: str, constant: bool) -> None:
    model = CASES[name].model
    for inputs, expected in CASES[name].data_sets:
        arrays = [numpy_helper.to_array(each) if isinstance(each, onnx.TensorProto) else each for each in inputs]
        wanted = [numpy_helper.to_array(each) if isinstance(each, onnx.TensorProto) else each for each in expected]
        given = dict(zip([each.name for each in model.graph.input], arrays, strict=True))
        constants = dict(list(given.items())[1:]) if constant else {}
        module = module_of(network_of(model, constants), {}, {})
        with torch.inference_mode():
            left = [value for each, value in given.items() if each not in constants]
            found = module(*(torch.from_numpy(np.array(value)) for value in left))
        outputs = found if isinstance(found, tuple) else (found,)
        for output, values in zip(outputs, wanted, strict=True):
            tolerance = 1e-3 if name in ROUNDED else 1e-2 if np.asarray(values).dtype == np.float16 else 1e-5
            np.testing.assert_allclose(output.numpy(), values, rtol=tolerance, atol=tolerance)
            assert output.shape == np.asarray(values).shape


@pytest.mark.parametrize("factor", [1.5, 2.0, 3.0])
@pytest.mark.parametrize("coordinates", ["asymmetric", "half_pixel", "pytorch_half_pixel", "align_corners"])
@pytest.mark.parametrize("nearest", ["floor", "ceil", "round_prefer_floor", "round_prefer_ceil"])
def test_the_nearest_element_is_onnxs_for_whole_factors_too(nearest: str, coordinates: str, factor: float) -> None:
    attributes = {"mode": "nearest", "nearest_mode": nearest, "coordinate_transformation_mode": coordinates}
    scales = np.array([1, 1, factor, 2], np.float32)
    resize = onnx.helper.make_node("Resize", ["x", "", "scales"], ["y"], **attributes)
    sizes = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in "xy"]
    graph = onnx.helper.make_graph(
        [resize], "resized", sizes[:1], sizes[1:], [numpy_helper.from_array(scales, "scales")]
    )
    x = np.random.default_rng(0).standard_normal((1, 2, 4, 6), np.float32)
    [wanted] = ReferenceEvaluator(onnx.helper.make_model(graph)).run(None, {"x": x})
    found = OPERATORS["Resize"](torch.from_numpy(x), None, scales.tolist(), **attributes)
    np.testing.assert_array_equal(found.numpy(), wanted)


@pytest.mark.parametrize("name", WITH_MORE_OUTPUTS)
def test_of_an_operator_with_more_outputs_the_first_is_right_and_the_others_are_refused(name: str) -> None:
    model = WITH_MORE_OUTPUTS[name].model
    network = network_of(model, {})
    with pytest.raises(UsageError, match=r"computes only the first output of \w+, and .*: use another runtime"):
        module_of(network, {}, {})
    module = module_of(replace(network, outputs=network.outputs[:1]), {}, {})
    for inputs, expected in WITH_MORE_OUTPUTS[name].data_sets:
        with torch.inference_mode():
            found = module(*(torch.from_numpy(np.array(each)) for each in inputs))
        np.testing.assert_allclose(found.numpy(), expected[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("operator", "attributes", "reason"),
    [
        ("Resize", {"mode": "cubic", "sizes": [1, 2, 4, 4]}, "does not support Resize with mode cubic"),
        ("Resize", {"sizes": [1, 2, 4, 4], "antialias": 1}, "Resize with axes, antialias or an aspect ratio policy"),
        (
            "Resize",
            {"sizes": [1, 2, 4, 4], "coordinate_transformation_mode": "tf_crop_and_resize"},
            "does not support Resize by tf_crop_and_resize",
        ),
        ("QuantizeLinear", {"output_dtype": 3}, "does not support QuantizeLinear with output_dtype"),
        ("Attention", {"softcap": 2.0}, "does not support Attention with softcap"),
    ],
)
def test_what_an_operator_does_not_run_is_an_error_with_the_way_out(
    operator: str, attributes: dict[str, Any], reason: str
) -> None:
    others = {"Attention": 2, "QuantizeLinear": 1}.get(operator, 0)
    with pytest.raises(UsageError, match=f"{reason}.*use another runtime"):
        OPERATORS[operator](torch.zeros(1, 2, 2, 2), *[torch.ones(())] * others, **attributes)


def test_resize_takes_the_name_of_the_default_policy() -> None:
    x = torch.arange(4.0).reshape(1, 1, 2, 2)
    found = OPERATORS["Resize"](x, None, None, [1, 1, 4, 2], keep_aspect_ratio_policy="stretch")
    assert torch.equal(found, x.repeat_interleave(2, 2))

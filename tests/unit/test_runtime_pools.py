"""Max pools with stride two have fast kernels, which compute what onnxruntime does."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

from codegen.frontend.onnx.export.network import read_network
from farm.runtime.emulated import run_emulated
from farm.runtime.plan import KernelStep
from farm.runtime.planner import plan_network
from tests.unit.onnx_models import info, model, node, values


def pooled(shape: tuple[int, ...], dtype: Any, **attributes: Any) -> tuple[NDArray[Any], NDArray[Any], list[str]]:
    """The outputs of the plan and of onnxruntime, and the kernels of the plan."""
    import onnxruntime

    x = values(*shape).astype(dtype)
    x[0, 0, 3, 5] = -np.inf
    kind = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    proto = model([node("MaxPool", "x", "y", **attributes)], inputs=[info("x", ("N", *shape[1:]), kind)], opset=17)
    planned = plan_network(read_network(proto.SerializeToString()), {})
    [found] = run_emulated(planned.plan, {}, planned.constants, [x])
    for value in (*proto.graph.input, *proto.graph.output):
        value.type.tensor_type.elem_type = onnx.TensorProto.FLOAT
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    [wanted] = session.run(None, {"x": x.astype(np.float32)})
    kernels = [step.kernel for step in planned.plan.steps if isinstance(step, KernelStep)]
    return found.astype(np.float32), wanted, kernels


TWO: dict[str, Any] = {"kernel_shape": [2, 2], "strides": [2, 2]}
THREE: dict[str, Any] = {"kernel_shape": [3, 3], "strides": [2, 2]}


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize(
    ("kernel", "shape", "attributes"),
    [
        ("max_pool_2x2", (2, 3, 8, 8), TWO),
        ("max_pool_2x2", (1, 2, 9, 16), TWO),
        ("max_pool_2x2", (1, 2, 7, 24), {**TWO, "ceil_mode": 1}),
        ("max_pool_3x3", (2, 3, 8, 8), {**THREE, "pads": [1, 1, 1, 1]}),
        ("max_pool_3x3", (1, 2, 11, 16), {**THREE, "pads": [1, 1, 1, 1]}),
        ("max_pool_3x3", (1, 5, 10, 16), {**THREE, "pads": [0, 1, 0, 1]}),
        ("max_pool_3x3", (1, 2, 8, 72), {**THREE, "pads": [1, 1, 1, 1]}),
    ],
)
def test_a_pool_with_stride_two_has_a_fast_kernel(
    kernel: str, shape: tuple[int, ...], attributes: Any, dtype: Any
) -> None:
    found, wanted, kernels = pooled(shape, dtype, **attributes)
    assert [each.rsplit("_", 1)[0] for each in kernels] == [kernel]
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize(
    ("shape", "attributes"),
    [
        ((1, 2, 8, 12), TWO),  # rows of six outputs
        ((1, 2, 8, 8), THREE),  # no column to the left
        ((1, 2, 8, 8), {**TWO, "pads": [0, 1, 0, 1]}),
        ((1, 2, 8, 8), {"kernel_shape": [2, 2], "strides": [1, 1]}),
        ((1, 2, 8, 8), {"kernel_shape": [3, 3], "strides": [2, 2], "dilations": [2, 2], "pads": [2, 2, 2, 2]}),
    ],
)
def test_other_pools_are_computed_window_by_window(shape: tuple[int, ...], attributes: Any) -> None:
    found, wanted, kernels = pooled(shape, np.float32, **attributes)
    assert kernels == ["max_pool_float32"]
    np.testing.assert_array_equal(found, wanted)


def test_nan_stays_nan() -> None:
    x = values(1, 1, 8, 8)
    x[0, 0, 2, 3] = np.nan
    proto = model([node("MaxPool", "x", "y", **TWO)], inputs=[info("x", ("N", 1, 8, 8))], opset=17)
    planned = plan_network(read_network(proto.SerializeToString()), {})
    [found] = run_emulated(planned.plan, {}, planned.constants, [x])
    assert np.argwhere(np.isnan(found)).tolist() == [[0, 0, 1, 1]]

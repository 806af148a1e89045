"""Tolerances of `verify --network` for a tensor, beside those of quantized networks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto

from farm.verify.onnxruntime_reference import ReferenceTensor, reference_tensors
from farm.verify.tensor_checks import check_tensor
from tests.unit.onnx_models import info, model, node, save, tensor


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_numbers_below_the_smallest_normal_one_may_be_off_as_if_they_were_it(dtype: type) -> None:
    smallest = np.finfo(dtype).smallest_subnormal
    wanted = ReferenceTensor(np.array([-30, 0, 30]).astype(dtype) * smallest)
    off = wanted.values + 15 * smallest
    assert check_tensor("y", "", off, wanted).ok
    off[0] = np.finfo(dtype).smallest_normal
    assert not check_tensor("y", "", off, wanted).ok


@pytest.mark.parametrize(("largest", "ok"), [(1.0, False), (100.0, True)])
def test_a_clipped_tensor_may_be_off_by_roundings_of_what_was_clipped(largest: float, ok: bool, tmp_path: Path) -> None:
    limits = [tensor(name, np.float16(limit)) for name, limit in (("low", -0.5), ("high", 0.5))]
    nodes = [node("Relu", "x", "r"), node("Clip", "r low high", "c"), node("Cast", "c", "y", to=TensorProto.FLOAT)]
    proto = model(nodes, limits, inputs=[info("x", (1, 1, 2, 2), TensorProto.FLOAT16)], output="y")
    x = np.array([largest, 0.25, 0.125, 0.0], np.float16).reshape(1, 1, 2, 2)
    [wanted] = reference_tensors(save(tmp_path, proto), {"x": x}, ["c"]).values()
    off = wanted.values + np.float16(0.1)
    assert check_tensor("c", "", off, wanted).ok is ok
    assert not check_tensor("c", "", wanted.values + np.float16(0.5), wanted).ok

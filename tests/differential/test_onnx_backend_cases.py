"""The onnx package's backend cases, weights made constants: each is right, or listed with why it is not run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

from codegen.errors import CheckpointError
from codegen.frontend.onnx.graph.quantized_operators import write_as_qdq
from codegen.frontend.onnx.reader import read_checkpoint
from tests.differential.backend_cases import BackendCase, backend_cases
from tests.differential.comparison import share
from tests.differential.evaluation import evaluate
from tests.differential.pipeline import ours

LEAST_CASES = 50
"""That run: were the package to ship its cases elsewhere, there would be none and nothing would fail."""

DEFORMABLE = "deformable convolutions are not compiled"
INTEGERS = "it computes on 8-bit integers"
INTEGERS_OPSET = 21
"""The first in which all cases on integers can be written in floats; some cases are older."""
SEVERAL_MATRICES = "are several matrices; only one is compiled"
THREE_DIMENSIONS = "it is a 3-D convolution"
TRANSPOSED_INPUT = "is multiplied by columns"

NOT_RUN = {
    "test_Conv3d": THREE_DIMENSIONS,
    "test_Conv3d_dilated": THREE_DIMENSIONS,
    "test_Conv3d_dilated_strided": THREE_DIMENSIONS,
    "test_Conv3d_groups": THREE_DIMENSIONS,
    "test_Conv3d_no_bias": THREE_DIMENSIONS,
    "test_Conv3d_stride": THREE_DIMENSIONS,
    "test_Conv3d_stride_padding": THREE_DIMENSIONS,
    "test_basic_deform_conv_with_padding": DEFORMABLE,
    "test_basic_deform_conv_without_padding": DEFORMABLE,
    "test_convinteger_with_padding": INTEGERS,
    "test_convinteger_without_padding": INTEGERS,
    "test_convtranspose_3d": THREE_DIMENSIONS,
    "test_convtranspose_output_shape": "more than its input gives, which programs compute differently",
    "test_deform_conv_with_mask_bias": DEFORMABLE,
    "test_deform_conv_with_multiple_offset_groups": DEFORMABLE,
    "test_gemm_all_attributes": TRANSPOSED_INPUT,
    "test_gemm_default_matrix_bias": "differ from row to row; only one row is compiled",
    "test_gemm_transposeA": TRANSPOSED_INPUT,
    "test_matmul_1d_3d": SEVERAL_MATRICES,
    "test_matmul_3d": SEVERAL_MATRICES,
    "test_matmul_4d": SEVERAL_MATRICES,
    "test_matmul_bcast": SEVERAL_MATRICES,
    "test_matmulinteger": INTEGERS,
}
"""By case, what `read_checkpoint` says of the node."""


ON_INTEGERS = [name for name in sorted(backend_cases()) if name.startswith("test_qlinear")]


def saved(case: BackendCase, folder: Path) -> Path:
    path = folder / f"{case.name}.onnx"
    path.write_bytes(case.model.SerializeToString())
    return path


@pytest.mark.parametrize("name", sorted(backend_cases().keys() - {*NOT_RUN, *ON_INTEGERS}))
def test_a_case_gives_the_output_that_the_package_expects(name: str, tmp_path: Path) -> None:
    case = backend_cases()[name]
    computed = ours(saved(case, tmp_path), case.inputs)
    assert computed.keys() >= case.expected.keys()  # more where a layer adds up what one before it computed
    exact = evaluate(case.model, case.inputs)
    for tensor, expected in case.expected.items():
        bound = computed[tensor].bound + exact[tensor].folding + exact[tensor].error
        assert share(computed[tensor].values, expected.astype(np.float64), bound) <= 1


@pytest.mark.parametrize("name", ON_INTEGERS)
def test_a_case_on_integers_is_computed_in_floats_and_is_a_rounding_off_at_most(name: str) -> None:
    case = backend_cases()[name]
    model = onnx.ModelProto.FromString(case.model.SerializeToString())
    model.opset_import[0].version = INTEGERS_OPSET
    write_as_qdq(model.graph, INTEGERS_OPSET)
    operators = {node.op_type for node in model.graph.node}
    assert (
        {"DequantizeLinear", "QuantizeLinear"} < operators <= {"DequantizeLinear", "QuantizeLinear", "Conv", "MatMul"}
    )
    computed = ReferenceEvaluator(model).run(None, case.inputs)
    for values, expected in zip(computed, case.expected.values(), strict=True):
        assert values.dtype == expected.dtype
        assert np.abs(values.astype(int) - expected.astype(int)).max() <= 1


@pytest.mark.parametrize("name", NOT_RUN)
def test_a_case_that_is_not_run_is_skipped_for_the_reason_listed(name: str, tmp_path: Path) -> None:
    path = saved(backend_cases()[name], tmp_path)
    try:
        said = "; ".join(skipped.reason for skipped in read_checkpoint(path, {}).skipped)
    except CheckpointError as error:
        said = str(error)
    assert NOT_RUN[name] in said


def test_the_package_has_the_cases() -> None:
    assert len(backend_cases().keys() - NOT_RUN.keys()) >= LEAST_CASES

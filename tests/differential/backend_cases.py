"""The cases of convolutions and matrix products that the onnx package ships to test backends with."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper, version_converter

OPERATORS = {
    "Conv",
    "ConvInteger",
    "ConvTranspose",
    "DeformConv",
    "Gemm",
    "MatMul",
    "MatMulInteger",
    "QLinearConv",
    "QLinearMatMul",
}
STORED_KINDS = ("simple", "pytorch-operator", "pytorch-converted")
OPSET = 13
"""Opset to which the stored models, of opset 6, are converted; `read_checkpoint` asks for it."""


@dataclass(frozen=True, eq=False)
class BackendCase:
    """A model whose first input alone is left to be given, that input, and the output that the package expects."""

    name: str
    model: onnx.ModelProto
    inputs: dict[str, NDArray[Any]]
    expected: dict[str, NDArray[Any]]


@cache
def backend_cases() -> dict[str, BackendCase]:
    """Every case with a node of these operators in it, by its name."""
    return {case.name: case for case in (*_node_cases(), *_stored_cases())}


def _node_cases() -> Iterator[BackendCase]:
    """Cases that the package computes: importing an operator's module adds its cases to a list."""
    from onnx.backend.test.case import node

    for operator in sorted(OPERATORS):
        import_module(f"onnx.backend.test.case.node.{operator.lower()}")
    for case in node._NodeTestCases:
        if _is_wanted(case.model):
            ((inputs, outputs),) = case.data_sets
            yield _case(case.name, case.model, inputs, outputs)


def _stored_cases() -> Iterator[BackendCase]:
    from onnx.backend.test.loader import load_model_tests

    for kind in STORED_KINDS:
        for case in load_model_tests(kind=kind):
            if case.model_dir is None:
                continue
            folder = Path(case.model_dir)
            model = onnx.load(folder / "model.onnx")
            if _is_wanted(model):
                model = version_converter.convert_version(model, OPSET)
                stored = folder / "test_data_set_0"
                yield _case(case.name, model, _arrays(stored, "input"), _arrays(stored, "output"))


def _is_wanted(model: onnx.ModelProto) -> bool:
    return any(node.op_type in OPERATORS for node in model.graph.node)


def _arrays(folder: Path, what: str) -> list[NDArray[Any]]:
    paths = [folder / f"{what}_{i}.pb" for i in range(len(list(folder.glob(f"{what}_*.pb"))))]
    return [numpy_helper.to_array(onnx.load_tensor(path)) for path in paths]


def _case(name: str, model: onnx.ModelProto, inputs: list[Any], outputs: list[Any]) -> BackendCase:
    """All inputs but the first become constants: the cases give weights as inputs."""
    constants = {tensor.name for tensor in model.graph.initializer}
    given = [value for value in model.graph.input if value.name not in constants]
    arrays = {value.name: np.asarray(array) for value, array in zip(given, inputs, strict=True)}
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    changed.graph.ClearField("input")
    changed.graph.input.append(given[0])
    changed.graph.initializer.extend(numpy_helper.from_array(arrays[each.name], each.name) for each in given[1:])
    expected = {value.name: np.asarray(array) for value, array in zip(model.graph.output, outputs, strict=True)}
    return BackendCase(name, changed, {given[0].name: arrays[given[0].name]}, expected)

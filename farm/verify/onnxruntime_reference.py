"""Reference results of onnxruntime for whole networks."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codegen.frontend.onnx.export.intermediate_outputs import with_intermediate_outputs
from codegen.frontend.onnx.export.residual_graph import Tensor, inputs_of
from farm.errors import UsageError
from farm.runtime.onnxruntime_session import OnnxRuntimeError, Session


@dataclass(frozen=True)
class ReferenceTensor:
    """A tensor as onnxruntime computes it."""

    values: NDArray[Any]
    quantized: bool = False
    """Whether the model rounds activations to integers."""
    roundings_of_one: float = 0.0
    """Allowed error of each element, however small, in roundings of a result near 1."""


def reference_tensors(
    model: Path | str,
    inputs: Mapping[str, NDArray[Any]],
    names: Collection[str],
    values: Mapping[str, float] | None = None,
) -> dict[str, ReferenceTensor]:
    """Computes the named tensors of a model on the CPU, in the model's order. Raises UsageError and CheckpointError.

    `values` are those of further inputs, whose elements are all equal.
    """
    observed = with_intermediate_outputs(model, names, {name: array.shape for name, array in inputs.items()})
    outputs = (*observed.tensors, *observed.operands.values())
    try:
        session, given = Session(observed.data), {**inputs, **_filled(observed.data, values or {})}
        if missing := [name for name in session.inputs if name not in given]:
            raise UsageError(f"the compiled network lacks the input {missing[0]}: give it with --input-value")
        computed = dict(zip(outputs, session.run(outputs, given), strict=True))
    except OnnxRuntimeError as error:
        raise UsageError(
            f"onnxruntime cannot run {model} ({error}), and so there is nothing to compare: correct the model, or "
            "leave out --network, which checks each layer by itself"
        ) from None
    largest = {name: _largest(computed[output]) for name, output in observed.operands.items()}
    roundings = observed.roundings_of_one(largest)
    return {
        name: ReferenceTensor(computed[name], observed.quantized, roundings.get(name, 0.0)) for name in observed.tensors
    }


def _largest(values: NDArray[Any]) -> float:
    """The largest finite magnitude."""
    magnitudes = np.abs(values.astype(np.float64))
    return float(np.max(magnitudes, initial=0.0, where=np.isfinite(magnitudes)))


def _filled(model: bytes, values: Mapping[str, float]) -> dict[str, NDArray[Any]]:
    """Arrays of equal elements for inputs of a model. Raises UsageError for an input that it lacks."""
    inputs = {each.name: each for each in inputs_of(model)} if values else {}
    if missing := values.keys() - inputs.keys():
        raise UsageError(f"--input-value {min(missing)}: the model has no such input, only {', '.join(inputs)}")
    return {name: np.full(_sizes(inputs[name]), value, inputs[name].dtype) for name, value in values.items()}


def _sizes(tensor: Tensor) -> list[int]:
    return [each if isinstance(each, int) else 1 for each in tensor.shape]

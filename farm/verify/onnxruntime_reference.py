"""Reference results of onnxruntime for whole networks."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from codegen.frontend.onnx.export.intermediate_outputs import with_intermediate_outputs
from farm.errors import UsageError
from farm.extras import way_out


@dataclass(frozen=True)
class ReferenceTensor:
    """A tensor as onnxruntime computes it."""

    values: NDArray[Any]
    operator: str
    """The ONNX operator that computes it."""


def reference_tensors(
    model: Path | str, inputs: Mapping[str, NDArray[Any]], names: Collection[str]
) -> dict[str, ReferenceTensor]:
    """Computes the named tensors of a model on the CPU, in the model's order. Raises UsageError and CheckpointError."""
    try:
        import onnxruntime
    except ImportError as error:
        raise UsageError(
            f"networks are compared with onnxruntime, which cannot be imported ({error}): {way_out('reference')}"
        ) from None
    data, found = with_intermediate_outputs(model, names)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    try:
        session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
        computed = session.run(list(found), dict(inputs))
    except Exception as error:  # noqa: BLE001 - onnxruntime's own, which have no common class
        raise UsageError(
            f"onnxruntime cannot run {model} ({' '.join(str(error).split())}), and so there is nothing to compare: "
            "correct the model, or leave out --network, which checks each layer by itself"
        ) from None
    return {
        name: ReferenceTensor(values, operator)
        for (name, operator), values in zip(found.items(), computed, strict=True)
    }

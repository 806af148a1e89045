"""A drawn layer computed three ways, and whether they agree: by generated code, by onnxruntime and in float64."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from farm.verify.onnxruntime_reference import reference_tensors
from farm.verify.tensor_checks import check_tensor, is_quantized
from tests.differential.drawn_layers import DrawnLayer
from tests.differential.evaluation import evaluate
from tests.differential.pipeline import Output, ours
from tests.differential.runtime import run_onnxruntime
from tests.differential.window import Float64Array

Pipeline = Callable[[Path, Mapping[str, NDArray[Any]], str, float], dict[str, Output]]


@dataclass(frozen=True)
class Agreement:
    """The largest difference of any output as a share of what it may be: at most 1 is right, and NaN is not."""

    tensor: str
    """The tensor compared: the model's output, or the tensor before the first node that the layer does not compute."""
    of_reference: float
    """Generated code and float64."""
    of_onnxruntime: float | None
    """Generated code and onnxruntime; None where onnxruntime does not run the model."""
    of_verification: float | None
    """Generated code and onnxruntime, as `farm verify --network` compares them."""
    between_others: float | None
    """onnxruntime and float64: were it more than 1, the test and not the generated code would be wrong."""

    @property
    def worst(self) -> float:
        """Largest error of the generated code as a share of its bound."""
        return self.of_reference if self.of_onnxruntime is None else max(self.of_reference, self.of_onnxruntime)

    @property
    def ok(self) -> bool:
        shares = self.of_reference, self.of_onnxruntime, self.of_verification, self.between_others
        return all(each is None or each <= 1 for each in shares)


def agreement(layer: DrawnLayer, pipeline: Pipeline = ours) -> Agreement:
    """Runs a layer all ways. Raises CheckpointError, TilingError and whatever else the pipeline does."""
    model, inputs = layer.model, layer.inputs
    with TemporaryDirectory(prefix="drawn-layer-") as folder:
        path = Path(folder, "layer.onnx")
        path.write_bytes(model.SerializeToString())
        computed = pipeline(path, inputs, layer.geometry.virtual_arch, layer.place)
        ((name, output),) = computed.items()
        verified = _verified(path, inputs, name, output) if layer.geometry.runs_in_onnxruntime else None
    exact = evaluate(model, inputs)[name]
    bound = output.bound + exact.folding + (exact.error if exact.jumps else 0.0)
    if not layer.geometry.runs_in_onnxruntime:
        return Agreement(name, share(output.values, exact.value, bound), None, None, None)
    theirs = run_onnxruntime(model, inputs)[name].astype(np.float64)
    return Agreement(
        name,
        share(output.values, exact.value, bound),
        share(output.values, theirs, bound + exact.error),
        verified,
        share(theirs, exact.value, exact.error),
    )


def _verified(path: Path, inputs: Mapping[str, NDArray[Any]], name: str, output: Output) -> float:
    """The largest difference as a share of what `farm verify --network` tolerates."""
    wanted = reference_tensors(path, inputs, {name, *(node.output[0] for node in onnx.load(path).graph.node)})
    values = output.values.astype(wanted[name].values.dtype)
    return check_tensor(name, "", values, wanted[name], quantized=is_quantized(wanted)).tolerance_share


def share(values: Float64Array, others: Float64Array, bound: Float64Array) -> float:
    """The largest difference over its bound; NaN if a value is not finite, a shape differs or a bound says nothing."""
    if values.shape != others.shape or not (np.isfinite(values) & np.isfinite(others) & np.isfinite(bound)).all():
        return float("nan")
    difference = np.abs(values - others)
    with np.errstate(divide="ignore", invalid="ignore"):
        return float(np.max(np.where(difference == 0, 0.0, difference / bound), initial=0.0))

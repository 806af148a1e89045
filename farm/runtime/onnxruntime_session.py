"""Models run by onnxruntime on the CPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from numpy.typing import NDArray

from farm.errors import UsageError
from farm.extras import way_out


class OnnxRuntimeError(Exception):
    """onnxruntime refuses a model or its inputs. The message is its reason, in one line."""


class Session:
    """A model in onnxruntime, on the CPU."""

    def __init__(self, model: bytes) -> None:
        """Raises UsageError without onnxruntime, OnnxRuntimeError for a model that it does not run."""
        try:
            import onnxruntime
        except ImportError as error:
            raise UsageError(f"onnxruntime cannot be imported ({error}): {way_out('reference')}") from None
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        try:
            self._session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # noqa: BLE001 - onnxruntime's own, which have no common class
            raise OnnxRuntimeError(" ".join(str(error).split())) from None

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the inputs that the model must be given."""
        return tuple(each.name for each in self._session.get_inputs())

    def run(self, outputs: Sequence[str], inputs: Mapping[str, NDArray[Any]]) -> list[NDArray[Any]]:
        """The named outputs. Raises OnnxRuntimeError."""
        try:
            return list(self._session.run(list(outputs), dict(inputs)))
        except Exception as error:  # noqa: BLE001 - onnxruntime's own, which have no common class
            raise OnnxRuntimeError(" ".join(str(error).split())) from None

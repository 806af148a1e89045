"""Why a node is not compiled: in words, or because a size is missing."""

from __future__ import annotations

from codegen.ir.layer_spec import DataType

DATA_TYPES: tuple[DataType, ...] = ("float32", "float16", "bfloat16")

_INTEGERS = f"it computes on 8-bit integers; only {', '.join(DATA_TYPES)} are compiled"
_OPTIMISED = "it was made by onnxruntime's optimiser; give the model as it was before"
_RECURRENT = "recurrent layers are not compiled, only convolutions and fully connected layers are"

NOT_COMPILED = {
    "ConvInteger": _INTEGERS,
    "MatMulInteger": _INTEGERS,
    "QGemm": _INTEGERS,
    "QLinearConv": _INTEGERS,
    "QLinearMatMul": _INTEGERS,
    "FusedConv": _OPTIMISED,
    "FusedGemm": _OPTIMISED,
    "FusedMatMul": _OPTIMISED,
    "DeformConv": "deformable convolutions are not compiled",
    "Einsum": "it is an einsum; only MatMul and Gemm are compiled: export it as one of them",
    "GRU": _RECURRENT,
    "LSTM": _RECURRENT,
    "RNN": _RECURRENT,
}
"""Operators that carry weights beside those that are compiled, and why they are skipped."""


class UnsupportedError(Exception):
    """Why a node is not compiled: the kind of cause in a few words, equal for equal causes; and all of it."""

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(reason)
        self.kind = kind


UNKNOWN_SIZE = "input size not known"
"""The kind of cause of an UnknownSizeError."""


class UnknownSizeError(Exception):
    """Height or width of the input is not known before the model runs."""


def compiled_type(element_type: str, whose: str) -> DataType:
    """The data type of that name, of what `its weights are`. Raises UnsupportedError for one that is not compiled."""
    if element_type not in DATA_TYPES:
        raise UnsupportedError(
            "type not compiled", f"its {whose} {element_type}; only {', '.join(DATA_TYPES)} are compiled"
        )
    return element_type

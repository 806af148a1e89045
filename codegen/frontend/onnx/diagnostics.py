"""Diagnostics: reasons why a node is not compiled, as exceptions and texts."""

from __future__ import annotations

from codegen.ir.layer_spec import DataType

DATA_TYPES: tuple[DataType, ...] = ("float32", "float16", "bfloat16")

_INTEGERS = (
    "it computes on 8-bit integers, which is not compiled; quantize the model in QDQ format, with QuantizeLinear and "
    "DequantizeLinear around its layers"
)
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
"""Operators with weights that are never compiled, with the reason."""


class UnsupportedError(Exception):
    """A node that is not compiled: the full reason, and its `kind` in a few words, by which reports group nodes."""

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(reason)
        self.kind = kind


UNKNOWN_SIZE = "input size not known"
"""The kind of an UnknownSizeError."""


class UnknownSizeError(Exception):
    """Height or width of a node's input is unknown before the model runs."""


def compiled_type(element_type: str, whose: str) -> DataType:
    """The compiled data type of that name. Raises UnsupportedError for another type, as "its {whose} {type}"."""
    if element_type not in DATA_TYPES:
        raise UnsupportedError(
            "type not compiled", f"its {whose} {element_type}; only {', '.join(DATA_TYPES)} are compiled"
        )
    return element_type

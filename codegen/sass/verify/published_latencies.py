"""NVIDIA's figures for results of fixed latency, in the classes in which Mesa's compiler NAK publishes them.

None are published for sm_90. Each is the larger of sm_80's (`nak/sm80_instr_latencies.rs`) and sm_100's
(`latencies/sm100/*.csv`), which hardly differ; HFMA2.MMA's is sm_80's, for sm_100 has none. ptxas keeps to all of
them on sm_90. Cycles, from issue to issue.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from codegen.sass.isa.opcodes import Opcode

RESULTS: Final = (
    *("alu", "dispatch", "fma", "lower", "upper", "fp16", "fp16_f32", "hfma2_mma"),
    *("udp", "umov", "decoupled"),
)
"""Classes of results. dispatch: CS2R; lower, upper: halves of a wide product; udp: uniform; decoupled: of unknown
latency."""
OPERANDS: Final = (
    *("alu", "fma", "multiplicand", "lower", "upper", "fp16", "fp16_f32", "hfma2_mma"),
    *("decoupled", "agu", "udp", "umov"),
)
"""Classes of operands. agu: of memory accesses and barriers; decoupled: of other words of unknown latency."""

_ALU: Final = (
    *("MOV", "P2R", "SEL", "FSEL", "FMNMX", "FSETP", "ISETP", "IADD3", "LEA", "LOP3", "PRMT", "SHF", "PLOP3", "F2FP"),
    *("VIADDMNMX", "VIMNMX", "IMNMX", "FMNMX3"),
)
_CLASS_OF: Final = (
    dict.fromkeys(_ALU, "alu")
    | dict.fromkeys(("FMUL", "FADD", "FFMA", "IMAD", "VIADD"), "fma")
    | {"HADD2": "fp16", "HMUL2": "fp16", "HFMA2": "fp16", "HFMA2.MMA": "hfma2_mma"}
    | dict.fromkeys(("UISETP", "UIADD3", "ULEA", "ULOP3", "USHF", "UIMAD", "UIMAD.WIDE"), "udp")
    | {"UMOV": "umov", "ULDC": "umov"}
)
_RESULT_OF: Final = _CLASS_OF | {"CS2R": "dispatch", "IMAD.WIDE": "upper", "IMAD.HI": "upper"}
_OPERAND_OF: Final = (
    _CLASS_OF
    | {"CS2R": "alu", "IMAD.WIDE": "multiplicand", "IMAD.HI": "multiplicand"}
    | dict.fromkeys(("LD", "LDG", "LDL", "LDS", "STG", "STL", "STS", "LDGSTS", "BAR"), "agu")
)

_READ: Final = {
    "alu": (4, 6, 5, 3, 5, 5, 5, 10),
    "fma": (5, 6, 4, 2, 4, 5, 5, 10),
    "multiplicand": (5, 6, 4, 4, 6, 5, 5, 10),
    "lower": (5, 6, 4, 2, 4, 5, 5, 10),
    "upper": (3, 4, 2, 2, 2, 3, 3, 8),
    "fp16": (5, 6, 5, 3, 5, 4, 5, 10),
    "fp16_f32": (5, 6, 5, 3, 5, 5, 5, 10),
    "hfma2_mma": (6, 6, 6, 6, 6, 6, 6, 6),
    "decoupled": (4, 4, 4, 4, 4, 4, 4, 6),
    "agu": (5, 5, 5, 5, 5, 5, 5, 7),
}
"""By operand: a register, in the order of RESULTS."""
_UNIFORM_READ: Final = dict.fromkeys(_READ, (6, 2)) | {
    "hfma2_mma": (9, 2),
    "decoupled": (9, 2),
    "agu": (9, 2),
    "udp": (4, 2),
    "umov": (7, 2),
}
"""By operand: a uniform register of udp or umov."""
_PREDICATE_READ: Final = {
    "alu": {"alu": 4, "fma": 5, "upper": 5},
    "fma": {"alu": 5, "fma": 4, "upper": 4},
    "multiplicand": {"alu": 5, "fma": 4, "upper": 4},
}
"""By operand and result: a predicate."""
_UNIFORM_PREDICATE_READ: Final = {"alu": 6, "fma": 6, "multiplicand": 6, "udp": 4, "decoupled": 9}
"""By operand: a uniform predicate. decoupled: the condition of BRA.U, not published, which ptxas leaves."""
_LONGEST: Final = (0, 13, 0, 11)
"""By kind of resource: a predicate as a guard, or as an operand that the tables do not name."""

_OVERWRITTEN: Final = {"hfma2_mma": (3, 3, 3, 5, 5, 3, 3, 2)}
"""By result: until each other result may overwrite it; 1 where the table says nothing."""
_OVERWRITTEN_IF_GUARDED: Final = {
    "alu": (1, 1, 1, 3, 1, 1, 1, 1),
    "dispatch": (2, 1, 2, 4, 2, 2, 1, 1),
    "fma": (1, 1, 1, 2, 1, 1, 1, 1),
    "upper": (1, 1, 2, 2, 1, 1, 1, 1),
    "fp16": (1, 1, 1, 3, 1, 1, 1, 1),
    "fp16_f32": (1, 1, 1, 3, 1, 1, 1, 1),
    "hfma2_mma": (6, 4, 6, 8, 6, 6, 5, 2),
}
"""Cycles until a result is overwritten, if a predicate guards the overwriting word."""
RELOAD_CYCLES: Final = 2
"""From a word of fixed latency that reads a register to a word of unknown latency that overwrites it."""
UNIFORM_MOVE_CYCLES: Final = 3
"""From a uniform word that reads a uniform register to a UMOV or ULDC that overwrites it."""


def _read_cycles() -> NDArray[np.int64]:
    cycles = np.ones((4, len(OPERANDS), len(RESULTS)), dtype=np.int64)
    udp = RESULTS.index("udp")
    cycles[1] = _LONGEST[1]
    for i, operand in enumerate(OPERANDS):
        of_registers = _READ.get(operand, ())
        cycles[0, i, : len(of_registers)] = of_registers
        cycles[2, i, udp : udp + 2] = _UNIFORM_READ[operand]
        for result, least in _PREDICATE_READ.get(operand, {}).items():
            cycles[1, i, RESULTS.index(result)] = least
        cycles[3, i] = _UNIFORM_PREDICATE_READ.get(operand, _LONGEST[3])
    return cycles


def _overwrite_cycles() -> NDArray[np.int64]:
    cycles = np.ones((2, len(RESULTS), len(RESULTS)), dtype=np.int64)
    for i, result in enumerate(RESULTS):
        for guarded, table in enumerate((_OVERWRITTEN, _OVERWRITTEN_IF_GUARDED)):
            of_registers = table.get(result, ())
            cycles[guarded, i, : len(of_registers)] = of_registers
    udp, umov, decoupled = (RESULTS.index(name) for name in ("udp", "umov", "decoupled"))
    cycles[1, :udp, decoupled] = 6
    cycles[1, RESULTS.index("hfma2_mma"), decoupled] = 10
    cycles[:, udp, umov] = 7
    cycles[:, udp, decoupled] = (4, 11)
    cycles[:, umov, decoupled] = 4
    return cycles


GUARD_CYCLES: Final = np.array(_LONGEST, dtype=np.int64)
"""[kind of resource]"""
READ_CYCLES: Final = _read_cycles()
"""[kind of resource, operand, result]; the kinds are registers, predicates, uniform registers, uniform predicates."""
OVERWRITE_CYCLES: Final = _overwrite_cycles()
"""[whether a predicate guards the first word, its result, the result that overwrites it]"""


def result_index(opcode: Opcode) -> int:
    """The place in RESULTS of an opcode's result, the upper half if it has two."""
    return RESULTS.index(_RESULT_OF.get(opcode.name, "decoupled"))


def operand_index(opcode: Opcode) -> int:
    """The place in OPERANDS of an opcode's operands, the multiplicands if it has wide addends."""
    return OPERANDS.index(_OPERAND_OF.get(opcode.name, "decoupled"))

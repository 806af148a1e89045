"""Blackwell with instructions of 64 bits: sm_120 (GeForce RTX 50, RTX PRO) and sm_121 (DGX Spark)."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from codegen.sass.isa.architecture import Architecture, pipe
from codegen.sass.isa.architectures.blackwell import CONSTANTS, COPIES, INTERVALS, MULTIPLIED
from codegen.sass.isa.architectures.blackwell import OPCODES as COMMON
from codegen.sass.isa.encoding import DESTINATION, SOURCE_B, Field
from codegen.sass.isa.latencies import Latencies
from codegen.sass.isa.opcodes import (
    FIRST_PREDICATE,
    IMMEDIATE_64,
    INPUT_PREDICATE,
    KIND_MASK,
    REGISTERS,
    SIGN_33,
    UNIFORM_B,
    UNIFORM_DESTINATION,
    UNIFORM_REGISTERS,
    WHOLE_64,
    Form,
    Opcode,
    Slot,
)
from codegen.sass.isa.published_latencies import AMPERE_TO_BLACKWELL


def _moves_pairs(number: int, read: Slot, written: Slot) -> Opcode:
    """MOV or UMOV with an opcode of twelve bits; where WHOLE_64 is set, of a pair with these upper registers."""
    return replace(
        COMMON[number & KIND_MASK],
        number=number,
        forms=(),
        more_reads=(read,),
        more_writes=(written,),
        understood=((WHOLE_64.first, WHOLE_64.bits),),
    )


def _upper(kind: int, field: Field) -> Slot:
    return Slot(kind, field, only_if=WHOLE_64, beyond=1)


_TO, _TO_UNIFORM = _upper(REGISTERS, DESTINATION), _upper(UNIFORM_REGISTERS, UNIFORM_DESTINATION)
_OF, _OF_UNIFORM = _upper(REGISTERS, SOURCE_B), _upper(UNIFORM_REGISTERS, UNIFORM_B)
_ROWS: Final = (
    _moves_pairs(0x202, _OF, _TO),
    _moves_pairs(0xC02, _OF_UNIFORM, _TO),
    _moves_pairs(0xC82, _OF_UNIFORM, _TO_UNIFORM),
    Opcode(0x402, "MOV.64", "pair", 2, understood=(IMMEDIATE_64,)),
    Opcode(0x482, "UMOV.64", "uniform", 2, uniform=True, understood=(IMMEDIATE_64,)),
    Opcode(
        *(0x407, "SEL.64", "pair", 2, 2, 1),
        reads=(INPUT_PREDICATE,),
        form=Form.IMMEDIATE_B,
        understood=((SIGN_33.first, SIGN_33.bits),),
    ),
    Opcode(*(0x607, "SEL.64", "pair", 2, 2, 2), reads=(INPUT_PREDICATE,), form=Form.REGISTERS, understood=()),
    Opcode(
        *(0x35, "IADD.64", "pair", 2, 2, 2),
        writes=(FIRST_PREDICATE,),
        reads=(INPUT_PREDICATE,),
        understood=(),
        fixed=(0x7 << 81 | 0x1 << 73,),
    ),
    replace(COMMON[0x48], number=0x4A, name="UVIMNMX", unit="uniform", uniform=True),
    replace(COMMON[0x90], number=0x97, name="UIADD3.64", result=2, a=2, b=2, c=2, understood=(), fixed=(0x3F << 81,)),
)
_DUAL: Final = ("MOV", "SEL", "FSEL", "FMNMX", "FMNMX3", "VIMNMX", "ISETP", "FSETP")
OPCODES: Final = {
    row.number: replace(row, unit="dual") if row.name in _DUAL else row for row in (*COMMON.values(), *_ROWS)
}
LATENCIES: Final = Latencies.of(
    registers={
        "fma": (4, 5, 6, 5, 4, 4, 2, 5, 4),
        "half": (5, 4, 6, 5, 5, 5, 3, 5, 5),
        "alu": (5, 5, 6, 4, 5, 5, 3, 5, 4),
        "lower": (4, 4, 6, 3, 4, 4, 4, 5, 4),
        "upper": (4, 5, 6, 5, 6, 4, 4, 5, 4),
        "dual": (5, 5, 6, 5, 5, 5, 3, 5, 4),
        "pair": (6, 6, 6, 5, 6, 6, 6, 6, 5),
    },
    more={
        "fma": (5, 5),
        "half": (5, 5),
        "alu": (5, 5),
        "lower": (3, 5),
        "upper": (5, 5),
        "dual": (5, 5),
        "pair": (6, 4),
    },
    predicates={
        "alu": {"alu": 4, "dual": 5, "pair": 5, "fma": 5, "multiplicand": 5},
        "dual": {"alu": 5, "dual": 5, "pair": 5},
        "fma": {"alu": 5, "fma": 4},
        "upper": {"alu": 5, "fma": 4},
    },
    uniform={
        "uniform": 2,
        "alu": 6,
        "dual": 6,
        "pair": 6,
        "fma": 6,
        "multiplicand": 6,
        "memory": 9,
        "function": 12,
        "control": 9,
    },
    longest=13,
    moved_uniform=2,
    overwritten_matrix=(9, 8),
)
"""Least distances that ptxas 13.0.88 leaves in 226 cubins and a chain of all pairs; what `dual` and `pair` take is
larger than what is published."""

_PAIRS: Final = frozenset({"IADD.64", "SEL.64", "MOV.64"})
_ALU: Final = frozenset(row.name for row in OPCODES.values() if row.unit == "alu") - {"CS2R"}

SM_120: Final = Architecture(
    capability=120,
    opcodes=OPCODES,
    latencies=LATENCIES,
    published=AMPERE_TO_BLACKWELL,
    intervals=(
        *INTERVALS,
        pipe(2, *_ALU),
        (_PAIRS, _ALU, 3),
        (_PAIRS, MULTIPLIED | _PAIRS | frozenset(_DUAL), 2),
    ),
    matrix_halves=False,
    constants=CONSTANTS,
    copies=COPIES,
    shared_kib=100,
)
"""The published figures are sm_100's. Mesa adds a cycle to each for sm_120, ptxas only for `dual` and `pair`."""
SM_121: Final = replace(SM_120, capability=121)
"""ptxas 13.0.88 makes the same words for both."""

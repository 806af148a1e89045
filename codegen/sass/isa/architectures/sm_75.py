"""Turing: T4, GeForce RTX 20, GeForce GTX 16."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from codegen.sass.isa.architecture import Architecture, LoadBits, pipe
from codegen.sass.isa.architectures.before_hopper import CONSTANTS
from codegen.sass.isa.architectures.before_hopper import OPCODES as AMPERE
from codegen.sass.isa.latencies import Latencies
from codegen.sass.isa.opcodes import Opcode
from codegen.sass.isa.published_latencies import TURING

_LDG: Final = (0x1E61 << 72, 0x5E61 << 72, 0x41E61 << 72, 0x45E61 << 72)
"""LDG.E.CONSTANT.SYS and LDG.E.NA.CONSTANT.SYS, with an address of one register or with a uniform one added."""
_STG: Final = (0xE1 << 72, 0x400E1 << 72)
_LDS: Final = (0x1 << 76,)
"""LDS.U"""

_LACKING: Final = ("HFMA2.MMA", "LDGSTS", "LDGDEPBAR")
_ROWS: Final = (
    Opcode(0x104, "F2F", "function", 1, 0, 1, queue=2, understood=((62, 2),), fixed=(0x2008 << 72,)),
    replace(AMPERE[0x11D], fixed=(0,)),
    replace(AMPERE[0x181], fixed=_LDG),
    replace(AMPERE[0x184], fixed=_LDS),
    replace(AMPERE[0x186], fixed=_STG),
)
"""F2F.F16.F32 and the loads, stores and barriers of Turing."""
OPCODES: Final = {row.number: row for row in (*AMPERE.values(), *_ROWS) if row.name not in _LACKING}
_LATENCIES: Final = Latencies.of(
    registers={
        "fma": (4, 6, 6, 5, 4, 4, 4, 8, 6),
        "half": (8, 6, 6, 8, 8, 8, 8, 8, 8),
        "alu": (5, 6, 6, 4, 5, 5, 5, 8, 6),
        "lower": (4, 6, 6, 5, 6, 6, 6, 8, 6),
        "upper": (4, 6, 6, 5, 6, 6, 6, 8, 6),
    },
    predicates={
        "alu": {"alu": 4, "fma": 5, "multiplicand": 5},
        "fma": {"alu": 5, "fma": 4},
        "upper": {"alu": 5, "fma": 4},
    },
    uniform={"uniform": 4, "alu": 6, "fma": 6, "multiplicand": 6, "memory": 9, "function": 12},
    longest=12,
    moved_uniform=2,
    overwritten_matrix=(1, 1),
    overwritten_by_load=6,
)
"""Distances that ptxas 13.0.88 leaves, seen in 180 cubins (211,648 words); half to fma and lower as published."""

SM_75: Final = Architecture(
    capability=75,
    opcodes=OPCODES,
    latencies=_LATENCIES,
    published=TURING,
    intervals=(
        pipe(2, "FFMA", "FMUL", "FADD", "IMAD", "IMAD.WIDE", "IMAD.HI"),
        pipe(2, "HFMA2", "HADD2", "HMUL2"),
    ),
    matrix_halves=False,
    barriers_drain=True,
    descriptors=False,
    branch_pieces=1,
    constants=CONSTANTS,
    loads=LoadBits(read_only=1, shared=1 << 76 - 64),
    shared_base=0,
    shared_kib=64,
)

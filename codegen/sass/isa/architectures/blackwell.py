"""Facts about Blackwell's machine code."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from codegen.sass.isa.architecture import ConstantPlaces, CopyBits
from codegen.sass.isa.encoding import Field
from codegen.sass.isa.latencies import Latencies
from codegen.sass.isa.opcodes import INPUT_PREDICATE, UNIFORM_BRANCH, UNIFORM_PREDICATES, Opcode, Slot, opcodes_with
from codegen.sass.isa.opcodes import OPCODES as COMMON

_TRUE: Final = 0x7 << 87
_CONVERGENCE: Final = (72, 2)
"""BSSY, BSYNC, BREAK: how the lanes meet, of no effect on results."""
_SIGNED: Final = (72, 1)
_UNIFORM_CONDITION: Final = Slot(UNIFORM_PREDICATES, Field(24, 3), only_if=UNIFORM_BRANCH)

OPCODES: Final = opcodes_with(
    Opcode(
        *(0x1AC, "LDCU", "other", -1),
        uniform=True,
        understood=((37, 22), (73, 3)),
        fixed=(0x1 << 91 | 0xFF << 24,),
    ),
    Opcode(
        *(0x76, "FMNMX3", "alu", 1, 1, 1, 1),
        reads=(INPUT_PREDICATE,),
        understood=((72, 2), (62, 2), (74, 2), (81, 1)),
    ),
    replace(COMMON[0x48], understood=(_SIGNED,), fixed=(0x7E00 << 72,)),
    replace(COMMON[0x82], quick_uniform=False),
    replace(COMMON[0x141], understood=((16, 4), _CONVERGENCE), fixed=(_TRUE,)),
    replace(COMMON[0x142], understood=((16, 4), _CONVERGENCE)),
    replace(COMMON[0x145], understood=((16, 4), (32, 32), _CONVERGENCE)),
    replace(
        COMMON[0x147],
        more_reads=(_UNIFORM_CONDITION,),
        understood=((16, 8), (24, 4), (32, 1), (34, 48)),
        fixed=(0, 0x1 << 91),
    ),
    replace(
        COMMON[0x1AE],
        understood=((16, 8), (32, 32), (64, 6), (74, 2), (83, 1), (91, 1)),
        fixed=(0x121 << 76, 0x101 << 76),
    ),
    without=("HFMA2.MMA", "ULDC"),
)
"""BRA.U has its condition in a uniform predicate."""
LATENCIES: Final = Latencies.of(
    registers={
        "fma": (4, 5, 6, 5, 4, 4, 2, 5, 4),
        "half": (5, 4, 6, 5, 5, 5, 3, 5, 5),
        "alu": (5, 5, 6, 4, 5, 5, 3, 5, 4),
        "lower": (4, 4, 6, 3, 4, 4, 4, 5, 4),
        "upper": (4, 5, 6, 5, 6, 4, 4, 5, 4),
    },
    predicates={
        "alu": {"alu": 4, "fma": 5, "multiplicand": 5},
        "fma": {"alu": 5, "fma": 4},
        "upper": {"alu": 5, "fma": 4},
    },
    uniform={"uniform": 2, "alu": 6, "fma": 6, "multiplicand": 6, "memory": 9, "function": 12, "control": 9},
    longest=13,
    moved_uniform=2,
    overwritten_matrix=(9, 8),
)
"""No longer than what ptxas 13.0.88 leaves in 222 cubins. The uniform unit has UMOV's results alone after 2 cycles."""
CONSTANTS: Final = ConstantPlaces(block=0x360, grid=0x370, stack_pointer=0x37C, descriptor=0x358)
COPIES: Final = CopyBits(address=83, size=74)

"""Facts about Blackwell's machine code."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from codegen.sass.isa.architecture import ConstantPlaces, CopyBits
from codegen.sass.isa.encoding import Field
from codegen.sass.isa.opcodes import (
    INPUT_PREDICATE,
    UNIFORM_BRANCH,
    UNIFORM_PREDICATES,
    Form,
    Opcode,
    Slot,
    opcodes_with,
)
from codegen.sass.isa.opcodes import OPCODES as COMMON

_TRUE: Final = 0x7 << 87
_CONVERGENCE: Final = (72, 2)
"""BSSY, BSYNC, BREAK: how the lanes meet, of no effect on results."""
_OF_TWO: Final = (Form.REGISTERS, Form.IMMEDIATE_B, Form.CONSTANT_B, Form.UNIFORM_B)
"""MOV, SEL: the other forms are those of MOV.64 and SEL.64, where there are such."""
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
    replace(COMMON[0x02], forms=_OF_TWO),
    replace(COMMON[0x07], forms=_OF_TWO),
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
_SLOW: Final = frozenset({"HFMA2", "HMUL2", "HADD2", "IMAD", "VIADD"})
_WIDE: Final = frozenset({"IMAD.WIDE", "IMAD.HI"})
MULTIPLIED: Final = frozenset({"FFMA", "FMUL", "FADD"}) | _SLOW | _WIDE
"""Words of the pipe that multiplies."""
INTERVALS: Final = ((_SLOW, MULTIPLIED, 2), (_WIDE, MULTIPLIED, 4))
CONSTANTS: Final = ConstantPlaces(block=0x360, grid=0x370, stack_pointer=0x37C, descriptor=0x358)
COPIES: Final = CopyBits(address=83, size=74)

"""Ampere: Jetson Orin."""

from __future__ import annotations

from typing import Final

from codegen.sass.isa.architecture import Architecture, pipe
from codegen.sass.isa.architectures.before_hopper import CONSTANTS, INTEGERS, LATENCIES
from codegen.sass.isa.architectures.before_hopper import OPCODES as COMMON
from codegen.sass.isa.encoding import DESTINATION, SOURCE_B, Field
from codegen.sass.isa.opcodes import REGISTERS, Opcode, Slot
from codegen.sass.isa.published_latencies import AMPERE_TO_BLACKWELL

_NO_REGISTER: Final = Field(11, 1)
_ROWS: Final = (
    Opcode(
        *(0x155, "BMOV", "other"),
        more_writes=(Slot(REGISTERS, DESTINATION, unless=_NO_REGISTER),),
        understood=((16, 8), (24, 8), (84, 1)),
    ),
    Opcode(
        *(0x156, "BMOV.B", "other"),
        more_reads=(Slot(REGISTERS, SOURCE_B, unless=_NO_REGISTER),),
        understood=((24, 8), (32, 32)),
    ),
)
"""Moves of convergence barriers: a kernel begins with moves from one barrier to the next, and of an immediate."""
OPCODES: Final = {row.number: row for row in (*COMMON.values(), *_ROWS)}

SM_87: Final = Architecture(
    capability=87,
    opcodes=OPCODES,
    latencies=LATENCIES,
    published=AMPERE_TO_BLACKWELL,
    intervals=(INTEGERS, pipe(2, "HFMA2", "HMUL2"), pipe(2, "HADD2")),
    kept_intervals=(pipe(2, "HFMA2.MMA"),),
    branch_pieces=1,
    constants=CONSTANTS,
    shared_base=0,
    shared_kib=164,
)

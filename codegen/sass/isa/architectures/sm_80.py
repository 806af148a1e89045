"""Ampere: A100, A30."""

from __future__ import annotations

from typing import Final

from codegen.sass.isa.architecture import Architecture, pipe
from codegen.sass.isa.architectures.before_hopper import CONSTANTS, LATENCIES, OPCODES
from codegen.sass.isa.published_latencies import AMPERE_TO_BLACKWELL

SM_80: Final = Architecture(
    capability=80,
    opcodes=OPCODES,
    latencies=LATENCIES,
    published=AMPERE_TO_BLACKWELL,
    intervals=(
        pipe(2, "FFMA", "FMUL", "FADD", "IMAD", "IMAD.WIDE", "IMAD.HI"),
        pipe(2, "HFMA2", "HADD2", "HMUL2"),
        pipe(2, "HFMA2.MMA"),
    ),
    branch_pieces=1,
    constants=CONSTANTS,
    shared_base=0,
    shared_kib=164,
)

"""Ampere: A100, A30."""

from __future__ import annotations

from typing import Final

from codegen.sass.isa.architecture import Architecture
from codegen.sass.isa.architectures.before_hopper import CONSTANTS, LATENCIES, OPCODES
from codegen.sass.isa.published_latencies import AMPERE_TO_BLACKWELL

SM_80: Final = Architecture(
    capability=80,
    opcodes=OPCODES,
    latencies=LATENCIES,
    published=AMPERE_TO_BLACKWELL,
    intervals=(
        (frozenset({"FFMA", "FMUL", "FADD", "IMAD", "IMAD.WIDE", "IMAD.HI"}), 2),
        (frozenset({"HFMA2", "HADD2", "HMUL2"}), 2),
        (frozenset({"HFMA2.MMA"}), 2),
    ),
    branch_pieces=1,
    constants=CONSTANTS,
    shared_base=0,
    shared_kib=164,
)

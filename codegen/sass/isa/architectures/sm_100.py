"""Blackwell: B200, GB200."""

from __future__ import annotations

from typing import Final

from codegen.sass.isa.architecture import Architecture
from codegen.sass.isa.architectures.blackwell import CONSTANTS, COPIES, LATENCIES, OPCODES
from codegen.sass.isa.published_latencies import AMPERE_TO_BLACKWELL

SM_100: Final = Architecture(
    capability=100,
    opcodes=OPCODES,
    latencies=LATENCIES,
    published=AMPERE_TO_BLACKWELL,
    constants=CONSTANTS,
    copies=COPIES,
)

"""The architectures whose machine code is understood, one data file for each."""

from __future__ import annotations

from typing import Final

from codegen.errors import MachineCodeError
from codegen.sass.isa.architecture import Architecture
from codegen.sass.isa.architectures.sm_90 import SM_90

ARCHITECTURES: Final = {each.capability: each for each in (SM_90,)}
"""By the architecture's number: 90 for sm_90."""


def architecture_of(capability: int) -> Architecture:
    """The facts of an architecture. Raises MachineCodeError if its machine code is not understood."""
    known = ARCHITECTURES.get(capability)
    if known is None:
        names = ", ".join(f"sm_{each}" for each in ARCHITECTURES)
        raise MachineCodeError(f"machine code for sm_{capability} is not understood, only for {names}")
    return known

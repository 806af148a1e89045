"""The architectures whose machine code is understood, one data file for each."""

from __future__ import annotations

from typing import Final

from codegen.errors import MachineCodeError
from codegen.sass.isa.architecture import Architecture
from codegen.sass.isa.architectures.sm_75 import SM_75
from codegen.sass.isa.architectures.sm_80 import SM_80
from codegen.sass.isa.architectures.sm_86 import SM_86
from codegen.sass.isa.architectures.sm_87 import SM_87
from codegen.sass.isa.architectures.sm_89 import SM_89
from codegen.sass.isa.architectures.sm_90 import SM_90
from codegen.sass.isa.architectures.sm_100 import SM_100, SM_103, SM_110
from codegen.sass.isa.architectures.sm_120 import SM_120, SM_121

_ALL: Final = (SM_75, SM_80, SM_86, SM_87, SM_89, SM_90, SM_100, SM_103, SM_110, SM_120, SM_121)
ARCHITECTURES: Final = {each.capability: each for each in _ALL}
"""By the architecture's number: 90 for sm_90."""


def architecture_of(capability: int) -> Architecture:
    """The facts of an architecture. Raises MachineCodeError if its machine code is not understood."""
    return architecture_named(f"sm_{capability}")


def architecture_named(name: str) -> Architecture:
    """The facts of an architecture by its name, such as sm_90. Raises MachineCodeError like `architecture_of`."""
    for each in ARCHITECTURES.values():
        if each.name == name:
            return each
    names = ", ".join(each.name for each in ARCHITECTURES.values())
    raise MachineCodeError(f"machine code for {name} is not understood, only for {names}")

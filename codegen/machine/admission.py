"""Who turns a kernel into machine code: ptxas, or the assembler of this folder where its code has been admitted.

An architecture is admitted for a version of ptxas once a GPU of it has run many layers both ways, bit for bit alike.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from codegen.spec import LayerSpec, is_bounded
from codegen.tiling import Tiling

AssemblerChoice = Literal["auto", "ptxas", "direct", "patch"]
"""What a person asks for; `auto` is direct where it is admitted."""
Assembler = Literal["ptxas", "direct", "patch"]
"""patch: values put into what ptxas made of the mask, once for all checkpoints that have it (`mould.py`)."""
CHOICES: tuple[AssemblerChoice, ...] = get_args(AssemblerChoice)

ARCHITECTURES = ("sm_90",)
"""Whose rules the assembler knows."""


def assembler_named(name: object) -> Assembler:
    """As a record or a row has it; what is older than the assemblers was made by ptxas."""
    return name if name in ("direct", "patch") else "ptxas"


@dataclass(frozen=True)
class Admission:
    """A GPU of this architecture found no difference between direct code and that of this version of ptxas."""

    arch: str
    ptxas: str


ADMISSIONS: tuple[Admission, ...] = ()


def assembler_for(
    choice: AssemblerChoice, spec: LayerSpec, tiling: Tiling, arch: str, ptxas: str
) -> tuple[Assembler, str]:
    """Who assembles a layer for an architecture, and why not the direct assembler: empty where it does."""
    if choice == "ptxas":
        return "ptxas", "asked for"
    if choice == "patch":
        if tiling.form == "full" or is_bounded(spec):
            what = "a full template" if tiling.form == "full" else "a layer whose inputs have bounds"
            return "ptxas", f"{what} has no moulds"
        return "patch", "asked for"
    if choice == "auto" and Admission(arch, ptxas) not in ADMISSIONS:
        return "ptxas", f"direct code is not admitted on {arch} beside ptxas {ptxas}"
    if reason := unknown(spec, tiling, arch):
        return "ptxas", reason
    return "direct", ""


def unknown(spec: LayerSpec, tiling: Tiling, arch: str) -> str:
    """What of a layer the assembler is known not to do, in words; empty if it may do it."""
    if arch not in ARCHITECTURES:
        return f"the assembler knows {', '.join(ARCHITECTURES)}, not {arch}"
    if spec.data_type != "float32":
        return f"the assembler knows float32, not {spec.data_type}"
    if is_bounded(spec):
        return "the assembler knows no bounds of inputs, as a normalisation before a layer leads to"
    if tiling.form != "rolled":
        return "the assembler knows rolled templates, not full ones"
    return ""

"""Who turns a kernel into machine code: ptxas, or the assembler of this folder where its code has been admitted.

An architecture is admitted for a version of ptxas and a data type once a GPU of it has run many layers both ways, bit
for bit alike, with the very sources of the assembler that are here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal, get_args

from codegen.ir.layer_spec import Conv2d, DataType, LayerSpec, is_bounded, is_gated
from codegen.ir.tiling import Tiling

AssemblerChoice = Literal["auto", "ptxas", "direct", "patch"]
"""What a person asks for; `auto` is direct where it is admitted."""
Assembler = Literal["ptxas", "direct", "patch"]
"""patch: values written into what ptxas made of the mask, once for all checkpoints with it (`value_patch.py`)."""
CHOICES: tuple[AssemblerChoice, ...] = get_args(AssemblerChoice)

ADMITTED_LEVEL = 3
"""The optimisation level of ptxas that direct code is compared with."""
ARCHITECTURES = ("sm_90",)
"""Whose rules the assembler knows."""


def assembler_named(name: object) -> Assembler:
    """As a record or a row has it; what is older than the assemblers was made by ptxas."""
    return name if name in ("direct", "patch") else "ptxas"


ASSEMBLED: Mapping[Assembler, str] = {
    "ptxas": "ptxas",
    "direct": "assembled directly in",
    "patch": "put into its mask's code in",
}
"""Words before the time that it took."""


@dataclass(frozen=True)
class Admission:
    """What a GPU of this architecture found when it ran direct code beside that of this version of ptxas."""

    arch: str
    ptxas: str
    data_type: DataType
    sources: str
    """Digest of the assembler's sources, as `codegen.keys.assembler_digest` gives it."""
    passed: bool
    """Whether there were enough layers and no difference."""


@dataclass(frozen=True)
class Admissions:
    """What is known of direct code; one GPU that found a difference counts more than any that found none."""

    known: frozenset[Admission] = frozenset()
    sources: str = ""
    """Digest of the sources that are here."""

    def of(self, arch: str, ptxas: str, data_type: DataType) -> frozenset[Admission]:
        """Those that hold for the assembler that is here."""
        wanted = {Admission(arch, ptxas, data_type, self.sources, passed) for passed in (True, False)}
        return self.known & wanted

    def refusal(self, arch: str, ptxas: str, data_type: DataType) -> str:
        """Why direct code is not admitted, with the way out; empty if it is."""
        of_type = [each for each in self.known if each.arch == arch and each.data_type == data_type]
        now = self.of(arch, ptxas, data_type)
        what = f"{data_type} of {arch} is not admitted for ptxas {ptxas}"
        if any(not each.passed for each in now):
            return f"{what}: a GPU found differences, as farm admit tells"
        if now:
            return ""
        if any(each.passed and each.ptxas == ptxas for each in of_type):
            return f"{what}: it was with another version of the assembler, so run farm admit on such a GPU"
        if others := sorted({each.ptxas for each in of_type if each.passed and each.sources == self.sources}):
            return f"{what}, but for {', '.join(others)}: run farm admit on such a GPU"
        return f"{what}: run farm admit on such a GPU"


NOTHING_ADMITTED = Admissions()


def assembler_for(
    choice: AssemblerChoice,
    spec: LayerSpec,
    tiling: Tiling,
    arch: str,
    ptxas: str,
    admissions: Admissions = NOTHING_ADMITTED,
    *,
    optimisation: int = ADMITTED_LEVEL,
) -> tuple[Assembler, str]:
    """Who assembles a layer for an architecture, and why not whom was asked for: empty where it does."""
    if choice == "ptxas":
        return "ptxas", ""
    if choice == "patch":
        if tiling.form != "rolled" or tiling.reads_table or is_bounded(spec) or tiling.cluster > 1:
            what = "a layer whose inputs have bounds" if tiling.form == "rolled" else f"a {tiling.form} template"
            what = "a table template" if tiling.reads_table else what
            what = "a kernel with clusters" if tiling.cluster > 1 else what
            return "ptxas", f"{what} cannot be patched"
        return "patch", ""
    if reason := unknown(spec, tiling, arch):
        return "ptxas", reason
    if choice == "auto" and optimisation != ADMITTED_LEVEL:
        return "ptxas", f"direct code is admitted at -O{ADMITTED_LEVEL}, not at -O{optimisation}"
    if choice == "auto" and (reason := admissions.refusal(arch, ptxas, spec.data_type)):
        return "ptxas", reason
    return "direct", ""


def claimed_types(arch: str) -> tuple[DataType, ...]:
    """The data types that the assembler does on an architecture."""
    tiling, spec = Tiling("conv2d", 8, 4, 1, 4, 2, 2), Conv2d(2, 8, 8, 4, 3, 3)
    return tuple(each for each in get_args(DataType) if not unknown(replace(spec, data_type=each), tiling, arch))


def unknown(spec: LayerSpec, tiling: Tiling, arch: str) -> str:
    """What of a layer the assembler is known not to do, in words; empty if it may do it."""
    if arch not in ARCHITECTURES:
        return f"the assembler knows {', '.join(ARCHITECTURES)}, not {arch}"
    if is_gated(spec) and spec.data_type == "float16":
        return "the assembler knows no gates of float16, which a layer's input is multiplied by"
    if tiling.kernel == "direct_global":
        return "the assembler knows inputs in shared memory, not those that come straight from global memory"
    if tiling.reads_table:
        return "its weights are a table, and ptxas makes the kernel that reads it in milliseconds"
    if tiling.form != "rolled":
        return "the assembler knows rolled templates, not full ones"
    return ""

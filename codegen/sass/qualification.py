"""Qualification: the choice between ptxas and the direct assembler, and the evidence that permits the latter.

An architecture is qualified for a version of ptxas and a data type once a GPU of it has run many layers assembled both
ways, with bit-identical outputs, by exactly the assembler sources in this package. Any other architecture that the
assembler supports is checked: its code passes every check that needs no GPU.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal, get_args

from codegen.ir.layer_spec import Conv2d, DataType, LayerSpec, is_bounded, is_gated
from codegen.ir.tiling import Tiling

AssemblerChoice = Literal["auto", "ptxas", "direct", "patch"]
"""The assembler that a user asks for; `auto` is direct where that is trusted, else a patch where that is possible."""
Assembler = Literal["ptxas", "direct", "patch"]
"""patch: weight values written into code that ptxas made once per mask (`value_patch.py`).

A result says ptxas also for the first cubin of a mask, for which that code was made.
"""
CHOICES: tuple[AssemblerChoice, ...] = get_args(AssemblerChoice)

Trust = Literal["qualified", "checked"]
"""The least evidence of direct code that `auto` takes: equal outputs on a GPU, or the checks that need none."""
TRUSTS: tuple[Trust, ...] = get_args(Trust)
DEFAULT_TRUST: Trust = "qualified"
CHECKED = "checked without a GPU"
"""Evidence of direct code that no GPU has run."""

QUALIFIED_LEVEL = 3
"""Optimisation level of the ptxas code that direct code is compared with."""
SUPPORTED_ARCHS = (
    *("sm_75", "sm_80", "sm_86", "sm_87", "sm_89", "sm_90"),
    *("sm_100", "sm_103", "sm_110", "sm_120", "sm_121"),
)
"""Architectures that the direct assembler supports."""

COPY_POINTERS, SKELETON_CHUNKS = 8, 100
"""Most pointers of a thread's copies, or most chunks, of a skeleton that is made: with more of both, ptxas is short of
registers in each of the attempts, which take 50 to 80 s together where the kernels take it 3 to 12 s."""


def assembler_named(name: object) -> Assembler:
    """The assembler that a record or row names; records without a name are of ptxas."""
    return name if name in ("direct", "patch") else "ptxas"


ASSEMBLED: Mapping[Assembler, str] = {
    "ptxas": "ptxas",
    "direct": "assembled directly in",
    "patch": "values patched in",
}
"""Phrase before the build time in messages."""


@dataclass(frozen=True)
class Qualification:
    """Result of running direct code beside ptxas code on a GPU of an architecture, for one data type."""

    arch: str
    ptxas: str
    """Version."""
    data_type: DataType
    sources: str
    """Digest of the assembler's sources, from `codegen.keys.assembler_digest`."""
    passed: bool
    """Whether enough layers were compared and no output differed."""
    gpu: str = ""
    """Name of the GPU."""


@dataclass(frozen=True)
class Qualifications:
    """All known results; a single failure outweighs any number of passes."""

    known: frozenset[Qualification] = frozenset()
    sources: str = ""
    """Digest of the sources of the installed assembler."""

    def of(self, arch: str, ptxas: str, data_type: DataType) -> frozenset[Qualification]:
        """Results that apply to the installed assembler."""
        wanted = (arch, ptxas, data_type, self.sources)
        return frozenset(each for each in self.known if (each.arch, each.ptxas, each.data_type, each.sources) == wanted)

    def evidence(self, arch: str, ptxas: str, data_type: DataType) -> str:
        """The evidence of direct code in words, such as `qualified on NVIDIA H200`."""
        current = self.of(arch, ptxas, data_type)
        wrong = sorted(each.gpu for each in current if not each.passed)
        right = sorted(each.gpu for each in current if each.passed)
        if wrong:
            return f"wrong on {', '.join(wrong)}"
        return f"qualified on {', '.join(right)}" if right else CHECKED

    def untrusted_reason(self, arch: str, ptxas: str, data_type: DataType, trust: Trust) -> str:
        """Why `auto` does not assemble directly with this trust, with the way out; empty if it does."""
        failed = any(not each.passed for each in self.of(arch, ptxas, data_type))
        return self.unqualified_reason(arch, ptxas, data_type) if failed or trust == "qualified" else ""

    def unqualified_reason(self, arch: str, ptxas: str, data_type: DataType) -> str:
        """Why direct code is not qualified, with the way out; empty if it is qualified."""
        of_type = [each for each in self.known if each.arch == arch and each.data_type == data_type]
        current = self.of(arch, ptxas, data_type)
        fact, way_out = f"{data_type} on {arch} is not qualified for ptxas {ptxas}", "run farm qualify on such a GPU"
        if any(not each.passed for each in current):
            return f"{fact}: a GPU found wrong outputs; {way_out} to see which"
        if current:
            return ""
        if any(each.passed and each.ptxas == ptxas for each in of_type):
            return f"{fact}: the assembler has changed since; {way_out}"
        if others := sorted({each.ptxas for each in of_type if each.passed and each.sources == self.sources}):
            return f"{fact}, only for {', '.join(others)}; {way_out}"
        return f"{fact}; {way_out}"


NO_QUALIFICATIONS = Qualifications()


def assembler_for(
    choice: AssemblerChoice,
    spec: LayerSpec,
    tiling: Tiling,
    arch: str,
    ptxas: str,
    qualifications: Qualifications = NO_QUALIFICATIONS,
    *,
    optimisation: int = QUALIFIED_LEVEL,
    trust: Trust = DEFAULT_TRUST,
) -> tuple[Assembler, str]:
    """The assembler of a layer for an architecture, and why it is not the requested one: empty if it is.

    For `auto` direct code comes first, then a value patch.
    """
    if choice == "ptxas":
        return "ptxas", ""
    unpatchable = unpatchable_reason(spec, tiling)
    if choice == "patch":
        return ("ptxas", unpatchable) if unpatchable else ("patch", "")
    reason = unsupported_reason(spec, tiling, arch)
    if choice == "auto" and not reason:
        if optimisation != QUALIFIED_LEVEL:
            reason = f"direct code is qualified at -O{QUALIFIED_LEVEL}, not at -O{optimisation}"
        else:
            reason = qualifications.untrusted_reason(arch, ptxas, spec.data_type, trust)
    if not reason:
        return "direct", ""
    return ("patch" if choice == "auto" and not unpatchable else "ptxas"), reason


def unpatchable_reason(spec: LayerSpec, tiling: Tiling) -> str:
    """Why a layer's values cannot be patched; empty if they may be.

    The patch may still raise MachineCodeError for a layer that passes this check.
    """
    if tiling.cluster > 1:
        return "a kernel with clusters cannot be patched"
    if tiling.reads_table:
        return "a table template cannot be patched"
    if tiling.form != "rolled":
        return f"a {tiling.form} template cannot be patched"
    return "a layer with input bounds cannot be patched" if is_bounded(spec) else ""


def supported_data_types(arch: str) -> tuple[DataType, ...]:
    """Data types that the direct assembler supports on an architecture."""
    tiling, spec = Tiling("conv2d", 8, 4, 1, 4, 2, 2), Conv2d(2, 8, 8, 4, 3, 3)
    typed = {each: replace(spec, data_type=each) for each in get_args(DataType)}
    return tuple(each for each, of_type in typed.items() if not unsupported_reason(of_type, tiling, arch))


def unsupported_reason(spec: LayerSpec, tiling: Tiling, arch: str) -> str:
    """Why the direct assembler does not support a layer; empty if it may support it.

    It may still raise MachineCodeError for a layer that passes this check.
    """
    if arch not in SUPPORTED_ARCHS:
        return f"the direct assembler supports {', '.join(SUPPORTED_ARCHS)}, not {arch}"
    if is_gated(spec) and spec.data_type == "float16":
        return "the direct assembler does not support float16 channel gates"
    if tiling.kernel == "direct_global":
        return "the direct assembler does not support direct global loads"
    if tiling.reads_table:
        return "weight-table kernels are left to ptxas, which builds them in milliseconds"
    if tiling.form != "rolled":
        return f"the direct assembler does not support {tiling.form} templates"
    return _costly_skeleton_reason(spec, tiling)


def _costly_skeleton_reason(spec: LayerSpec, tiling: Tiling) -> str:
    """Why the skeleton of a rolled template would take ptxas longer than its kernels do; empty if it would not.

    So it is with filters far wider than their blocks, of dilated 1-D convolutions: copies are most of the code.
    """
    from codegen.kernels import tiled  # imports NumPy, which settings do not need

    if tiling.kernel != "conv2d":
        return ""
    work = tiled(spec, tiling).workload
    if work.pointers <= COPY_POINTERS or work.chunks <= SKELETON_CHUNKS:
        return ""
    return f"a skeleton of {work.chunks} chunks with {work.pointers} copies each takes ptxas longer than the layer"

"""What crosses to a worker and back: frozen values of names and digests. Bytes travel through the store."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from codegen.ir.launch import Launch
from codegen.ir.layer_spec import LayerSpec
from codegen.ir.tiling import Part, Tiling
from codegen.sass.qualification import ASSEMBLED, Assembler, assembler_named

WORKER_BYTES = 192 * 2**20
TEMPLATE_BYTES = 512 * 2**20
"""What nvcc and its children take for a template of any shape, with room."""
CUBIN_BYTES = 64 * 2**20
MULTIPLY_ADD_BYTES = 12_000
"""ptxas 13.0 took 30 MiB and, for each multiply-add, 6 to 8 KB at -O3 and up to 12 KB at -O1."""
DIRECT_BYTES = 1_000
"""The assembler took 500 to 900 bytes for each multiply-add."""
TABLE_BYTES = 16
"""For each weight of a layer whose weights are a table, the zero ones too: they are read and put into its text."""


def _memory_class(needed_bytes: int) -> int:
    """A power of two: a scheduler keeps its workers for requests that are alike."""
    return 1 << (needed_bytes - 1).bit_length()


@dataclass(frozen=True)
class TemplateRequest:
    """Make the template of one shape."""

    spec: LayerSpec
    tiling: Tiling
    virtual_arch: str
    key: str
    """Digest of the template's key; the worker checks that its own toolchain gives the same."""
    cost: int
    """Multiply-adds that nvcc compiles: what its time grows with."""
    memory_limit_bytes: int | None = None
    """Memory limit of the tool; None: what the worker's settings say."""
    seconds: float = 0.0
    """Predicted time of the tool on a core like that of `codegen/selection/tool_time.py`."""

    @property
    def template_key(self) -> str:
        """Whose template it is about."""
        return self.key

    @property
    def name(self) -> str:
        """What a log calls it."""
        return f"template {self.spec}, {self.virtual_arch}"

    @property
    def memory_bytes(self) -> int:
        """Estimated peak of the worker and its tool together."""
        return _memory_class(WORKER_BYTES + max(TEMPLATE_BYTES, (self.memory_limit_bytes or 0) // 2))


@dataclass(frozen=True)
class CubinRequest:
    """Put the weights of one part of a layer into its template and assemble it for one architecture."""

    template: TemplateRequest
    weights: str
    """Digest of the blob with weights and bias of the whole layer."""
    part: Part
    arch: str
    options: tuple[str, ...]
    """Command-line options of ptxas, in order."""
    key: str
    """Digest of the cubin's key."""
    cost: int
    """Multiply-adds that ptxas assembles: what its memory grows with."""
    memory_limit_bytes: int | None = None
    """Memory limit of the tool; None: what the worker's settings say."""
    seconds: float = 0.0
    """Predicted time of the tool on a core like that of `codegen/selection/tool_time.py`."""
    assembler: Assembler = "ptxas"
    """Who shall make the machine code; what the direct assembler cannot do, ptxas does."""
    whole: bool = False
    """The layer has parts for ptxas: what cannot be assembled directly as one cubin comes back, to be cut into them."""

    @property
    def template_key(self) -> str:
        """See TemplateRequest."""
        return self.template.key

    @property
    def memory_bytes(self) -> int:
        """Estimated peak of the worker and its tool together; one tried again needs more than half of its new limit."""
        needed = (DIRECT_BYTES if self.whole else MULTIPLY_ADD_BYTES) * self.cost
        if self.template.tiling.reads_table:
            needed = TABLE_BYTES * self.template.spec.weights_count
        tool = max(CUBIN_BYTES + needed, (self.memory_limit_bytes or 0) // 2)
        return _memory_class(WORKER_BYTES + tool)


Request = TemplateRequest | CubinRequest


class Fault(StrEnum):
    """Whose fault a failure is, which decides whether it is tried again."""

    INPUT = "input"
    """The same input fails again: final."""
    MEMORY = "memory"
    """A tool needs more than its limit: once more with twice the limit."""
    TIME = "time"
    """ptxas takes too long: once more at a lower level; another machine would not be faster."""
    CRASH = "crash"
    """A process or a machine died: may go well the next time, and elsewhere."""
    AWAY = "away"
    """The store does not answer: waited for."""
    PARTS = "parts"
    """The layer cannot be one cubin: it is cut into parts, which goes well."""
    LOST = "lost"
    """The store has lost what cannot be made again."""
    FARM = "farm"
    """The store, the toolchain or this program: final, and not the input's fault."""

    @property
    def of_input(self) -> bool:
        """Whether the same input would fail again."""
        return self in (Fault.INPUT, Fault.MEMORY, Fault.TIME)


@dataclass(frozen=True)
class Failure:
    """Why there is no result, in words."""

    fault: Fault
    message: str
    command: str = ""
    """To run the failed tool again by hand."""
    stderr: str = ""

    def about(self, name: str) -> str:
        """All that is known of what failed, for the log."""
        parts = (f"{name} failed: {self.message}", self.command, self.stderr)
        return "\n".join(part for part in parts if part)


@dataclass(frozen=True)
class TemplateResult:
    """A template now lies in the store, or why it does not."""

    key: str
    hit: bool = False
    seconds: float = 0.0
    """That it took to make now: 0 for a hit."""
    failure: Failure | None = None


@dataclass(frozen=True)
class CubinFacts:
    """What is known of one cubin: its action record in the store."""

    cubin: str
    """Digest of the cubin's blob."""
    cubin_bytes: int
    ptx: str
    """Digest of the rewritten PTX."""
    fmas_kept: int
    fmas_deleted: int
    registers: int
    spill_bytes: int
    rewrite_seconds: float
    ptxas_seconds: float
    launch: Launch
    """How to launch this very cubin: another version of this program may launch its kernels differently."""
    assembler: Assembler = "ptxas"
    """Who made the machine code; what `ptxas_seconds` counts is its time."""
    fallback: str = ""
    """Why ptxas did what was to be assembled directly, in words."""

    @property
    def assembled(self) -> str:
        """Who made the machine code, how fast, and why not directly."""
        why = f" ({self.fallback})" if self.fallback else ""
        return f"{ASSEMBLED[self.assembler]} {self.ptxas_seconds:.2f} s{why}"

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values."""
        return {**vars(self), "launch": self.launch.to_json()}

    @staticmethod
    def from_json(record: Mapping[str, Any]) -> CubinFacts:
        """Reads what `to_json` wrote. Raises KeyError, TypeError or ValueError on anything else."""
        return CubinFacts(
            cubin=str(record["cubin"]),
            cubin_bytes=int(record["cubin_bytes"]),
            ptx=str(record["ptx"]),
            fmas_kept=int(record["fmas_kept"]),
            fmas_deleted=int(record["fmas_deleted"]),
            registers=int(record["registers"]),
            spill_bytes=int(record["spill_bytes"]),
            rewrite_seconds=float(record["rewrite_seconds"]),
            ptxas_seconds=float(record["ptxas_seconds"]),
            launch=Launch.from_json(record["launch"]),
            assembler=assembler_named(record.get("assembler")),
            fallback=str(record.get("fallback", "")),
        )


@dataclass(frozen=True)
class CubinResult:
    """A cubin now lies in the store, or why it does not."""

    key: str
    made: CubinFacts | Failure
    hit: bool = False
    """Known from before, be it a cubin or a failure."""
    instead_of: str = ""
    """Key of the cubin that was asked for, where that took too long and this one was built at a lower level."""
    warning: str = ""
    """What went wrong on the way and was put right, in words."""
    skeleton_seconds: float = 0.0
    """What ptxas took for its template's skeleton; 0 where that was there, or is not needed."""

    @property
    def failure(self) -> Failure | None:
        """Why there is no cubin; None if there is one."""
        return self.made if isinstance(self.made, Failure) else None


Result = TemplateResult | CubinResult


@dataclass(frozen=True)
class Retry:
    """A request that failed and is tried again."""

    request: Request
    failure: Failure
    again: Request
    """What is tried now: the same, or with more memory, or at a lower level."""
    delay_seconds: float = 0.0

    @property
    def text(self) -> str:
        """What is done about the failure, in words."""
        how = "tried again"
        if self.failure.fault is Fault.AWAY:
            how = f"tried again in {self.delay_seconds:.0f} s"
        elif isinstance(self.again, CubinRequest) and self.again.key != self.request.key:
            how = f"tried again at {' '.join(self.again.options)}"
        elif self.again.memory_limit_bytes != self.request.memory_limit_bytes:
            how = f"tried again with {(self.again.memory_limit_bytes or 0) // 2**20:,} MiB"
        return f"{how}: {self.failure.message}"


def failed(request: Request, failure: Failure) -> Result:
    """The result of a request that came to nothing."""
    if isinstance(request, TemplateRequest):
        return TemplateResult(request.key, failure=failure)
    return CubinResult(request.key, failure)

"""Requests to a worker and its results: small frozen values. Templates, weights and cubins travel through the store."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Any

from codegen.ir.launch import Launch
from codegen.ir.layer_spec import LayerSpec
from codegen.ir.tiling import Part, Tiling
from codegen.sass.qualification import ASSEMBLED, Assembler, assembler_named

WORKER_BYTES = 192 * 2**20
"""Memory of a worker process without a tool."""
TEMPLATE_BYTES = 512 * 2**20
"""Memory of nvcc and its children for a template of any shape, with a margin."""
CUBIN_BYTES = 64 * 2**20
"""Memory of ptxas for a kernel without multiply-adds, with a margin: ptxas 13.0 used 30 MiB."""
MULTIPLY_ADD_BYTES = 12_000
"""Memory of ptxas per multiply-add: ptxas 13.0 used 6 to 8 KB at -O3 and up to 12 KB at -O1."""
DIRECT_BYTES = 1_000
"""Memory of the direct assembler per multiply-add: it used 500 to 900 bytes."""
TABLE_BYTES = 16
"""Memory per weight of a layer with a weight table, which has zero weights too."""


def _memory_class(needed_bytes: int) -> int:
    """The next power of two: Ray reuses a worker process for requests of equal resources."""
    return 1 << (needed_bytes - 1).bit_length()


class Turn(IntEnum):
    """Place of a request among those of its job: builds of milliseconds first, the longest last."""

    DIRECT = 0
    TEMPLATE = 1
    PTXAS = 2


@dataclass(frozen=True)
class TemplateRequest:
    """A request for the template of one layer shape."""

    spec: LayerSpec
    tiling: Tiling
    virtual_arch: str
    key: str
    """Digest of the template's key; the worker checks that its own toolchain gives the same digest."""
    cost: int
    """Multiply-adds that nvcc compiles, which its time grows with."""
    memory_limit_bytes: int | None = None
    """Memory limit of the tool; None: the limit of the worker's settings."""
    seconds: float = 0.0
    """Predicted time of the tool on the core that `codegen/selection/tool_time.py` was fitted on."""

    @property
    def turn(self) -> Turn:
        """Its place in its job."""
        return Turn.TEMPLATE

    @property
    def template_key(self) -> str:
        """Key of the template that the request makes or needs."""
        return self.key

    @property
    def name(self) -> str:
        """Name in logs."""
        return f"template {self.spec}, {self.virtual_arch}"

    @property
    def memory_bytes(self) -> int:
        """Estimated peak of the worker and its tool together."""
        return _memory_class(WORKER_BYTES + max(TEMPLATE_BYTES, (self.memory_limit_bytes or 0) // 2))


@dataclass(frozen=True)
class CubinRequest:
    """A request for one cubin: a template with the weights of one part of a layer, assembled for one architecture."""

    template: TemplateRequest
    weights: str
    """Digest of the blob with weights and biases of the whole layer."""
    part: Part
    arch: str
    options: tuple[str, ...]
    """Command-line options of ptxas, in order."""
    key: str
    """Digest of the cubin's key."""
    cost: int
    """Multiply-adds that ptxas assembles, which its memory grows with."""
    memory_limit_bytes: int | None = None
    """Memory limit of the tool; None: the limit of the worker's settings."""
    seconds: float = 0.0
    """Predicted time of the tool on the core that `codegen/selection/tool_time.py` was fitted on."""
    assembler: Assembler = "ptxas"
    """Preferred assembler; unsupported code falls back to ptxas."""
    patch_template: str = ""
    """Key of the patch template that ptxas has to make first, as far as is known; else empty."""
    whole: bool = False
    """Whether the layer is too large for ptxas as one cubin: then there is no fallback, and the fault is PARTS."""
    refused: bool = False
    """Whether the assembler refused the layer as one cubin: then it mostly leaves the parts to ptxas too."""

    @property
    def turn(self) -> Turn:
        """See TemplateRequest."""
        direct = self.assembler == "direct" and not self.refused
        quick = direct or (self.assembler == "patch" and not self.patch_template)
        return Turn.DIRECT if quick else Turn.PTXAS

    @property
    def template_key(self) -> str:
        """See TemplateRequest."""
        return self.template.key

    @property
    def memory_bytes(self) -> int:
        """Estimated peak of the worker and its tool together; a retry with a larger limit needs over half of it."""
        needed = (DIRECT_BYTES if self.whole else MULTIPLY_ADD_BYTES) * self.cost
        if self.template.tiling.reads_table:
            needed = TABLE_BYTES * self.template.spec.weights_count
        tool = max(CUBIN_BYTES + needed, (self.memory_limit_bytes or 0) // 2)
        return _memory_class(WORKER_BYTES + tool)


Request = TemplateRequest | CubinRequest


class Fault(StrEnum):
    """Cause of a failure, which decides about a retry."""

    INPUT = "input"
    """The input: final, since it would fail again."""
    MEMORY = "memory"
    """A tool exceeded its memory limit: one retry with twice the limit."""
    TIME = "time"
    """ptxas timed out: one retry at a lower optimisation level, since another machine would not be faster."""
    CRASH = "crash"
    """A process or machine died: retried, if possible on another machine."""
    AWAY = "away"
    """The store is unreachable: retried for as long as FARM_AWAY_TIMEOUT says."""
    PARTS = "parts"
    """The layer cannot be one cubin: it is split into parts."""
    LOST = "lost"
    """The store has lost a blob that cannot be rebuilt: final."""
    FARM = "farm"
    """The store, the toolchain or this program: final."""

    @property
    def of_input(self) -> bool:
        """Whether the input is the cause, so that it would fail again."""
        return self in (Fault.INPUT, Fault.MEMORY, Fault.TIME)


@dataclass(frozen=True)
class Failure:
    """Cause and message of a failed request."""

    fault: Fault
    message: str
    command: str = ""
    """Command line that runs the failed tool again."""
    stderr: str = ""

    def about(self, name: str) -> str:
        """Log text about the failure of `name`: message, command and stderr."""
        parts = (f"{name} failed: {self.message}", self.command, self.stderr)
        return "\n".join(part for part in parts if part)


@dataclass(frozen=True)
class TemplateResult:
    """Result of a template request: the template is in the store unless there is a failure."""

    key: str
    hit: bool = False
    seconds: float = 0.0
    """Build time; 0 for a cache hit."""
    failure: Failure | None = None
    warning: str = ""
    """Message about a problem that was repaired; empty if there was none."""


@dataclass(frozen=True)
class CubinFacts:
    """Facts about one cubin: its action record in the store."""

    cubin: str
    """Digest of the cubin's blob."""
    cubin_bytes: int
    ptx: str | None
    """Digest of the rewritten PTX that ptxas assembled; None for a cubin made without it."""
    rewriter: str
    """Digest of the sources that would rewrite it, which the cubin's key covers."""
    fmas_kept: int
    fmas_deleted: int
    registers: int
    spill_bytes: int
    rewrite_seconds: float
    ptxas_seconds: float
    launch: Launch
    """Launch parameters of this cubin; another version of this program may launch its kernels differently."""
    assembler: Assembler = "ptxas"
    """Assembler that made the machine code; `ptxas_seconds` is its time."""
    fallback: str = ""
    """Why it fell back to ptxas; empty if it did not."""
    sampled: bool = False
    """Whether a value patch was compared with ptxas's cubin."""

    @property
    def assembled(self) -> str:
        """Log text: assembler, its time, and the reason of a fallback or that a value patch equals ptxas's cubin."""
        equal = self.sampled and self.assembler == "patch"
        reason = self.fallback or ("equal to ptxas's cubin" if equal else "")
        why = f" ({reason})" if reason else ""
        return f"{ASSEMBLED[self.assembler]} {self.ptxas_seconds:.2f} s{why}"

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {**vars(self), "launch": self.launch.to_json()}

    @staticmethod
    def from_json(record: Mapping[str, Any]) -> CubinFacts:
        """Inverse of `to_json`. Raises KeyError, TypeError or ValueError for any other record."""
        return CubinFacts(
            cubin=str(record["cubin"]),
            cubin_bytes=int(record["cubin_bytes"]),
            ptx=None if record["ptx"] is None else str(record["ptx"]),
            rewriter=str(record["rewriter"]),
            fmas_kept=int(record["fmas_kept"]),
            fmas_deleted=int(record["fmas_deleted"]),
            registers=int(record["registers"]),
            spill_bytes=int(record["spill_bytes"]),
            rewrite_seconds=float(record["rewrite_seconds"]),
            ptxas_seconds=float(record["ptxas_seconds"]),
            launch=Launch.from_json(record["launch"]),
            assembler=assembler_named(record.get("assembler")),
            fallback=str(record.get("fallback", "")),
            sampled=record.get("sampled") is True,
        )


@dataclass(frozen=True)
class CubinResult:
    """Result of a cubin request: the facts of the cubin in the store, or a failure."""

    key: str
    made: CubinFacts | Failure
    hit: bool = False
    """Whether the cubin or the failure was in the store."""
    instead_of: str = ""
    """Key of the requested cubin if that timed out and this one was built at a lower optimisation level."""
    warning: str = ""
    """Message about a problem that was repaired; empty if there was none."""
    skeleton_seconds: float = 0.0
    """Time of ptxas for the skeleton of the template; 0 if the skeleton was stored or not needed."""

    @property
    def failure(self) -> Failure | None:
        """The failure; None if there is a cubin."""
        return self.made if isinstance(self.made, Failure) else None


Result = TemplateResult | CubinResult


@dataclass(frozen=True)
class Retry:
    """A failed request and its next attempt."""

    request: Request
    failure: Failure
    again: Request
    """The next attempt: unchanged, with a larger memory limit, or at a lower optimisation level."""
    delay_seconds: float = 0.0

    @property
    def text(self) -> str:
        """Log text about the next attempt and the failure."""
        how = "retrying"
        if self.failure.fault is Fault.AWAY:
            how = f"retrying in {self.delay_seconds:.0f} s"
        elif isinstance(self.again, CubinRequest) and self.again.key != self.request.key:
            how = f"retrying at {' '.join(self.again.options)}"
        elif self.again.memory_limit_bytes != self.request.memory_limit_bytes:
            how = f"retrying with {(self.again.memory_limit_bytes or 0) // 2**20:,} MiB"
        return f"{how}: {self.failure.message}"


def failed(request: Request, failure: Failure) -> Result:
    """The result of a failed request."""
    if isinstance(request, TemplateRequest):
        return TemplateResult(request.key, failure=failure)
    return CubinResult(request.key, failure)

"""Job, Build, BuildResult and the states they pass through. Frozen values: this is what crosses a process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from codegen.ir.launch import Launch
from codegen.ir.layer_spec import LayerSpec, SkippedLayer
from codegen.ir.tiling import Accumulator, Form, Part, Tiling
from codegen.sass.qualification import Assembler, AssemblerChoice


class Status(StrEnum):
    """Where a job or a build stands."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    """The input's fault: the same input fails again."""
    CRASHED = "CRASHED"
    """The infrastructure's fault."""
    CANCELLED = "CANCELLED"

    @property
    def final(self) -> bool:
        """Whether nothing happens any more unless somebody asks for a retry."""
        return self not in (Status.PENDING, Status.RUNNING)


ALLOWED_MOVES: dict[Status, frozenset[Status]] = {
    Status.PENDING: frozenset({Status.RUNNING, Status.CANCELLED, Status.FAILED}),
    Status.RUNNING: frozenset({Status.PENDING, Status.SUCCEEDED, Status.FAILED, Status.CRASHED, Status.CANCELLED}),
    Status.SUCCEEDED: frozenset(),
    Status.FAILED: frozenset({Status.PENDING}),
    Status.CRASHED: frozenset({Status.PENDING}),
    Status.CANCELLED: frozenset({Status.PENDING}),
}
"""From a state to the states it may move to; back to PENDING is a retry or a resumption."""


class Outcome(StrEnum):
    """How one cubin came to be."""

    HIT = "hit"
    BUILT = "built"
    FAILED = "failed"


@dataclass(frozen=True)
class BuildOptions:
    """What a person chose for a whole submission."""

    archs: tuple[str, ...]
    batch: int = 64
    form: Form = "rolled"
    optimisation: int = 3
    """ptxas -O level."""
    strict: bool = False
    accumulate: Accumulator = "float32"
    """What float16 layers add up products in, beyond the first so many of a sum."""
    code_limit_bytes: int = 16_000_000
    """Machine code of one layer; a larger one is skipped."""
    tuning: bool = True
    """Whether tuning records are asked for tilings."""
    assembler: AssemblerChoice = "auto"
    """Who makes machine code."""

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> BuildOptions:
        """Reads what `to_json` wrote."""
        return BuildOptions(**{**value, "archs": tuple(value["archs"])})

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values."""
        return {
            "archs": list(self.archs),
            "batch": self.batch,
            "form": self.form,
            "optimisation": self.optimisation,
            "strict": self.strict,
            "accumulate": self.accumulate,
            "code_limit_bytes": self.code_limit_bytes,
            "tuning": self.tuning,
            "assembler": self.assembler,
        }


@dataclass(frozen=True)
class TilingChoice:
    """Where the tiling of a layer comes from, for one architecture."""

    arch: str
    gpu: str = ""
    """Whose tuning record it is; empty: the cost model's choice."""
    note: str = ""
    """Why a record was not used, in words."""


@dataclass(frozen=True)
class Build:
    """One layer of a job; where architectures have different tilings, it for those with this one."""

    id: int
    """Id of its row in the ledger; 0 before it has one."""
    job: str
    position: int
    """In the graph, from 0."""
    layer: str
    input: str
    output: str
    spec: LayerSpec
    tiling: Tiling
    weights: str
    """Digest of the blob with weights and bias."""
    nonzeros: int
    parts: tuple[Part, ...]
    """In order; each is one cubin per architecture but for the next ones."""
    residual: str = ""
    """Name of the tensor that is added to the output; empty without one."""
    rows: int | None = 1
    """Rows per image of a Linear, None if the model does not say; 1 for other layers."""
    folded: tuple[str, ...] = ()
    """The nodes that are computed with this layer, as `BatchNormalization bn1`."""
    choices: tuple[TilingChoice, ...] = ()
    """One for each architecture it is for; empty: for all of the job's, by the cost model."""
    whole: tuple[str, ...] = ()
    """Architectures for which the layer is one cubin, whatever its parts: ptxas, which needs them, does not make it."""
    gate: str = ""
    """Name of the tensor that a gated layer's input is multiplied by; empty of others."""

    def archs(self, options: BuildOptions) -> tuple[str, ...]:
        """Those of the job's that it is for."""
        return tuple(choice.arch for choice in self.choices) or options.archs

    def parts_of(self, arch: str) -> tuple[Part, ...]:
        """In order; each is one cubin for this architecture."""
        return (Part(self.parts[0].first, self.parts[-1].end),) if arch in self.whole else self.parts

    def cubin_name(self, arch: str, part: int) -> str:
        """What people call one of its cubins: `conv1 sm_90`, or `conv1 sm_90 part 2 of 3`; parts count from 0."""
        count = len(self.parts_of(arch))
        several = f" part {part + 1} of {count}" if count > 1 else ""
        return f"{self.layer} {arch}{several}"


def count_cubins(builds: Sequence[Build], options: BuildOptions) -> int:
    """Number of cubins of a whole job: its layers' parts times architectures."""
    return sum(len(build.parts_of(arch)) for build in builds for arch in build.archs(options))


@dataclass(frozen=True)
class BuildResult:
    """One cubin of one build, or why there is none."""

    build: int
    arch: str
    part: int
    """Position in the build's parts, from 0."""
    outcome: Outcome
    template_key: str
    cubin_key: str
    cubin: str | None = None
    """Digest of the cubin's blob."""
    cubin_bytes: int = 0
    ptx: str | None = None
    """Digest of the rewritten PTX."""
    fmas_kept: int = 0
    fmas_deleted: int = 0
    registers: int = 0
    spill_bytes: int = 0
    template_seconds: float = 0.0
    """0 when the template was a hit."""
    rewrite_seconds: float = 0.0
    ptxas_seconds: float = 0.0
    error: str = ""
    command: str = ""
    """To run the failed tool again by hand."""
    optimisation: int = 3
    """ptxas -O level that it was built at: lower than the job's where ptxas took too long at that."""
    assembler: Assembler = "ptxas"
    """Who made the machine code."""
    fallback: str = ""
    """Why ptxas did what was to be assembled directly, in words."""
    launch: Launch | None = None
    """How to launch the cubin, from its record in the store; None without a cubin or in jobs older than that."""
    skeleton_seconds: float = 0.0
    """Of ptxas; 0 when the template's skeleton was there, or not needed."""

    @property
    def known_launch(self) -> Launch:
        """Raises ValueError if nobody knows it."""
        if self.launch is None:
            raise ValueError(f"nobody knows how the cubin {self.cubin} is launched")
        return self.launch


@dataclass(frozen=True)
class Job:
    """One checkpoint for some architectures, as the ledger holds it."""

    id: str
    submission: str
    submitter: str
    name: str
    model: str
    """Path of the checkpoint as it was given."""
    model_digest: str
    options: BuildOptions
    status: Status
    reason: str
    """Always words."""
    stage: str
    """What runs now: template, assemble, or empty."""
    done: int
    """Cubins that are there; not those that failed."""
    total: int
    """The layers' parts times architectures."""
    hits: int
    tries: int
    submitted_at: datetime
    started_at: datetime | None = None
    """When the first of its cubins or templates was begun; a job that was claimed may wait for older ones."""
    finished_at: datetime | None = None
    running: int = 0
    """Number of templates and cubins that a tool is working on now, for this job or for it first."""
    ends_at: datetime | None = None
    """When it will end, as its coordinator predicts."""
    skipped: tuple[SkippedLayer, ...] = field(default=())
    fault: str = ""
    """What ended it (requests.Fault); empty unless it failed or crashed."""
    network: str | None = None
    """Digest of the blob with what is left of the model beside its compiled layers; None: it was not kept."""

    @property
    def claimed(self) -> bool:
        """Whether it is RUNNING for the coordinator that has it, while nothing of it was found or begun."""
        return self.status is Status.RUNNING and self.started_at is None


@dataclass(frozen=True)
class JobDetail:
    """A job with all its layers, in graph order, and their cubins."""

    job: Job
    builds: tuple[Build, ...]
    results: tuple[BuildResult, ...]

    def results_of(self, build: Build) -> list[BuildResult]:
        """In the order of the job's architectures, then of the parts; those still to come are absent."""
        order = {arch: i for i, arch in enumerate(self.job.options.archs)}
        results = (each for each in self.results if each.build == build.id)
        return sorted(results, key=lambda each: (order[each.arch], each.part))


@dataclass(frozen=True)
class NewJob:
    """A job on its way into the ledger."""

    id: str
    name: str
    model: str
    model_digest: str
    request_digest: str
    """Digest of namespace, name, model and options: an unfinished job with the same one stands in for a new one."""
    options: BuildOptions
    builds: tuple[Build, ...]
    skipped: tuple[SkippedLayer, ...] = field(default=())
    network: str | None = None
    """Digest of the blob with what is left of the model beside its compiled layers; None: there is no model."""


@dataclass(frozen=True)
class NewSubmission:
    """One call: a group of jobs that go into the ledger together or not at all."""

    id: str
    submitter: str
    jobs: tuple[NewJob, ...]


@dataclass(frozen=True)
class JobSet:
    """Which jobs to cancel or to retry: those that are all of what is named; with nothing named, every job."""

    ids: tuple[str, ...] | None = None
    submission: str | None = None


@dataclass(frozen=True)
class Event:
    """One line of a job's log."""

    id: int
    at: datetime
    level: str
    """info, warning or error."""
    text: str

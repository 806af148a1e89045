"""Jobs, builds, results and their states, as frozen values that processes exchange."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from math import isqrt
from typing import Any, Literal

from codegen.ir.launch import MOST_IMAGES, Launch
from codegen.ir.layer_spec import LIKELY_ROWS, LayerSpec, SkippedLayer
from codegen.ir.tiling import Accumulator, Form, Part, Tiling
from codegen.sass.qualification import Assembler, AssemblerChoice, Trust
from codegen.target.arch import shared_device
from codegen.target.device_model import DeviceModel, device_for
from farm.errors import UsageError

JOB_FORMAT = 1
"""Format of a job's options, layers, tilings and launches in the ledger, written by whoever submits it.

It rises with every change of their JSON that an older farm cannot read, such as a new epilogue step.
"""


NO_COORDINATOR = "no coordinator: run farm compile again or farm serve"
"""Reason of an unfinished job that nobody will run."""


class Status(StrEnum):
    """The state of a job."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    """Ended by a fault of the input: the same input fails again."""
    CRASHED = "CRASHED"
    """Ended by a fault of the infrastructure."""
    CANCELLED = "CANCELLED"

    @property
    def final(self) -> bool:
        """Whether the job has ended; only a retry changes it."""
        return self not in (Status.PENDING, Status.RUNNING)


ALLOWED_MOVES: dict[Status, frozenset[Status]] = {
    Status.PENDING: frozenset({Status.RUNNING, Status.CANCELLED, Status.FAILED}),
    Status.RUNNING: frozenset({Status.PENDING, Status.SUCCEEDED, Status.FAILED, Status.CRASHED, Status.CANCELLED}),
    Status.SUCCEEDED: frozenset(),
    Status.FAILED: frozenset({Status.PENDING}),
    Status.CRASHED: frozenset({Status.PENDING}),
    Status.CANCELLED: frozenset({Status.PENDING}),
}
"""Allowed moves between states. A move back to PENDING is a retry or a resumption."""


class Outcome(StrEnum):
    """The outcome for one cubin: a cache hit, built, or failed."""

    HIT = "hit"
    BUILT = "built"
    FAILED = "failed"


LeaveDense = Literal["auto", "never"]
"""auto: a layer that is clearly faster dense, by prediction, is left dense."""


@dataclass(frozen=True)
class BuildOptions:
    """The build options of a submission."""

    archs: tuple[str, ...]
    batches: tuple[int, ...] = (64,)
    """Batch sizes to be fast at, ascending; a layer has kernels for each, shared where the tiling is the same."""
    form: Form = "rolled"
    optimisation: int = 3
    """Level of ptxas -O."""
    strict: bool = False
    """Whether a skipped layer is an error."""
    accumulate: Accumulator = "float32"
    """Type in which float16 layers add up a sum beyond its first products; float16 is faster and less exact."""
    code_limit_bytes: int = 16_000_000
    """Limit of a layer's machine code; a larger layer is skipped."""
    tuning: bool = True
    """Whether tilings come from tuning records where there are some."""
    assembler: AssemblerChoice = "auto"
    """Requested assembler; auto is direct where that is trusted, else a patch where that is possible."""
    trust: Trust | None = None
    """Evidence that auto asks of direct code; None: as the settings say, which a submission puts in."""
    leave_dense: LeaveDense = "auto"
    """Whether a layer that the framework computes faster is left to it; with `strict` none is."""
    min_sparsity: float = 0.0
    """Share of zeros below which a layer is left dense in any case."""
    allow_tf32: bool = False
    """Whether the framework computes dense float32 layers in TF32."""
    gpus: tuple[str, ...] = ()
    """GPUs to be fast on; an architecture with none of them is compiled for its typical one."""

    shared: tuple[str, ...] = ()
    """Architectures given as sm_80+: the GPUs of others that run their cubins shall run them too."""

    def __post_init__(self) -> None:
        """Sorts the batch sizes. Raises UsageError without one, and for one that no launch takes."""
        batches = tuple(sorted({*self.batches}))
        if not batches or batches[0] < 1 or batches[-1] > MOST_IMAGES:
            raise UsageError(f"batch sizes '{batches_text(batches)}': expected one or more from 1 to {MOST_IMAGES:,}")
        object.__setattr__(self, "batches", batches)

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> BuildOptions:
        """Reads what `to_json` wrote."""
        lists = {name: tuple(value[name]) for name in ("archs", "batches", "gpus", "shared")}
        return BuildOptions(**{**value, **lists})

    def to_json(self) -> dict[str, Any]:
        """The options as plain JSON values."""
        return {
            "archs": list(self.archs),
            "batches": list(self.batches),
            "form": self.form,
            "optimisation": self.optimisation,
            "strict": self.strict,
            "accumulate": self.accumulate,
            "code_limit_bytes": self.code_limit_bytes,
            "tuning": self.tuning,
            "assembler": self.assembler,
            "trust": self.trust,
            "leave_dense": self.leave_dense,
            "min_sparsity": self.min_sparsity,
            "allow_tf32": self.allow_tf32,
            "gpus": list(self.gpus),
            "shared": list(self.shared),
        }

    def device(self, arch: str) -> DeviceModel:
        """The GPU that predictions and tilings for an architecture are made for."""
        device = device_for(arch, self.gpus)
        return shared_device(device) if arch in self.shared else device

    def most_images(self, batch: int) -> int | None:
        """Largest number of images that run with the kernels of a batch size; None if there is no limit.

        The nearest batch size by ratio serves a number of images; of two equally near ones the smaller.
        """
        larger = next((each for each in self.batches if each > batch), None)
        return None if larger is None else isqrt(batch * larger)

    def batch_for(self, images: int) -> int:
        """The batch size whose kernels run a number of images."""
        limits = ((batch, self.most_images(batch)) for batch in self.batches)
        return next(batch for batch, most in limits if most is None or images <= most)


@dataclass(frozen=True)
class TilingChoice:
    """The origin of a layer's tiling for one architecture."""

    arch: str
    gpu: str = ""
    """The GPU of the tuning record; empty: the cost model chose."""
    note: str = ""
    """Why a tuning record was not used, in words."""
    batches: tuple[int, ...] = ()
    """Batch sizes that the tiling is for, one after another among the job's; empty: all of the job's."""
    measured: tuple[tuple[int, float], ...] = ()
    """Images, or rows of a linear layer, that the bands of the GPU's tuning records are named after, and the records'
    cold times in microseconds.

    A record that stands in for one of another band, density or accumulator has no time here."""

    def microseconds(self, rows: int) -> float | None:
        """Time measured for exactly `rows` images, or rows of a linear layer; otherwise None."""
        return dict(self.measured).get(rows)


@dataclass(frozen=True)
class Build:
    """A layer of a job. If architectures or batch sizes have different tilings, there is a build for each tiling."""

    id: int
    """Id of its row in the ledger; 0 before it has one."""
    job: str
    position: int
    """Position of the layer in the graph, from 0."""
    layer: str
    input: str
    output: str
    spec: LayerSpec
    tiling: Tiling
    weights: str
    """Digest of the blob with weights and bias."""
    nonzeros: int
    mask: str
    """Digest of which weights and biases are non-zero."""
    parts: tuple[Part, ...]
    """Parts in order. Each is one cubin per architecture, except for those in `whole`."""
    residual: str = ""
    """Name of the tensor that is added to the output; empty if there is none."""
    rows: int | None = 1
    """Rows per image of a linear layer, None if the model does not say; 1 for other layers."""
    folded: tuple[str, ...] = ()
    """Nodes that are computed with this layer, such as `BatchNormalization bn1`."""
    choices: tuple[TilingChoice, ...] = ()
    """One for each architecture of the build; empty: all of the job's, chosen by the cost model."""
    whole: tuple[str, ...] = ()
    """Architectures for which the layer is one cubin: it is assembled directly, and only ptxas needs parts."""
    gate: str = ""
    """Name of the tensor that multiplies a gated layer's input; empty for other layers."""

    @property
    def likely_rows(self) -> int:
        """Rows per image that times are predicted for."""
        return self.rows or LIKELY_ROWS

    def archs(self, options: BuildOptions) -> tuple[str, ...]:
        """The job's architectures that this build is for."""
        return tuple(choice.arch for choice in self.choices) or options.archs

    def own_batches(self, arch: str) -> tuple[int, ...]:
        """The batch sizes that it is for, if there are other builds for others; else empty."""
        return next((choice.batches for choice in self.choices if choice.arch == arch), ())

    def serves(self, arch: str, batch: int, options: BuildOptions) -> bool:
        """Whether this build has the layer's kernels for an architecture and a batch size of the job."""
        return arch in self.archs(options) and batch in (self.own_batches(arch) or options.batches)

    def most_rows(self, arch: str, options: BuildOptions) -> int | None:
        """Largest number of images, or of rows of a Linear, that its kernels are meant for; None: any number."""
        own = self.own_batches(arch)
        most = options.most_images(own[-1]) if own else None
        return None if most is None else min(most * self.likely_rows, MOST_IMAGES)

    def parts_of(self, arch: str) -> tuple[Part, ...]:
        """The parts for an architecture, in order; each is one cubin."""
        return (Part(self.parts[0].first, self.parts[-1].end),) if arch in self.whole else self.parts

    def cubin_name(self, arch: str, part: int) -> str:
        """Display name of a cubin, as in `conv1 sm_90 batch 1,8 part 2 of 3`. The argument `part` counts from 0."""
        count = len(self.parts_of(arch))
        batches = f" batch {batches_text(own)}" if (own := self.own_batches(arch)) else ""
        several = f" part {part + 1} of {count}" if count > 1 else ""
        return f"{self.layer} {arch}{batches}{several}"


def batches_of(batch: int | Sequence[int]) -> tuple[int, ...]:
    """One batch size, or several, as `BuildOptions` has them."""
    return (batch,) if isinstance(batch, int) else tuple(batch)


def batches_text(batches: Sequence[int]) -> str:
    """Batch sizes as in 1,8,64."""
    return ",".join(map(str, batches))


def count_cubins(builds: Sequence[Build], options: BuildOptions) -> int:
    """Number of cubins of a job: parts times architectures, over all builds."""
    return sum(len(build.parts_of(arch)) for build in builds for arch in build.archs(options))


@dataclass(frozen=True)
class BuildResult:
    """The result for one cubin of a build: the cubin, or the error."""

    build: int
    arch: str
    part: int
    """Index of the part, from 0."""
    outcome: Outcome
    template_key: str
    cubin_key: str
    cubin: str | None = None
    """Digest of the cubin's blob."""
    cubin_bytes: int = 0
    ptx: str | None = None
    """Digest of the rewritten PTX that ptxas assembled; None for a cubin made without it."""
    fmas_kept: int = 0
    fmas_deleted: int = 0
    registers: int = 0
    spill_bytes: int = 0
    template_seconds: float = 0.0
    """Time of nvcc; 0 for a cache hit."""
    rewrite_seconds: float = 0.0
    ptxas_seconds: float = 0.0
    error: str = ""
    command: str = ""
    """Command that runs the failed tool again."""
    optimisation: int = 3
    """Level of ptxas -O; lower than the job's if ptxas timed out at that level."""
    assembler: Assembler = "ptxas"
    """The assembler that made the machine code."""
    fallback: str = ""
    """Why ptxas was used instead of the requested assembler, in words."""
    evidence: str = ""
    """Evidence of direct code, such as `qualified on NVIDIA H200` or `checked without a GPU`; empty for other code."""
    launch: Launch | None = None
    """Launch of the cubin, from its record in the store; None without a cubin."""
    skeleton_seconds: float = 0.0
    """Time of ptxas for the skeleton; 0 if it was a cache hit or not needed."""

    @property
    def known_launch(self) -> Launch:
        """The launch of a cubin that was built. Raises ValueError if there is no cubin."""
        if self.launch is None:
            raise ValueError(
                f"the result for {self.arch} part {self.part} of build {self.build} has no cubin to launch"
            )
        return self.launch


@dataclass(frozen=True)
class Job:
    """A job, as the ledger records it: one checkpoint compiled for some architectures."""

    id: str
    submission: str
    submitter: str
    name: str
    model: str
    """Absolute path of the checkpoint."""
    model_digest: str
    options: BuildOptions
    status: Status
    reason: str
    """Why the job is in this state, in words; empty if there is nothing to say."""
    stage: str
    """The current stage: template, assemble, or empty."""
    done: int
    """Number of cubins that exist; failed ones do not count."""
    total: int
    """Number of cubins of the job: parts times architectures."""
    hits: int
    tries: int
    """Number of claims."""
    submitted_at: datetime
    started_at: datetime | None = None
    """Start of its first template or cubin; a claimed job may wait for older ones."""
    finished_at: datetime | None = None
    running: int = 0
    """Number of templates and cubins that a tool is working on now, for this job or for it first."""
    ends_at: datetime | None = None
    """End of the job, as its coordinator predicts."""
    skipped: tuple[SkippedLayer, ...] = field(default=())
    fault: str = ""
    """The kind of fault that ended it (messages.Fault); empty unless it failed or crashed."""
    network: str | None = None
    """Digest of the blob with the network around the compiled layers; None: it was not kept."""
    claims: int = 0
    """Number of claims since it was last planned: more than one if its coordinators could not plan it, or died."""
    unreadable: str = ""
    """Why this version cannot read the job, which then has no architectures; empty if it can."""

    @property
    def claimed(self) -> bool:
        """Whether a coordinator has taken the job but not started it."""
        return self.status is Status.RUNNING and self.started_at is None


def trace_id(job_id: str) -> str:
    """Id of a job's OpenTelemetry trace, which all its tries share: 32 hexadecimal digits."""
    return hashlib.sha256(job_id.encode()).hexdigest()[:32]


@dataclass(frozen=True)
class JobDetail:
    """A job with its builds in graph order, and their results."""

    job: Job
    builds: tuple[Build, ...]
    results: tuple[BuildResult, ...]

    def results_of(self, build: Build) -> list[BuildResult]:
        """The results of a build so far, ordered by the job's architectures, then by parts."""
        order = {arch: i for i, arch in enumerate(self.job.options.archs)}
        results = (each for each in self.results if each.build == build.id)
        return sorted(results, key=lambda each: (order[each.arch], each.part))


@dataclass(frozen=True)
class NewJob:
    """A job that is not in the ledger yet."""

    id: str
    name: str
    model: str
    model_digest: str
    request_digest: str
    """Digest of namespace, name, model, options and network; an unfinished job with the same digest is reused."""
    options: BuildOptions
    builds: tuple[Build, ...]
    skipped: tuple[SkippedLayer, ...] = field(default=())
    network: str | None = None
    """Digest of the blob with the network around the compiled layers; None: there is none."""


@dataclass(frozen=True)
class NewSubmission:
    """A group of jobs that enter the ledger together or not at all."""

    id: str
    submitter: str
    jobs: tuple[NewJob, ...]


@dataclass(frozen=True)
class JobSet:
    """The jobs to cancel or to retry: those that fulfil all conditions; without conditions, all jobs."""

    ids: tuple[str, ...] | None = None
    submission: str | None = None


@dataclass(frozen=True)
class Event:
    """A line of a job's log."""

    id: int
    at: datetime
    level: str
    """info, warning or error."""
    text: str

"""One qualification run: worker processes build the corpus, a GPU compares the builds, records hold the result."""

from __future__ import annotations

import math
import re
import time
from collections import Counter
from collections.abc import Generator, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Future, wait
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from itertools import islice
from typing import Protocol, get_args

from codegen.errors import DeviceError
from codegen.ir.layer_spec import DataType
from codegen.keys import assembler_digest
from codegen.sass.qualification import SUPPORTED_ARCHS, supported_data_types
from codegen.toolchain.tools import ToolLimits, find_toolchain
from farm.config.settings import Settings, cores_folder
from farm.cuda.device import Device
from farm.errors import NoWorkerError, UsageError
from farm.executors import open_gpu
from farm.ledger import Ledger
from farm.qualification.build import BuildPool, BuiltShape, LayerPair
from farm.qualification.comparator import Comparator, GpuComparator
from farm.qualification.corpus import LAYERS_PER_SHAPE, Shape, shape_numbers
from farm.qualification.record import QualificationRecord
from farm.store import open_store
from farm.worker.cache_lookup import known_toolchain

BUILDER_ENDED = "the system ended a build process, perhaps for memory: run it again with a smaller --jobs"
AHEAD = 4
"""Shapes queued beyond one per process, so that no process idles while the GPU compares."""


@dataclass(frozen=True)
class QualificationPlan:
    """Range of the corpus to compare; layers are numbered, and another range has other layers."""

    layers: int = 2000
    """Layers per data type."""
    first: int = 0
    """Number of the first layer, or of another one of its shape, which has LAYERS_PER_SHAPE of them."""
    seconds: float | None = None
    """Time limit for comparing; None: no limit."""
    data_types: tuple[DataType, ...] = get_args(DataType)
    """Data types to compare, where the assembler supports them."""

    @property
    def first_shape(self) -> int:
        """Number of the first shape drawn."""
        return self.first // LAYERS_PER_SHAPE


@dataclass(frozen=True)
class Started:
    """Event: the run on a GPU begins."""

    gpu: str
    arch: str
    driver: str
    ptxas: str
    data_types: tuple[DataType, ...]
    layers: int
    """Layers of all data types together."""


@dataclass(frozen=True)
class Tally:
    """Result of one shape, or the sum over several."""

    layers: int = 0
    """Layers compared."""
    outputs: int = 0
    """Outputs compared."""
    shapes: int = 0
    """Shapes with at least one compared layer."""
    wrong: tuple[str, ...] = ()
    """Layers whose outputs differ, on which the assembler crashed, or at which the GPU failed, with the reason."""
    refused: Counter[str] = field(default_factory=Counter)
    """Number of layers that the assembler left to ptxas, by reason."""
    not_built: tuple[str, ...] = ()
    """Layers that nvcc or ptxas failed to build."""
    ptxas_seconds: float = 0.0
    direct_seconds: float = 0.0

    def __add__(self, other: Tally) -> Tally:
        return Tally(
            self.layers + other.layers,
            self.outputs + other.outputs,
            self.shapes + other.shapes,
            self.wrong + other.wrong,
            self.refused + other.refused,
            self.not_built + other.not_built,
            self.ptxas_seconds + other.ptxas_seconds,
            self.direct_seconds + other.direct_seconds,
        )

    @property
    def drawn(self) -> int:
        """Layers compared, refused or not built."""
        return self.layers + self.refused.total() + len(self.not_built)


@dataclass(frozen=True)
class ShapeResult:
    """Event: the layers of one shape were compared."""

    name: str
    data_type: DataType
    tally: Tally
    evidence: tuple[tuple[str, bytes], ...] = ()
    """File name and bytes of both builds of each layer whose comparison failed."""


QualificationEvent = Started | ShapeResult


class QualificationProgress:
    """Receives the events of a run; this base class shows nothing."""

    def waiting(self, reason: str) -> None:
        """No GPU is free yet."""

    def started(self, started: Started) -> None:
        """The run begins."""

    def shape_done(self, shape: ShapeResult) -> None:
        """A shape's layers were compared."""


@dataclass(frozen=True)
class QualificationOutcome:
    """Result of a run."""

    started: Started
    tallies: dict[DataType, Tally]
    records: tuple[QualificationRecord, ...]
    """One per data type with a compared or wrong layer."""


class ShapeBuilder(Protocol):
    """Builds shapes in the background, as BuildPool does."""

    def submit(self, number: int, data_type: DataType, variants: int = LAYERS_PER_SHAPE) -> Future[BuiltShape]: ...


def qualify(
    settings: Settings, ledger: Ledger, plan: QualificationPlan, progress: QualificationProgress, *, local: bool = False
) -> QualificationOutcome:
    """Qualifies the assembler on a GPU of the cluster or, with `local`, of this machine; the ledger keeps the records.

    Raises DeviceError and NoWorkerError without a GPU, UsageError for an architecture that the assembler does not
    support.
    """
    with open_gpu(settings, local=local, notice=progress.waiting) as gpu:
        outcome = collect_outcome(gpu.run(partial(qualification_work, plan=plan)), plan, progress)
    ledger.qualifications.put(outcome.records)
    return outcome


def collect_outcome(
    events: Iterable[QualificationEvent], plan: QualificationPlan, progress: QualificationProgress
) -> QualificationOutcome:
    """Forwards events to `progress` and sums them into an outcome. Raises NoWorkerError without any event."""
    started: Started | None = None
    tallies: dict[DataType, Tally] = {}
    for event in events:
        if isinstance(event, Started):
            started = event
            tallies = {data_type: Tally() for data_type in event.data_types}
            progress.started(event)
        else:
            tallies[event.data_type] += event.tally
            progress.shape_done(event)
    if started is None:
        raise NoWorkerError("the qualification ended before it began: run the same command again")
    now = datetime.now(UTC).replace(microsecond=0)
    records = tuple(
        QualificationRecord(
            arch=started.arch,
            ptxas=started.ptxas,
            data_type=data_type,
            sources=assembler_digest(),
            gpu=started.gpu,
            driver=started.driver,
            first=plan.first_shape * LAYERS_PER_SHAPE,
            layers=tally.layers,
            shapes=tally.shapes,
            outputs=tally.outputs,
            refused=tally.refused.total(),
            wrong=len(tally.wrong),
            finished_at=now,
        )
        for data_type, tally in tallies.items()
        if tally.layers or tally.wrong
    )
    return QualificationOutcome(started, tallies, records)


def qualification_work(settings: Settings, plan: QualificationPlan) -> Generator[QualificationEvent, None, None]:
    """Runs a plan on the GPU of the current machine. Raises DeviceError, UsageError."""
    with Device() as device:
        comparator = GpuComparator(device)
        if comparator.arch not in SUPPORTED_ARCHS:
            raise UsageError(
                f"nothing to qualify: {comparator.name} is {comparator.arch}, and the direct assembler supports "
                f"{', '.join(SUPPORTED_ARCHS)}. ptxas builds all its code."
            )
        toolchain = known_toolchain(find_toolchain(settings.nvcc, settings.ptxas), open_store(settings))
        limits = ToolLimits(settings.tool_timeout_seconds, settings.tool_memory_bytes, cores_folder(settings))
        with BuildPool(settings.jobs, comparator.arch, toolchain, limits) as builder:
            ahead = settings.jobs + AHEAD
            yield from compare_shapes(comparator, builder, plan, toolchain.ptxas_version, ahead=ahead)


def compare_shapes(
    comparator: Comparator, builder: ShapeBuilder, plan: QualificationPlan, ptxas: str, *, ahead: int
) -> Iterator[QualificationEvent]:
    """Builds and compares shapes until the plan is done, its time is up, or the GPU fails.

    `ahead` shapes are queued at once; `ptxas` is the version.
    """
    data_types = tuple(each for each in supported_data_types(comparator.arch) if each in plan.data_types)
    yield Started(comparator.name, comparator.arch, comparator.driver, ptxas, data_types, plan.layers * len(data_types))
    end = math.inf if plan.seconds is None else time.monotonic() + plan.seconds
    builds = _submitted(builder, plan, data_types)
    waiting = set(islice(builds, ahead))
    while waiting and (left := end - time.monotonic()) > 0:
        done, waiting = wait(waiting, None if math.isinf(left) else left, FIRST_COMPLETED)
        for future in done:
            waiting |= set(islice(builds, 1))
            try:
                built = future.result()
            except BrokenExecutor:  # shapes compared so far count
                yield ShapeResult("", data_types[0], Tally(not_built=(BUILDER_ENDED,)))
                return
            if built.shape is None:
                continue
            result, gpu_works = _compare_shape(comparator, built.shape, built)
            yield result
            if not gpu_works:
                return  # after an error a CUDA context runs nothing more in this process


def _submitted(
    builder: ShapeBuilder, plan: QualificationPlan, data_types: tuple[DataType, ...]
) -> Iterator[Future[BuiltShape]]:
    left = dict.fromkeys(data_types, plan.layers)
    for number, data_type in shape_numbers(data_types, plan.first_shape):
        if not any(left.values()):
            return
        if variants := min(LAYERS_PER_SHAPE, left[data_type]):
            left[data_type] -= variants
            yield builder.submit(number, data_type, variants)


def _compare_shape(comparator: Comparator, shape: Shape, built: BuiltShape) -> tuple[ShapeResult, bool]:
    """Result of a shape, and whether the GPU still works."""
    outputs, compared, gpu_works = 0, 0, True
    wrong, evidence = list(built.crashed), []
    comparisons = comparator.compare(shape, built.layers)
    for layer in built.layers:
        name = shape.layer_name(layer.variant)
        try:
            comparison = next(comparisons)
        except DeviceError as error:
            gpu_works = False
            wrong.append(f"{name}: {error}")
        else:
            outputs, compared = outputs + comparison.outputs, compared + 1
            if not comparison.differing:
                continue
            wrong.append(f"{name}: {comparison.differing:,} of {comparison.outputs:,} outputs differ")
        evidence += _evidence(name, layer)
        if not gpu_works:
            break
    tally = Tally(
        layers=compared,
        outputs=outputs,
        shapes=int(compared > 0),
        wrong=tuple(wrong),
        refused=built.refused,
        not_built=built.not_built,
        ptxas_seconds=built.ptxas_seconds,
        direct_seconds=built.direct_seconds,
    )
    return ShapeResult(shape.name, shape.spec.data_type, tally, tuple(evidence)), gpu_works


def _evidence(name: str, layer: LayerPair) -> list[tuple[str, bytes]]:
    """File names and bytes of both builds of a layer."""
    plain = re.sub(r"\W+", "-", name).strip("-")
    both = {"ptxas": layer.ptxas, "direct": layer.direct}
    return [
        (f"{plain}.{assembler}.part{part}.cubin", cubin)
        for assembler, kernels in both.items()
        for part, (cubin, _) in enumerate(kernels, 1)
    ]

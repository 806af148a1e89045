"""One trial: shapes made both ways by as many processes as there are cores, while the GPU compares what is made."""

from __future__ import annotations

import math
import re
import time
from collections import Counter
from collections.abc import Generator, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field
from itertools import islice
from typing import Protocol, get_args

from codegen.errors import DeviceError
from codegen.ir.layer_spec import DataType
from codegen.sass.qualification import ARCHITECTURES, claimed_types
from codegen.toolchain.tools import ToolLimits, find_toolchain
from farm.config.settings import Settings, cores_folder
from farm.cuda.device import Device
from farm.errors import UsageError
from farm.qualification.both_ways import MadeLayer, MadeShape, Makers
from farm.qualification.corpus import LAYERS_OF_SHAPE, Shape, numbers
from farm.qualification.gpu import Bench, GpuBench
from farm.store import open_store
from farm.worker.cache_lookup import known_toolchain

AHEAD = 4
"""Shapes begun beyond one for each process: none idles while the GPU compares."""


@dataclass(frozen=True)
class TrialPlan:
    """What is tried. Layers are numbered: those of another range are others."""

    layers: int = 2000
    """Of each data type."""
    first: int = 0
    """Number of the first; a shape has LAYERS_OF_SHAPE."""
    seconds: float | None = None
    """What is not compared after so many is left out; None: no limit."""
    data_types: tuple[DataType, ...] = get_args(DataType)
    """Of these, those that the assembler does on the architecture."""


@dataclass(frozen=True)
class Started:
    """The trial of a GPU's architecture begins."""

    gpu: str
    arch: str
    driver: str
    ptxas: str
    data_types: tuple[DataType, ...]
    layers: int
    """Of all data types together."""


@dataclass(frozen=True)
class Tried:
    """What a GPU said of a shape's layers, or of some shapes' together."""

    layers: int = 0
    """Compared."""
    outputs: int = 0
    shapes: int = 0
    """Of which layers were compared."""
    wrong: tuple[str, ...] = ()
    """Layers that differ, with how, or at which the assembler broke or the GPU stopped."""
    refused: Counter[str] = field(default_factory=Counter)
    """Layers that the assembler left to ptxas, by reason."""
    failed: tuple[str, ...] = ()
    """Layers that nvcc or ptxas did not make."""
    ptxas_seconds: float = 0.0
    direct_seconds: float = 0.0

    def __add__(self, other: Tried) -> Tried:
        return Tried(
            self.layers + other.layers,
            self.outputs + other.outputs,
            self.shapes + other.shapes,
            self.wrong + other.wrong,
            self.refused + other.refused,
            self.failed + other.failed,
            self.ptxas_seconds + other.ptxas_seconds,
            self.direct_seconds + other.direct_seconds,
        )

    @property
    def drawn(self) -> int:
        """Layers, whatever became of them."""
        return self.layers + self.refused.total() + len(self.failed)


@dataclass(frozen=True)
class TriedShape:
    """One shape's, as it came."""

    name: str
    data_type: DataType
    tried: Tried
    evidence: tuple[tuple[str, bytes], ...] = ()
    """Both cubins of each layer that differs, by a file's name."""


TrialEvent = Started | TriedShape


class Source(Protocol):
    """Who makes shapes: `Makers`."""

    def begin(self, number: int, data_type: DataType, variants: int = LAYERS_OF_SHAPE) -> Future[MadeShape]: ...


def trial_work(settings: Settings, plan: TrialPlan) -> Generator[TrialEvent, None, None]:
    """`try_on` the GPU of the machine where it runs. Raises DeviceError, and UsageError if nothing is claimed."""
    with Device() as device:
        bench = GpuBench(device)
        if bench.arch not in ARCHITECTURES:
            raise UsageError(
                f"the assembler knows {', '.join(ARCHITECTURES)} and {bench.name} is {bench.arch}: there is nothing "
                "to admit, ptxas does its code"
            )
        toolchain = known_toolchain(find_toolchain(settings.nvcc, settings.ptxas), open_store(settings))
        limits = ToolLimits(settings.tool_timeout_seconds, settings.tool_memory_bytes, cores_folder(settings))
        with Makers(settings.jobs, bench.arch, toolchain, limits) as makers:
            yield from try_on(bench, makers, plan, toolchain.ptxas_version, ahead=settings.jobs + AHEAD)


def try_on(bench: Bench, makers: Source, plan: TrialPlan, ptxas: str, *, ahead: int) -> Iterator[TrialEvent]:
    """Tries layers on a bench until there are enough, time is up, or its GPU stops."""
    data_types = tuple(each for each in claimed_types(bench.arch) if each in plan.data_types)
    yield Started(bench.name, bench.arch, bench.driver, ptxas, data_types, plan.layers * len(data_types))
    end = math.inf if plan.seconds is None else time.monotonic() + plan.seconds
    begun = _begun(makers, plan, data_types)
    waiting = set(islice(begun, ahead))
    while waiting and (left := end - time.monotonic()) > 0:
        done, waiting = wait(waiting, None if math.isinf(left) else left, FIRST_COMPLETED)
        for future in done:
            waiting |= set(islice(begun, 1))
            made = future.result()
            if made.shape is None:
                continue
            tried, runs_on = _tried(bench, made.shape, made)
            yield tried
            if not runs_on:
                return  # a GPU that has met an error runs nothing more in this process


def _begun(makers: Source, plan: TrialPlan, data_types: tuple[DataType, ...]) -> Iterator[Future[MadeShape]]:
    left = dict.fromkeys(data_types, plan.layers)
    for number, data_type in numbers(data_types, plan.first // LAYERS_OF_SHAPE):
        if not any(left.values()):
            return
        if variants := min(LAYERS_OF_SHAPE, left[data_type]):
            left[data_type] -= variants
            yield makers.begin(number, data_type, variants)


def _tried(bench: Bench, shape: Shape, made: MadeShape) -> tuple[TriedShape, bool]:
    """What came of a shape, and whether the GPU still runs."""
    outputs, compared, stopped = 0, 0, ""
    wrong, evidence = list(made.broken), []
    layers = iter(made.layers)
    found = bench.compare(shape, made.layers)
    for layer in layers:
        name = shape.layer_name(layer.variant)
        try:
            each = next(found)
        except DeviceError as error:
            stopped = f"{name}: {error}"
            wrong.append(stopped)
        else:
            outputs, compared = outputs + each.outputs, compared + 1
            if not each.differing:
                continue
            wrong.append(f"{name}: {each.differing:,} of {each.outputs:,} outputs differ")
        evidence += _files(name, layer)
        if stopped:
            break
    tried = Tried(
        layers=compared,
        outputs=outputs,
        shapes=int(compared > 0),
        wrong=tuple(wrong),
        refused=made.refused,
        failed=made.failed,
        ptxas_seconds=made.ptxas_seconds,
        direct_seconds=made.direct_seconds,
    )
    return TriedShape(shape.name, shape.spec.data_type, tried, tuple(evidence)), not stopped


def _files(name: str, layer: MadeLayer) -> list[tuple[str, bytes]]:
    plain = re.sub(r"\W+", "-", name).strip("-")
    both = {"ptxas": layer.ptxas, "direct": layer.direct}
    return [
        (f"{plain}.{who}.part{part}.cubin", cubin)
        for who, kernels in both.items()
        for part, (cubin, _) in enumerate(kernels, 1)
    ]

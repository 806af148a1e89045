"""The work of a user without the farm: nvcc -cubin on a .cu for every layer and architecture, in a parallel loop."""

from __future__ import annotations

import math
import random
import statistics
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from codegen.errors import ToolTimeout
from codegen.ir.checkpoint import Layer
from codegen.ir.tiling import Part, Tiling
from codegen.toolchain.tools import Toolchain, ToolLimits, run_tool
from tests.benchmarks.sparse_source import Form, write_source

LIMIT_SECONDS = 100.0
"""A run ends then and counts as that long, though it would take longer: it speaks for the loop."""
FLAGS = ("-cubin", "-O3", "-std=c++17")


@dataclass(frozen=True, eq=False)
class Pair:
    """A kernel of the sweep and an architecture."""

    layer: Layer
    tiling: Tiling
    part: Part
    arch: str
    times: int
    """Number of times that the loop comes to it: once for each checkpoint that has it."""


@dataclass(frozen=True)
class LoopTime:
    """The time of the whole loop, by a sample of its pairs."""

    seconds: float
    """Time for all pairs on all cores, perfectly divided."""
    error_seconds: float
    """Standard error of `seconds`."""
    distinct_seconds: float
    """Time for a loop that leaves out the layers that did not change."""
    sample: int
    cut_short: int
    """Number of runs of the sample that were ended at the limit."""


def time_loop(pairs: Sequence[Pair], form: Form, toolchain: Toolchain, *, of_each: int, cores: int) -> LoopTime:
    """Runs nvcc on `of_each` pairs of each kernel of a network, of steps and architectures drawn by lot.

    They are the same ones for each form, as many at once as there are cores. Layers differ by a factor of a hundred,
    the steps and architectures of one by little: so a few of each speak for the loop.
    """
    layers: dict[object, list[Pair]] = {}
    for pair in pairs:
        layers.setdefault((pair.layer.name, pair.layer.spec, pair.part.first), []).append(pair)
    lots = random.Random(0)
    drawn = [pair for alike in layers.values() for pair in lots.sample(alike, min(of_each, len(alike)))]
    with tempfile.TemporaryDirectory(prefix="nvcc-loop-") as name, ThreadPoolExecutor(cores) as pool:
        folders = [Path(name, str(i)) for i in range(len(drawn))]
        found = pool.map(lambda pair, folder: _compile(pair, folder, form, toolchain), drawn, folders)
        seconds = dict(zip(drawn, found, strict=True))
    total = distinct = variance = 0.0
    for alike in layers.values():
        times = [seconds[pair] for pair in alike if pair in seconds]
        visits = sum(pair.times for pair in alike)
        total += visits * statistics.mean(times)
        distinct += len(alike) * statistics.mean(times)
        variance += visits**2 * statistics.variance(times) / len(times) if len(times) > 1 else 0.0
    return LoopTime(
        seconds=total / cores,
        error_seconds=math.sqrt(variance) / cores,
        distinct_seconds=distinct / cores,
        sample=len(drawn),
        cut_short=sum(each >= LIMIT_SECONDS for each in seconds.values()),
    )


def _compile(pair: Pair, folder: Path, form: Form, toolchain: Toolchain) -> float:
    """Seconds of nvcc alone: the source is written before."""
    source = write_source(folder, pair.layer, pair.tiling, pair.part, form)
    command = [toolchain.nvcc, *FLAGS, f"-arch={pair.arch}", "-o", folder / "kernel.cubin", source]
    try:
        return run_tool(command, limits=ToolLimits(seconds=LIMIT_SECONDS), temp_folder=folder).seconds
    except ToolTimeout:
        return LIMIT_SECONDS

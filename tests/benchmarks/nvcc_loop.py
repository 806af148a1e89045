"""What a user would do without the farm: nvcc -cubin on a .cu for every layer and architecture, in a parallel loop."""

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
from codegen.layers import Layer
from codegen.tiling import Part, Tiling
from codegen.toolchain import Toolchain, ToolLimits, run_tool
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
    """How often the loop comes to it: once for each checkpoint that has it."""


@dataclass(frozen=True)
class LoopTime:
    """The time of the whole loop, by a sample of its pairs."""

    seconds: float
    """Of all pairs on all cores, perfectly divided."""
    error_seconds: float
    """Its standard error."""
    distinct_seconds: float
    """The same for a loop that leaves out the layers that did not change."""
    sample: int
    cut_short: int
    """Of the sample, runs that were ended at the limit."""


def time_loop(pairs: Sequence[Pair], form: Form, toolchain: Toolchain, *, sample: int, cores: int) -> LoopTime:
    """Runs nvcc on some of the pairs, the same ones for each form, as many at once as there are cores."""
    drawn = random.Random(0).sample(list(pairs), min(sample, len(pairs)))
    with tempfile.TemporaryDirectory(prefix="nvcc-loop-") as name, ThreadPoolExecutor(cores) as pool:
        folders = [Path(name, str(i)) for i in range(len(drawn))]
        seconds = list(pool.map(lambda pair, folder: _compile(pair, folder, form, toolchain), drawn, folders))
    visits = [pair.times * each for pair, each in zip(drawn, seconds, strict=True)]
    error = statistics.stdev(visits) / math.sqrt(len(visits)) if len(visits) > 1 else math.nan
    return LoopTime(
        seconds=statistics.mean(visits) * len(pairs) / cores,
        error_seconds=error * len(pairs) / cores,
        distinct_seconds=statistics.mean(seconds) * len(pairs) / cores,
        sample=len(drawn),
        cut_short=sum(each >= LIMIT_SECONDS for each in seconds),
    )


def _compile(pair: Pair, folder: Path, form: Form, toolchain: Toolchain) -> float:
    """Seconds of nvcc alone: the source is written before."""
    source = write_source(folder, pair.layer, pair.tiling, pair.part, form)
    command = [toolchain.nvcc, *FLAGS, f"-arch={pair.arch}", "-o", folder / "kernel.cubin", source]
    try:
        return run_tool(command, limits=ToolLimits(seconds=LIMIT_SECONDS), scratch=folder).seconds
    except ToolTimeout:
        return LIMIT_SECONDS

"""Measures nvcc and ptxas on real layers; `codegen.selection.tool_time` is fitted to the result."""

from __future__ import annotations

import gzip
import json
import math
import random
import resource
import statistics
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from codegen.frontend.onnx.reader import read_checkpoint
from codegen.ir.checkpoint import Layer
from codegen.ir.layer_spec import spec_from_json
from codegen.kernels import template_cost
from codegen.model_zoo import NETWORKS, TEN_OPERATORS, operator_network, write_network
from codegen.ptx.rewrite import rewrite
from codegen.ptx.template import make_template
from codegen.selection.choose import choose_parts, choose_tiling
from codegen.selection.code_size import average_instructions
from codegen.selection.tool_time import NVCC_SECONDS, SECONDS_PER_SLOT, ptxas_seconds
from codegen.toolchain.ptxas import assemble, ptxas_options
from codegen.toolchain.tools import ToolLimits, find_toolchain

KEPT = Path(__file__).with_name("tool_time.jsonl.gz")
SPARSITIES = (0.8, 0.9, 0.95)
TOO_LARGE = "vgg16"
"""Network that is left out: its fully connected layers would take hours."""
TARGETS = (("sm_80", 3), ("sm_86", 3), ("sm_90", 3), ("sm_120", 3), ("sm_90", 1))
LAYERS = 120
"""Measured in one call, of all."""
SMALL = 0.1
"""CPU seconds: below, starting a process is most of it."""


@dataclass(frozen=True)
class Point:
    """CPU seconds, user and system, of one run of a tool."""

    tool: str
    spec: dict[str, object]
    cost: int
    """Multiply-adds of the loop that nvcc compiles."""
    instructions: float
    """Instructions predicted for the kernel that ptxas assembles."""
    level: int
    seconds: float

    @property
    def predicted(self) -> float:
        if self.tool == "nvcc":
            return NVCC_SECONDS + SECONDS_PER_SLOT * self.cost
        return ptxas_seconds(spec_from_json(self.spec), self.instructions, self.level)


def kept_points() -> list[Point]:
    """The points measured for the fit."""
    with gzip.open(KEPT, "rt") as lines:
        return [Point(**json.loads(line)) for line in lines]


def tool_time() -> None:
    """CPU time of nvcc and ptxas over the prediction: nine of ten within a factor of 1.6, but for a constant."""
    print(f"  kept: {len(kept_points())} runs")
    report(kept_points())
    points = list(measured(LAYERS))
    print(f"  here: {len(points)} runs")
    report(points)
    (Path(tempfile.gettempdir()) / "tool_time.jsonl").write_text("".join(f"{json.dumps(asdict(p))}\n" for p in points))


def report(points: list[Point]) -> None:
    for tool in ("nvcc", "ptxas"):
        of_tool = [point for point in points if point.tool == tool and point.seconds >= SMALL]
        ratios = [math.log(point.seconds / point.predicted) for point in of_tool]
        middle = statistics.median(ratios)
        off = sorted(abs(ratio - middle) for ratio in ratios)
        ninth = math.exp(off[int(0.9 * len(off))])
        usual = f"{math.exp(middle):.2f}x as predicted; nine of ten within {ninth:.2f}x of it"
        print(f"    {tool}, {len(of_tool)} runs: {usual}")
    kernels = [point for point in points if point.tool == "ptxas"]
    size = [point.instructions for point in kernels]
    least, most = math.log(min(size)), math.log(max(size))
    exponent, _ = np.polyfit(
        np.log([p.instructions for p in kernels if p.seconds > SMALL]),
        np.log([p.seconds for p in kernels if p.seconds > SMALL]),
        1,
    )
    print(f"    ptxas: grows as instructions^{exponent:.2f}, {math.exp(least):.0f} to {math.exp(most):.0f} of them")


def measured(count: int) -> Iterator[Point]:
    """Runs both tools on `count` layers, one process at a time."""
    chance = random.Random(0)
    toolchain, limits = find_toolchain(), ToolLimits()
    layers = all_layers()
    for layer in chance.sample(layers, min(count, len(layers))):
        nonzeros = layer.weights.nonzeros_per_output
        tiling = choose_tiling(layer.spec, 64, nonzeros)
        spec, slots = layer.spec.to_json(), template_cost(layer.spec, tiling)
        before = cpu_seconds()
        template = make_template(layer.spec, tiling, "compute_80", toolchain, limits)
        yield Point("nvcc", spec, slots, 0.0, 3, cpu_seconds() - before)
        part = chance.choice(choose_parts(layer.spec, tiling, nonzeros))
        kernel = rewrite(template, layer.weights, part)
        average = average_instructions(layer.spec, tiling, int(nonzeros.sum()))
        for arch, level in chance.sample(TARGETS, 2):
            before = cpu_seconds()
            assemble(kernel.ptx, arch, toolchain, ptxas_options(level), limits)
            seconds = cpu_seconds() - before
            yield Point("ptxas", spec, slots, average * (part.end - part.first), level, seconds)


def all_layers() -> list[Layer]:
    """One layer of each shape of the networks at each sparsity, and the ten operators."""
    found: list[Layer] = []
    with tempfile.TemporaryDirectory(prefix="sparse-farm-") as name:
        path = Path(name) / "model.onnx"
        for make in [make for network, make in NETWORKS.items() if network != TOO_LARGE]:
            for sparsity in SPARSITIES:
                write_network(path, make(sparsity, 0))
                found += {layer.spec: layer for layer in read_checkpoint(path).layers}.values()
        for spec in TEN_OPERATORS.values():
            write_network(path, operator_network(spec, SPARSITIES[1], 0))
            found += read_checkpoint(path).layers
    return found


def cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime

"""Machine code without ptxas against ptxas: CPU time of each layer of ResNet-50, a sweep, and whole commands."""

from __future__ import annotations

import json
import math
import os
import resource
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np

from codegen.frontend.onnx.reader import read_checkpoint
from codegen.ir.checkpoint import Layer
from codegen.ir.tiling import Part
from codegen.kernels import needs_clusters, stream_count
from codegen.model_zoo import resnet18, resnet50, write_network
from codegen.ptx.rewrite import rewrite
from codegen.ptx.template import make_template
from codegen.sass.assemble.assembler import DirectAssembler, make_skeleton
from codegen.selection.choose import choose_parts
from codegen.target.arch import virtual_arch
from codegen.toolchain.ptxas import assemble, ptxas_options
from codegen.toolchain.tools import ToolLimits, find_toolchain
from farm.jobs.model import BuildOptions
from farm.tuning.book import TuningBook
from farm.tuning.files import shipped_records
from tests.benchmarks.ledger import folder

ROOT = Path(__file__).parents[2]
ARCH = "sm_90"
SPARSITY = 0.9
BATCH = 64
LIMITS = ToolLimits(600)
TIMES = 3
"""Number of times that a layer is assembled directly; the fastest counts."""
CHECKPOINTS = 30
Made = TypeVar("Made")


@dataclass(frozen=True)
class Measured:
    """CPU seconds of one layer, both ways."""

    name: str
    alike: int
    """Layers of this shape: each counts."""
    nonzeros: int
    words: int
    direct: float
    """Seconds of the assembler and the hazard checker."""
    ptxas: float
    """Over all parts."""
    skeleton: float
    """Seconds of ptxas, once for a shape."""

    @property
    def ratio(self) -> float:
        return self.ptxas / self.direct


def direct_layers() -> None:
    """ResNet-50, sm_90: at least 100x less CPU than ptxas, geometric mean over its 54 layers; linear in non-zeros."""
    with folder() as path:
        write_network(path / "resnet50.onnx", resnet50(SPARSITY, seed=0))
        layers = read_checkpoint(path / "resnet50.onnx").layers
    alike = Counter(layer.spec for layer in layers)
    first = {layer.spec: layer for layer in reversed(layers)}
    titles = ("alike", 6), ("non-zeros", 11), ("words", 9), ("direct", 10), ("ptxas", 9), ("ratio", 7), ("skeleton", 10)
    print(f"  {'layer':<22}" + "".join(f"{title:>{width}}" for title, width in titles))
    measured = []
    for spec, layer in reversed(first.items()):
        found = measure_layer(layer, alike[spec])
        measured.append(found)
        print(
            f"  {found.name:<22}{found.alike:>6}{found.nonzeros:>11,}{found.words:>9,}{found.direct * 1e3:>7.0f} ms"
            f"{found.ptxas:>7.2f} s{found.ratio:>6.0f}x{found.skeleton:>8.2f} s",
            flush=True,
        )
    summarise(measured)


def measure_layer(layer: Layer, alike: int) -> Measured:
    """Both ways, with the tiling that the farm gives the layer."""
    spec, nonzeros = layer.spec, layer.weights.nonzeros_per_output
    book, toolchain, options = TuningBook.of((), shipped_records()), find_toolchain(), ptxas_options(3)
    [(tiling, _)] = book.tilings(spec, BATCH * layer.likely_rows, nonzeros, BuildOptions((ARCH,)))
    template = make_template(spec, tiling, virtual_arch(ARCH, clusters=needs_clusters(tiling)), toolchain, LIMITS)
    skeleton, skeleton_seconds = cpu_of(
        resource.RUSAGE_CHILDREN, lambda: make_skeleton(template, ARCH, toolchain, options, LIMITS)
    )
    assembler = DirectAssembler.of(template, skeleton.data, ARCH)
    whole = Part(0, stream_count(spec, tiling))
    made = [cpu_of(resource.RUSAGE_SELF, lambda: assembler.assemble(layer.weights, whole)) for _ in range(TIMES)]
    kernels = [rewrite(template, layer.weights, part).ptx for part in choose_parts(spec, tiling, nonzeros)]
    _, ptxas_seconds = cpu_of(
        resource.RUSAGE_CHILDREN, lambda: [assemble(ptx, ARCH, toolchain, options, LIMITS) for ptx in kernels]
    )
    direct_seconds = min(seconds for _, seconds in made)
    words = len(made[0][0].data) // 16
    return Measured(layer.name, alike, int(nonzeros.sum()), words, direct_seconds, ptxas_seconds, skeleton_seconds)


def cpu_of(whose: int, make: Callable[[], Made]) -> tuple[Made, float]:
    """The result of `make`, and the CPU seconds of this process, or of the tools that it ran."""

    def seconds() -> float:
        usage = resource.getrusage(whose)
        return usage.ru_utime + usage.ru_stime

    before = seconds()
    made = make()
    return made, seconds() - before


def summarise(measured: Sequence[Measured]) -> None:
    """The ratios of all layers, and the line through their times."""
    every = [each for each in measured for _ in range(each.alike)]
    ratio = statistics.geometric_mean(each.ratio for each in every)
    sums = sum(each.ptxas for each in every) / sum(each.direct for each in every)
    print(f"  {len(every)} layers: {ratio:.0f}x less CPU than ptxas (geometric mean), ", end="")
    print(f"{min(each.ratio for each in every):.0f}x to {max(each.ratio for each in every):.0f}x; {sums:.0f}x in sum")
    for name, sizes in (("non-zeros", [m.nonzeros for m in measured]), ("words", [m.words for m in measured])):
        seconds = np.array([m.direct for m in measured])
        slope, start = np.polyfit(sizes, seconds, 1)
        left = seconds - (start + slope * np.array(sizes))
        explained = 1 - float(np.sum(left**2) / np.sum((seconds - seconds.mean()) ** 2))
        print(f"  seconds = {start * 1e3:.1f} ms + {slope * 1e6:.3f} us x {name}, R2 {explained:.3f}")


def direct_sweep() -> None:
    """30 checkpoints of ResNet-18, sm_90, one command: at least 40x faster than through ptxas, by one checkpoint."""
    with folder() as path:
        models = [path / f"resnet18-{seed:02}.onnx" for seed in range(CHECKPOINTS)]
        for seed, model in enumerate(models):
            write_network(model, resnet18(SPARSITY, seed))
        alone, rest = [models[0]], models[1:]
        first = compiled(path, alone, "direct", "auto")
        wall, cpu = compiled(path, rest, "direct", "auto")
        print(f"  direct, the first with templates and skeletons: {described(first)}")
        print(f"  direct, {len(rest)} more in one command: {described((wall, cpu))}, {wall / len(rest):.2f} s each")
        slow = compiled(path, alone, "ptxas", "ray")
        whole = slow[0] * CHECKPOINTS
        print(f"  ptxas, one with its templates there, on Ray: {slow[0]:.0f} s; so {CHECKPOINTS} of them {whole:.0f} s")
        print(f"  {whole / (first[0] + wall):.0f}x, what the first one had to make included")


def direct_network() -> None:
    """ResNet-50, sm_90, bundle written: at most 8 s with skeletons in the store, 45 s without."""
    with folder() as path:
        models = [path / f"resnet50-{seed}.onnx" for seed in range(4)]
        for seed, model in enumerate(models):
            write_network(model, resnet50(SPARSITY, seed))
        for name, executor, model in (
            ("templates and skeletons to make", "auto", models[0]),
            ("both in the store", "auto", models[1]),
            ("both in the store", "inline", models[2]),
            ("both in the store", "ray", models[3]),
        ):
            print(f"  {executor}, {name}: {described(compiled(path, [model], 'direct', executor))}", flush=True)


def described(times: tuple[float, float]) -> str:
    wall, cpu = times
    return f"{wall:.1f} s ({cpu:.1f} s of CPU)" if math.isfinite(cpu) else f"{wall:.1f} s"


def compiled(path: Path, models: Sequence[Path], assembler: str, executor: str) -> tuple[float, float]:
    """Wall and CPU seconds of one `farm compile` with bundles; those of Ray's processes are nobody's children."""
    variables = {
        "FARM_STORE": f"file://{path / 'store'}",
        "FARM_DATABASE_URL": f"sqlite:///{path / 'farm.db'}",
        "FARM_EXECUTOR": executor,
        "FARM_CONFIG": "",
        "PYTHONPATH": str(ROOT),
        "PYTHONDONTWRITEBYTECODE": "",  # as installed: no process compiles modules anew
    }
    command = [sys.executable, "-m", "cli.main", "compile", *map(str, models), "--arch", ARCH, "--json"]
    out = path / f"bundles-{assembler}-{executor}"
    command += ["--assembler", assembler, "--batch", str(BATCH), "-o", str(out)]
    start = time.perf_counter()
    done, cpu = cpu_of(
        resource.RUSAGE_CHILDREN,
        lambda: subprocess.run(command, env={**os.environ, **variables}, capture_output=True, text=True, check=True),
    )
    wall = time.perf_counter() - start
    statuses = Counter(job["status"] for job in json.loads(done.stdout)["jobs"])
    assert statuses == {"SUCCEEDED": len(models)}, statuses
    return wall, math.inf if executor == "ray" else cpu

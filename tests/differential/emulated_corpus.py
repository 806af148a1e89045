"""The qualification corpus without a GPU: direct code in the emulator, beside its PTX and code of ptxas.

`python -m tests.differential.emulated_corpus --help` has the options.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice, takewhile
from math import prod
from pathlib import Path
from typing import Any, TextIO, get_args

from numpy.typing import NDArray

from codegen.emulator.ptx import emulate as ptx
from codegen.emulator.sass import emulate as sass
from codegen.errors import CodegenError, without_places
from codegen.ir.checkpoint import Weights
from codegen.ir.launch import Launch
from codegen.ir.layer_spec import DataType
from codegen.ir.tiling import Part
from codegen.kernels import launch_of, needs_clusters, stream_count
from codegen.ptx.rewrite import Kernel, rewrite
from codegen.ptx.template import Template, make_template
from codegen.sass.assemble.assembler import DirectAssembler, make_skeleton
from codegen.sass.cubin import CubinFile
from codegen.sass.qualification import QUALIFIED_LEVEL, SUPPORTED_ARCHS
from codegen.selection.choose import choose_parts
from codegen.selection.code_size import DIRECT_INSTRUCTIONS, stream_instructions
from codegen.target.arch import has_clusters, virtual_arch
from codegen.toolchain.ptxas import assemble, ptxas_options, skeleton_options
from codegen.toolchain.tools import Toolchain, ToolLimits, find_toolchain
from codegen.verification.compare import poisoned
from farm.qualification.corpus import LAYERS_PER_SHAPE, Shape, draw_shape, shape_numbers
from tests.emulated_comparator import arguments_of, differing

FAMILIES = (
    ("sm_75",),
    ("sm_80", "sm_87"),
    ("sm_86", "sm_89"),
    ("sm_90",),
    ("sm_100", "sm_103", "sm_110"),
    ("sm_120", "sm_121"),
)
"""Architectures with nearly the same instructions: of each layer, ptxas's code for one of them in turn runs too."""
PTXAS_EVERY = 10
"""ptxas's code runs for one layer in ten, since it takes several times as long as direct code."""
STEP = 2
"""Every second layer of a shape is compared, so that more shapes are."""
MOST_ELEMENTS = 6_000
"""Most elements of a batch's input or output: the emulator's time grows with the blocks."""
LIMITS = ToolLimits(30)
SECONDS_BETWEEN_LINES = 20


@dataclass(frozen=True)
class Outcomes:
    """Layers by architecture, and by assembler, reason or name."""

    equal: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Code of this assembler computes the bits that the PTX does."""
    refused: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Left to ptxas, or not known to the emulator, for this reason."""
    different: Counter[tuple[str, str]] = field(default_factory=Counter)

    def add(self, other: Outcomes) -> None:
        for mine, its in zip(vars(self).values(), vars(other).values(), strict=True):
            mine.update(its)

    @staticmethod
    def of(lists: dict[str, list[tuple[str, str, int]]]) -> Outcomes:
        """The outcomes that `lists` returned."""
        kinds = {kind: Counter({(arch, name): count for arch, name, count in of}) for kind, of in lists.items()}
        return Outcomes(**kinds)

    def lists(self) -> dict[str, list[tuple[str, str, int]]]:
        return {kind: [(*key, count) for key, count in of.items()] for kind, of in vars(self).items()}

    def __str__(self) -> str:
        lines = []
        for arch in SUPPORTED_ARCHS:
            equal, refused, different = (
                [(name, count) for (of, name), count in counted.most_common() if of == arch]
                for counted in (self.equal, self.refused, self.different)
            )
            counts = ", ".join(f"{count} equal by {name}" for name, count in sorted(equal))
            lines.append(f"{arch}: {counts or 'none equal'}, {len(different)} different")
            lines += [f"  {count} refused by {reason}" for reason, count in refused]
            lines += [f"  different by {name}" for name, _ in different]
        return "\n".join(lines)


@dataclass(frozen=True)
class Task:
    """A shape's layers on some architectures."""

    number: int
    data_type: DataType
    archs: tuple[str, ...]
    toolchain: Toolchain
    instructions: int
    """Most predicted instructions of a shape: longer ones are left out."""

    @property
    def name(self) -> str:
        return f"{self.data_type} {self.number}"

    def outcomes(self) -> Outcomes:
        """Compares the layers. Architectures that share a template share its outputs."""
        outcomes, archs = Outcomes(), dict[tuple[Shape, str], list[str]]()
        drawn = {clusters: draw_shape(self.number, self.data_type, clusters=clusters) for clusters in (False, True)}
        for arch in self.archs:
            shape = drawn[has_clusters(arch)]
            if shape is not None and _instructions(shape) <= self.instructions:
                archs.setdefault((shape, virtual_arch(arch, clusters=needs_clusters(shape.tiling))), []).append(arch)
        for (shape, virtual), alike in archs.items():
            elements = max(prod(shape.spec.input_shape), prod(shape.spec.output_shape))
            small = replace(shape, batch=max(1, min(shape.batch, MOST_ELEMENTS // elements)))
            try:
                template = make_template(small.spec, small.tiling, virtual, self.toolchain, LIMITS)
                _Layers(small, template, self.toolchain, outcomes).compare(alike)
            except CodegenError as error:
                outcomes.refused.update(
                    (arch, f"{shape.name} is not built: {without_places(str(error))}") for arch in alike
                )
        return outcomes


def _instructions(shape: Shape) -> float:
    """Predicted instructions of the shape's first layer, which is one of its longest."""
    nonzeros = shape.weights(0).nonzeros_per_output
    return float(stream_instructions(shape.spec, shape.tiling, nonzeros).sum())


@dataclass(frozen=True)
class _Layers:
    """The layers of one template."""

    shape: Shape
    template: Template
    toolchain: Toolchain
    outcomes: Outcomes

    def compare(self, archs: Sequence[str]) -> None:
        assemblers = {arch: self._assembler(arch) for arch in archs}
        for variant in range(self.shape.number % STEP, LAYERS_PER_SHAPE, STEP):
            weights = self.shape.weights(variant)
            parts = choose_parts(self.shape.spec, self.shape.tiling, weights.nonzeros_per_output)
            kernels = [rewrite(self.template, weights, part) for part in parts]
            expected = self._output(ptx.run, [(kernel.ptx, kernel.launch) for kernel in kernels])
            for arch, assembler in assemblers.items():
                if isinstance(assembler, str):
                    self.outcomes.refused[arch, f"direct: {assembler}"] += 1
                    continue
                self._compare(arch, "direct", variant, partial(self._direct, assembler, weights), expected)
                if self._is_turn(arch, variant):
                    self._compare(arch, "ptxas", variant, partial(self._by_ptxas, arch, kernels), expected)

    def _assembler(self, arch: str) -> DirectAssembler | str:
        """The assembler of the template, or the reason for having none."""
        clusters = self.shape.tiling.cluster > 1
        options = skeleton_options(ptxas_options(QUALIFIED_LEVEL, clusters=clusters), clusters=clusters)
        try:
            skeleton = make_skeleton(self.template, arch, self.toolchain, options, LIMITS)
            return DirectAssembler.of(self.template, skeleton.data, arch)
        except CodegenError as error:
            return without_places(str(error))

    def _is_turn(self, arch: str, variant: int) -> bool:
        family = next(each for each in FAMILIES if arch in each)
        turn, rest = divmod((self.shape.number + variant) // STEP, PTXAS_EVERY)
        return not rest and family[turn % len(family)] == arch

    def _compare(
        self, arch: str, assembler: str, variant: int, run: Callable[[], NDArray[Any]], expected: NDArray[Any]
    ) -> None:
        try:
            output = run()
        except CodegenError as error:
            self.outcomes.refused[arch, f"{assembler}: {without_places(str(error))}"] += 1
            return
        except Exception as error:  # noqa: BLE001 - always a bug, and the other layers are to be compared
            self.outcomes.different[arch, f"{assembler}: {self.shape.layer_name(variant)}: {error!r}"] += 1
            return
        if differing(self.shape, output, expected):
            self.outcomes.different[arch, f"{assembler}: {self.shape.layer_name(variant)}"] += 1
        else:
            self.outcomes.equal[arch, assembler] += 1

    def _direct(self, assembler: DirectAssembler, weights: Weights) -> NDArray[Any]:
        spec, tiling = self.shape.spec, self.shape.tiling
        whole = Part(0, stream_count(spec, tiling))
        made = assembler.assemble(weights, whole).data
        return self._output(sass.run, [(CubinFile.read(made), launch_of(spec, tiling, whole))])

    def _by_ptxas(self, arch: str, kernels: Sequence[Kernel]) -> NDArray[Any]:
        options = ptxas_options(QUALIFIED_LEVEL, clusters=self.shape.tiling.cluster > 1)
        made = [assemble(each.ptx, arch, self.toolchain, options, LIMITS).data for each in kernels]
        cubins = [(CubinFile.read(data), each.launch) for data, each in zip(made, kernels, strict=True)]
        return self._output(sass.run, cubins)

    def _output(self, run: Callable[..., None], kernels: Sequence[tuple[Any, Launch]]) -> NDArray[Any]:
        output = poisoned(self.shape.spec, self.shape.batch)
        for kernel, launch in kernels:
            given = arguments_of(self.shape, launch, output)
            run(kernel, launch.grid_at(self.shape.batch), launch.block, launch.shared_bytes, given)
        return output


def compare(tasks: Iterable[Task], processes: int, outcomes: Outcomes, results: TextIO | None) -> None:
    """Adds the outcomes of all tasks, which several processes compare; prints how it goes."""
    rest, told, running = iter(tasks), time.monotonic(), dict[Future[Outcomes], Task]()
    with ProcessPoolExecutor(processes) as pool:
        while True:
            running |= {pool.submit(task.outcomes): task for task in islice(rest, processes - len(running))}
            if not running:
                return
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                found, task = future.result(), running.pop(future)
                outcomes.add(found)
                if results is not None:
                    print(json.dumps({task.name: found.lists()}), file=results, flush=True)
            if time.monotonic() > told + SECONDS_BETWEEN_LINES:
                told = time.monotonic()
                print(f"{outcomes.equal.total()} equal, {len(outcomes.different)} different", flush=True)


def compared(results: Path) -> dict[str, Outcomes]:
    """The outcomes in a file that `compare` wrote, by the name of the task."""
    lines = results.read_text().splitlines() if results.exists() else []
    return {name: Outcomes.of(lists) for line in lines for name, lists in json.loads(line).items()}


def main() -> int:
    """Compares until the layers are done or the time is up: 1 if one of them is different."""
    parser = argparse.ArgumentParser(prog="python -m tests.differential.emulated_corpus", description=__doc__)
    parser.add_argument("--layers", type=int, default=5000, help="layers of each architecture")
    parser.add_argument(
        "--instructions", type=int, default=DIRECT_INSTRUCTIONS, help="most predicted instructions of a layer"
    )
    parser.add_argument("--first", type=int, default=0, help="number of the first shape")
    parser.add_argument("--seconds", type=float, default=3600, help="no shape begins after this time")
    parser.add_argument("--results", type=Path, help="file to add outcomes to; shapes in it are not compared again")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("--arch", default="all", help="as sm_80,sm_90")
    options = parser.parse_args()
    archs = SUPPORTED_ARCHS if options.arch == "all" else tuple(options.arch.split(","))
    toolchain, end = find_toolchain(), time.time() + options.seconds
    known = compared(options.results) if options.results else {}
    shapes = islice(shape_numbers(get_args(DataType), options.first), options.layers * STEP // LAYERS_PER_SHAPE)
    tasks = (
        Task(*shape, archs, toolchain, options.instructions) for shape in takewhile(lambda _: time.time() < end, shapes)
    )
    outcomes = Outcomes()
    for each in known.values():
        outcomes.add(each)
    with options.results.open("a") if options.results else nullcontext() as results:
        compare((task for task in tasks if task.name not in known), options.processes, outcomes, results)
    print(outcomes)
    return 1 if outcomes.different else 0


if __name__ == "__main__":
    sys.exit(main())

"""`python -m tests.gpu.machine_times`: kernels by ptxas and assembled directly, as they ship, timed in turn.

The ten operators and ResNet-50's layers at batch 64 and 1, with the tilings that `farm compile` gives them. `--build`
needs no GPU: it leaves both kernels of each in the store, where the next call finds them.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from math import exp, log
from pathlib import Path

import numpy as np

from codegen.networks import NETWORKS, write_network
from codegen.onnx.checkpoint import read_checkpoint
from codegen.verify import random_input, random_residual
from farm.gpu.device import Device, LoadedLayer
from farm.gpu.kernels import BuiltLayer, KernelPool, NotBuiltError
from farm.gpu.replay import CudaGraph
from farm.gpu.workload import Case, Choice, model_cases, operator_cases
from farm.settings import load_settings
from farm.store import open_store
from farm.tuning.book import TuningBook
from farm.tuning.files import shipped_records
from tests.gpu.machine_check import say
from tests.gpu.workbench import any_toolchain

ARCH = "sm_90"
SPARSITY = 0.9
BATCHES = (64, 1)
SLOWEST = 1.05
"""Of ptxas's time, at most."""
GRAPH_MICROSECONDS = 400.0
"""About so long is a graph of one kernel's launches."""
MOST_LAUNCHES = 200
TURNS = 60


@dataclass(frozen=True)
class Timed:
    """A layer's two kernels on the GPU."""

    name: str
    differing: int
    """Outputs of which a bit differs."""
    ptxas_microseconds: float
    direct_microseconds: float

    @property
    def ratio(self) -> float:
        return self.direct_microseconds / self.ptxas_microseconds

    @property
    def line(self) -> str:
        verdict = "same bits" if not self.differing else f"{self.differing} outputs DIFFER"
        return f"{self.name:<32} ptxas {self.ptxas_microseconds:9.2f} us, direct {self.ratio:.3f}  {verdict}"


def name_of(case: Case) -> str:
    return f"{case.key.operator}@{case.key.batch}"


def shipped_cases(names: Sequence[str]) -> list[Case]:
    """Each shape once at each batch; some of them by their names, as lenet-conv1@64, or all."""
    choice = Choice(BATCHES)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "resnet50.onnx")
        write_network(path, NETWORKS["resnet50"](SPARSITY, 0))
        network = list(model_cases(read_checkpoint(path), (), choice))
    found = {(case.spec, case.images): case for case in [*network, *operator_cases((), choice)][::-1]}
    return [case for case in list(found.values())[::-1] if not names or name_of(case) in names]


def timed(device: Device, case: Case, ptxas: BuiltLayer, direct: BuiltLayer) -> Timed:
    """Runs both on the same input, whose outputs start as NaN, then times them in turn. Raises DeviceError."""
    spec, images = case.spec, case.images
    x, residual = random_input(spec, images, seed=1), random_residual(spec, images, seed=1)
    outputs = [device.run_layer(each.kernels, x, spec.output_shape, residual) for each in (ptxas, direct)]
    first, second = (each.view(f"u{each.dtype.itemsize}") for each in outputs)
    size = outputs[0].nbytes
    source, target, added = device.allocate(x.nbytes), device.allocate(size), device.allocate(size)
    stream = device.new_stream()
    device.wake()
    gate = device.gate(stream)
    with ExitStack() as stack:
        # A graph does not keep its kernels loaded.
        loaded: list[LoadedLayer] = [device.load_layer(each.kernels, stream) for each in (ptxas, direct)]
        once = [partial(each, int(source), int(target), images, int(added)) for each in loaded]
        for launch in once:
            launch()
        stream.synchronize()
        alone = max(1.0, min(device.elapsed_microseconds(stream, gate, once[0]) for _ in range(3)))
        launches = int(max(1, min(MOST_LAUNCHES, GRAPH_MICROSECONDS / alone)))
        graphs = [stack.enter_context(CudaGraph(stream.handle, partial(_repeat, each, launches))) for each in once]
        taken: list[list[float]] = [[], []]
        for turn in range(TURNS):
            for which in (0, 1) if turn % 2 else (1, 0):
                taken[which].append(device.elapsed_microseconds(stream, gate, graphs[which].replay) / launches)
    for memory in (source, target, added):
        memory.free()
    ptxas_time, direct_time = (float(np.median(each)) for each in taken)
    return Timed(name_of(case), int((first != second).sum()), ptxas_time, direct_time)


def _repeat(launch: partial[None], count: int) -> None:
    for _ in range(count):
        launch()


def built(cases: Sequence[Case]) -> Iterator[tuple[Case, BuiltLayer, BuiltLayer]]:
    """Both kernels of each, as they are made; says which one cannot be, and why."""
    settings = load_settings()
    store, toolchain = open_store(settings), any_toolchain()
    book = TuningBook.of((), shipped_records())
    with (
        KernelPool(settings, store, toolchain, ARCH, book=book, assembler="direct") as directly,
        KernelPool(settings, store, toolchain, ARCH, book=book) as by_ptxas,
    ):
        both = [(case, by_ptxas.submit(case), directly.submit(case)) for case in cases]
        for case, ptxas, direct in both:
            try:
                made = ptxas.result(), direct.result()
            except NotBuiltError as error:
                say(f"{name_of(case):<32} not built: {error}")
                continue
            if made[1].facts["assembler"] == "direct":
                yield case, *made
            else:
                say(f"{name_of(case):<32} left to ptxas")


def summary(found: Sequence[Timed]) -> list[str]:
    if not found:
        return ["no layer timed"]
    ratios = [each.ratio for each in found]
    slow = [f"{each.name} {each.ratio:.3f}" for each in found if each.ratio > SLOWEST]
    return [
        f"{len(found)} layers, {sum(each.differing > 0 for each in found)} with a difference; direct over ptxas: "
        f"geometric mean {exp(sum(map(log, ratios)) / len(ratios)):.3f}, worst {max(ratios):.3f}",
        f"above {SLOWEST}: {', '.join(slow) or 'none'}",
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--build", action="store_true", help="only make the kernels, into the store")
    parser.add_argument("--seconds", type=float, default=120.0, help="no layer is timed after so many")
    parser.add_argument("layers", nargs="*", metavar="NAME@BATCH", help="only these, as lenet-conv1@64")
    arguments = parser.parse_args()
    cases = shipped_cases(arguments.layers)
    if not cases:
        parser.error("there is no such layer: name one of " + ", ".join(map(name_of, shipped_cases(()))))
    if arguments.build:
        say(f"{sum(1 for _ in built(cases))} of {len(cases)} layers made both ways")
        return 0
    end, found = time.monotonic() + arguments.seconds, []
    with Device() as device:
        for case, ptxas, direct in built(cases):
            if time.monotonic() > end:
                say(f"out of time before {name_of(case)}")
                break
            found.append(timed(device, case, ptxas, direct))
            say(found[-1].line)
    for line in summary(found):
        say(line)
    return 1 if not found or any(each.differing for each in found) else 0


if __name__ == "__main__":
    sys.exit(main())

"""`python -m tests.gpu.machine_times FOLDER`: kernels by ptxas and assembled directly, as they ship, timed in turn.

The ten operators and ResNet-50's layers at batch 64 and 1, with the tilings that `farm compile` gives them. `--build`
makes both kernels of each, which needs no GPU, and leaves them in the folder; without it those in the folder are timed,
which needs no compiler.

Each is loaded several times, and has other inputs and outputs each time, since where these lie is worth a few percent
in some layers: the median of its places counts.
"""

from __future__ import annotations

import argparse
import math
import pickle
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, as_completed
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path

import numpy as np

from codegen.frontend.onnx.reader import read_checkpoint
from codegen.ir.layer_spec import LayerSpec
from codegen.model_zoo import NETWORKS, write_network
from codegen.verification.compare import random_input, random_residual
from farm.config.settings import load_settings
from farm.cuda.device import Device
from farm.cuda.graph import CudaGraph
from farm.cuda.measure.kernels import BuiltLayer, KernelPool, NotBuiltError
from farm.cuda.measure.workload import Case, Choice, model_cases, operator_cases
from farm.store import open_store
from farm.tuning.book import TuningBook
from farm.tuning.files import shipped_records
from tests.gpu.machine_check import say
from tests.gpu.workbench import any_toolchain

ARCH = "sm_90"
SPARSITY = 0.9
BATCHES = (64, 1)
SLOWEST = 1.05
"""Largest allowed share of ptxas's time."""
GRAPH_MICROSECONDS = 400.0
"""About so long is a graph of one kernel's launches."""
MOST_LAUNCHES = 200
PLACES = 8
"""In which code and data lie, all at once."""
TURNS = 10
"""Replays at each place."""
DRAWN_IMAGES = 8
"""The others are these again: drawing 200 million numbers takes longer than timing a layer."""


@dataclass(frozen=True, eq=False)
class Pair:
    """A layer's kernels by ptxas and assembled directly, as a file of the folder has them."""

    name: str
    spec: LayerSpec
    images: int
    ptxas: BuiltLayer
    direct: BuiltLayer

    @property
    def size(self) -> int:
        """Values that it reads and writes."""
        return self.images * (math.prod(self.spec.input_shape) + math.prod(self.spec.output_shape))


@dataclass(frozen=True)
class Side:
    """A kernel on the GPU."""

    microseconds: tuple[float, ...]
    """Time of one launch, at each place of its code and data."""
    codes: int
    """Different addresses of its code; 0 where the driver does not tell."""

    @property
    def middle(self) -> float:
        return float(np.median(self.microseconds))

    @property
    def spread(self) -> str:
        """The fastest place and the slowest, of the one in the middle."""
        return f"{min(self.microseconds) / self.middle:.3f} to {max(self.microseconds) / self.middle:.3f}"


@dataclass(frozen=True)
class Timed:
    """A layer's two kernels on the GPU."""

    name: str
    differing: int
    """Outputs of which a bit differs."""
    ptxas: Side
    direct: Side

    @property
    def ratio(self) -> float:
        return self.direct.middle / self.ptxas.middle

    @property
    def line(self) -> str:
        verdict = "same bits" if not self.differing else f"{self.differing} outputs DIFFER"
        return (
            f"{self.name:<26} ptxas {self.ptxas.middle:8.2f} us, direct {self.ratio:.3f}  {verdict}, "
            f"{min(self.ptxas.codes, self.direct.codes)} places: {self.ptxas.spread}, {self.direct.spread}"
        )


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


def timed(device: Device, pair: Pair) -> Timed:
    """Runs both on the same input, whose outputs start as NaN, then times them in turn. Raises DeviceError."""
    spec, images = pair.spec, pair.images
    drawn = min(images, DRAWN_IMAGES)
    x = np.resize(random_input(spec, drawn, seed=1), (images, *spec.input_shape))
    residual = random_residual(spec, drawn, seed=1)
    if residual is not None:
        residual = np.resize(residual, (images, *spec.output_shape))
    first, second = (
        device.run_layer(each.kernels, x, spec.output_shape, residual) for each in (pair.ptxas, pair.direct)
    )
    bits = f"u{first.dtype.itemsize}"
    differing = int((first.view(bits) != second.view(bits)).sum())
    places = [[device.allocate(each.nbytes) for each in (x, first, first)] for _ in range(PLACES)]
    device.upload(int(places[0][0]), x)
    device.upload(int(places[0][2]), first if residual is None else residual)
    for place in places[1:]:
        device.copy(int(places[0][0]), int(place[0]), x.nbytes)
        device.copy(int(places[0][2]), int(place[2]), first.nbytes)
    arguments = [(int(source), int(target), images, int(added)) for source, target, added in places]
    ptxas, direct = _sides(device, pair, arguments)
    for memory in chain.from_iterable(places):
        memory.free()
    return Timed(pair.name, differing, ptxas, direct)


def _sides(device: Device, pair: Pair, places: Sequence[tuple[int, int, int, int]]) -> tuple[Side, Side]:
    """Both kernels' times with the arguments of each place, in turn."""
    stream = device.new_stream()
    device.wake()
    gate = device.gate(stream)
    # Loaded one by the other, so that each copy lies elsewhere. A graph does not keep its kernels loaded: this list
    # must live until the last replay has ended.
    loaded = [
        [device.load_layer(each.kernels, stream, addressed=True) for each in (pair.ptxas, pair.direct)] for _ in places
    ]
    once = [partial(each, *place) for place, both in zip(places, loaded, strict=True) for each in both]
    for launch in once:
        launch()
    stream.synchronize()
    alone = max(1.0, min(device.elapsed_microseconds(stream, gate, once[0]) for _ in range(3)))
    launches = int(max(1, min(MOST_LAUNCHES, GRAPH_MICROSECONDS / alone)))
    taken: list[list[float]] = [[] for _ in once]
    with ExitStack() as stack:
        graphs = [stack.enter_context(CudaGraph(stream.handle, partial(_repeat, each, launches))) for each in once]
        for turn in range(TURNS):
            for which in range(len(once)) if turn % 2 else reversed(range(len(once))):
                taken[which].append(device.elapsed_microseconds(stream, gate, graphs[which].replay) / launches)
        stream.synchronize()
    ptxas, direct = (
        Side(
            tuple(float(np.median(each)) for each in taken[which::2]),
            len({code.address for both in loaded for code in both[which].codes[:1]}),
        )
        for which in (0, 1)
    )
    return ptxas, direct


def _repeat(launch: partial[None], count: int) -> None:
    for _ in range(count):
        launch()


def build(cases: Sequence[Case], seconds: float) -> Iterator[Pair]:
    """Both kernels of each case, as they are made, until the time is over; prints failures with the reason.

    Cases with few weights come first: ptxas takes minutes for some of the others.
    """
    settings = load_settings()
    store, toolchain = open_store(settings), any_toolchain()
    book = TuningBook.of((), shipped_records())
    end = time.monotonic() + seconds

    def wanted() -> bool:
        return time.monotonic() < end

    with (
        KernelPool(settings, store, toolchain, ARCH, book=book, assembler="direct") as directly,
        KernelPool(settings, store, toolchain, ARCH, book=book, assembler="ptxas") as by_ptxas,
    ):
        of: dict[Future[BuiltLayer], tuple[Case, Future[BuiltLayer]]] = {}
        for case in sorted(cases, key=lambda each: each.weights.nonzeros):
            of[by_ptxas.submit(case, wanted=wanted)] = case, directly.submit(case, wanted=wanted)
        for future in as_completed(of, timeout=seconds):
            case, direct = of[future]
            try:
                pair = Pair(name_of(case), case.spec, case.images, future.result(), direct.result())
            except NotBuiltError as error:
                say(f"{name_of(case):<32} not built: {error}")
                continue
            makers = pair.ptxas.facts["assembler"], pair.direct.facts["assembler"]
            if makers == ("ptxas", "direct"):
                yield pair
            else:
                say(f"{pair.name:<32} left out: one by {makers[0]}, one by {makers[1]}")


def keep(cases: Sequence[Case], folder: Path, seconds: float) -> int:
    """Writes a file for each pair that is made in time; the number of them."""
    folder.mkdir(parents=True, exist_ok=True)
    count = 0
    try:
        for pair in build(cases, seconds):
            (folder / f"{pair.name}.pickle").write_bytes(pickle.dumps(pair))
            count += 1
    except TimeoutError:
        say(f"{len(cases) - count} layers are not made after {seconds:.0f} s")
    return count


def kept(folder: Path, names: Sequence[str]) -> list[Pair]:
    """The pairs in a folder, in the order of names, or all, the smallest first."""
    paths = [folder / f"{name}.pickle" for name in names] or list(folder.glob("*.pickle"))
    pairs: list[Pair] = [pickle.loads(path.read_bytes()) for path in paths]
    return pairs if names else sorted(pairs, key=lambda pair: pair.size)


def summary(found: Sequence[Timed]) -> list[str]:
    if not found:
        return ["no layer timed"]
    ratios = [each.ratio for each in found]
    slow = [f"{each.name} {each.ratio:.3f}" for each in found if each.ratio > SLOWEST]
    return [
        f"{len(found)} layers, {sum(each.differing > 0 for each in found)} with a difference; direct over ptxas: "
        f"geometric mean {math.exp(sum(map(math.log, ratios)) / len(ratios)):.3f}, worst {max(ratios):.3f}",
        f"above {SLOWEST}: {', '.join(slow) or 'none'}",
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="where the kernels of both are")
    parser.add_argument("--build", action="store_true", help="only make the kernels")
    parser.add_argument("--seconds", type=float, default=120.0, help="no layer is made or timed after so many")
    parser.add_argument("layers", nargs="*", metavar="NAME@BATCH", help="only these, as lenet-conv1@64")
    arguments = parser.parse_intermixed_args()
    if arguments.build:
        cases = shipped_cases(arguments.layers)
        if not cases:
            parser.error("there is no such layer: name one of " + ", ".join(map(name_of, shipped_cases(()))))
        say(f"{keep(cases, arguments.folder, arguments.seconds)} of {len(cases)} layers made both ways")
        return 0
    end, found = time.monotonic() + arguments.seconds, []
    with Device() as device:
        for pair in kept(arguments.folder, arguments.layers):
            if time.monotonic() > end:
                say(f"out of time before {pair.name}")
                break
            found.append(timed(device, pair))
            say(found[-1].line)
    for line in summary(found):
        say(line)
    return 1 if not found or any(each.differing for each in found) else 0


if __name__ == "__main__":
    sys.exit(main())

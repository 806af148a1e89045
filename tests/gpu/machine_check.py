"""`python -m tests.gpu.machine_check --seconds 60`: layers assembled directly against ptxas's, on the GPU.

Layers are compiled both ways, in as many processes as there are cores, and run on the same inputs: they must agree bit
for bit. The first ones are of networks, the rest are drawn. Each prints a line with both kernels' times.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass, replace
from itertools import chain
from math import exp, log
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from codegen.errors import CodegenError, MachineCodeError
from codegen.frontend.onnx.diagnostics import DATA_TYPES
from codegen.ir.checkpoint import Weights
from codegen.ir.launch import Launch
from codegen.ir.layer_spec import AddResidual, Clip, Conv2d, ConvTranspose2d, DataType, LayerSpec, Linear
from codegen.ir.tiling import Accumulator, Part, Tiling
from codegen.kernels import launch_of
from codegen.model_zoo import random_weights
from codegen.ptx.rewrite import rewrite
from codegen.ptx.template import make_template
from codegen.sass.assemble.assembler import DirectAssembler, make_skeleton
from codegen.selection.choose import choose_parts, choose_tiling
from codegen.toolchain.ptxas import assemble
from codegen.toolchain.tools import Toolchain, ToolLimits
from codegen.verification.compare import random_input, random_residual
from farm.cuda.device import Device

LIMITS = ToolLimits(120)
ADD_RELU = (AddResidual(), Clip(low=0.0))
BATCH = 16
PAD = (1, 1, 1, 1)


@dataclass(frozen=True)
class Drawn:
    """A layer with weights of a seed; without a tiling it gets the one that is chosen for it."""

    name: str
    spec: LayerSpec
    sparsity: float
    seed: int
    batch: int = BATCH
    tiling: Tiling | None = None
    accumulate: Accumulator = "float32"

    @property
    def weights(self) -> Weights:
        return random_weights(self.spec, self.sparsity, self.seed)


@dataclass(frozen=True)
class Both:
    """A layer's kernels by ptxas and assembled directly, with the CPU seconds of each; or why there are none."""

    layer: Drawn
    ptxas: tuple[tuple[bytes, Launch], ...] = ()
    direct: tuple[tuple[bytes, Launch], ...] = ()
    ptxas_seconds: float = 0.0
    direct_seconds: float = 0.0
    skeleton_seconds: float = 0.0
    refused: str = ""
    failed: str = ""


NETWORK_LAYERS = (
    Drawn("3x3, 56x56x64", Conv2d(64, 56, 56, 64, 3, 3, padding=PAD, epilogue=(Clip(low=0.0),)), 0.9, 1, 64),
    Drawn("1x1, 14x14x256 to 1024", Conv2d(256, 14, 14, 1024, 1, 1, epilogue=ADD_RELU), 0.95, 2, 64),
    Drawn("7x7, 224x224x3, stride 2", Conv2d(3, 224, 224, 64, 7, 7, stride=(2, 2), padding=(3, 3, 3, 3)), 0.8, 3, 16),
    Drawn("3x3, 28x28x128", Conv2d(128, 28, 28, 128, 3, 3, padding=PAD), 0.95, 4, 64),
    Drawn("3x3, 14x14x256", Conv2d(256, 14, 14, 256, 3, 3, padding=PAD), 0.98, 5, 64),
    Drawn("3x3, 7x7x512", Conv2d(512, 7, 7, 512, 3, 3, padding=PAD), 0.99, 6, 64),
    Drawn("1x1, 56x56x256 to 64", Conv2d(256, 56, 56, 64, 1, 1), 0.9, 7, 64),
    Drawn("fully connected, 512 to 1000", Linear(512, 1000), 0.95, 8, 256),
)
"""Shapes that take ptxas long come first."""


def edge_layers() -> Iterator[Drawn]:
    """Weights at their edges: none, one, all."""
    spec, tiling = Conv2d(8, 14, 14, 12, 3, 3, padding=PAD), Tiling("conv2d", 14, 7, 1, 4, 4, 2)
    for name, sparsity in (("no zero", 0.0), ("half", 0.5), ("sparse", 0.97)):
        yield Drawn(f"edge: {name}", spec, sparsity, 11, tiling=tiling)
    yield Drawn("edge: three rows, stages", spec, 0.7, 12, tiling=replace(tiling, rows=2, stages=3))
    yield Drawn("edge: fewer kernels last", replace(spec, kernels=10, epilogue=ADD_RELU), 0.7, 13, tiling=tiling)


def drawn_layers(seed: int) -> Iterator[Drawn]:
    """Endless; of float16 both kinds of sums."""
    rng = np.random.default_rng(seed)
    for number in range(10**9):
        accumulate: Accumulator = ("float32", "float16")[rng.integers(2)]
        sparsity = float(rng.choice([0.5, 0.8, 0.9, 0.95, 0.99]))
        epilogue = ((), (Clip(low=0.0),), ADD_RELU)[rng.integers(3)]
        if rng.random() < 0.2:
            spec: LayerSpec = Linear(int(rng.integers(16, 300)), int(rng.integers(8, 200)), epilogue)
        else:
            size, stride = int(rng.choice([1, 3, 3, 3, 5])), int(rng.choice([1, 1, 2]))
            pad = size // 2
            height, width = (int(each) for each in rng.integers(size, 40, 2))
            channels, kernels = (int(each) for each in rng.integers(1, 64, 2))
            shape = (channels, height, width, kernels, size, size, (stride, stride), (pad, pad, pad, pad))
            spec = Conv2d(*shape, epilogue=epilogue)
            if rng.random() < 0.15:
                spec = Conv2d(*shape, epilogue=epilogue, groups=int(np.gcd(channels, kernels)))
            elif rng.random() < 0.15:
                spec = ConvTranspose2d(*shape, epilogue=epilogue)
        batch = int(rng.choice([1, 3, 16, 33]))
        yield Drawn(f"drawn {seed}:{number}", spec, sparsity, number, batch, accumulate=accumulate)


def layers(seed: int, data_types: Sequence[DataType] = ("float32",)) -> Iterator[Drawn]:
    """Layers, equal in each of the data types."""
    for drawn in chain(NETWORK_LAYERS, edge_layers(), drawn_layers(seed)):
        for data_type in data_types:
            name = drawn.name if data_type == "float32" else f"{drawn.name}, {data_type}"
            yield replace(drawn, name=name, spec=replace(drawn.spec, data_type=data_type))


def compile_both(layer: Drawn, toolchain: Toolchain, arch: str) -> Both:
    """Runs in a process of its own."""
    try:
        spec, weights = layer.spec, layer.weights
        tiling = layer.tiling or choose_tiling(
            spec, layer.batch, weights.nonzeros_per_output, accumulate=layer.accumulate, tables=False
        )
        template = make_template(spec, tiling, "compute_80", toolchain, LIMITS)
        parts = choose_parts(spec, tiling, weights.nonzeros_per_output)
        try:
            skeleton = make_skeleton(template, arch, toolchain, limits=LIMITS)
            assembler = DirectAssembler.of(template, skeleton.data, arch)
            cpu = time.process_time()
            whole = Part(0, parts[-1].end)
            made = assembler.assemble(weights, whole)
            direct_seconds = time.process_time() - cpu
        except MachineCodeError as error:
            return Both(layer, refused=str(error))
        kernels = [rewrite(template, weights, part) for part in parts]
        cubins = [assemble(kernel.ptx, arch, toolchain, limits=LIMITS) for kernel in kernels]
        launches = [kernel.launch for kernel in kernels]
        return Both(
            layer,
            tuple((cubin.data, launch) for cubin, launch in zip(cubins, launches, strict=True)),
            ((made.data, launch_of(spec, tiling, whole)),),
            sum(cubin.seconds for cubin in cubins),
            direct_seconds,
            skeleton.seconds,
        )
    except CodegenError as error:
        return Both(layer, failed=f"{type(error).__name__}: {error}")


@dataclass(frozen=True)
class Compared:
    """The GPU's result for a layer."""

    both: Both
    differing: int
    outputs: int
    ptxas_microseconds: float
    direct_microseconds: float
    channels: tuple[int, ...] = ()
    """Output channels with a difference: of one of them it is the sum that is wrong."""

    @property
    def ratio(self) -> float:
        return self.direct_microseconds / self.ptxas_microseconds

    @property
    def line(self) -> str:
        where = f"outputs DIFFER, in channels {', '.join(map(str, self.channels[:8]))}"
        verdict = "same" if not self.differing else f"{self.differing} of {self.outputs} {where}"
        faster = self.both.ptxas_seconds / max(self.both.direct_seconds, 1e-9)
        return (
            f"{self.both.layer.name:<40} {self.ptxas_microseconds:9.2f} us ptxas {self.direct_microseconds:9.2f} us "
            f"direct {self.ratio:5.2f}x  made {faster:5.0f}x faster  {verdict}"
        )


def compare(device: Device, both: Both) -> Compared:
    """Runs both on the same input, whose outputs start as NaN; and times them. Raises DeviceError."""
    spec, batch = both.layer.spec, both.layer.batch
    x, residual = random_input(spec, batch, seed=1), random_residual(spec, batch, seed=1)
    outputs = [device.run_layer(kernels, x, spec.output_shape, residual) for kernels in (both.ptxas, both.direct)]
    patterns = [each.view(f"u{each.dtype.itemsize}") for each in outputs]
    source, target = device.allocate(x.nbytes), device.allocate(outputs[0].nbytes)
    added = device.allocate(outputs[0].nbytes)
    stream, times = device.new_stream(), []
    for kernels in (both.ptxas, both.direct):
        loaded = device.load_layer(kernels, stream)
        times.append(
            device.microseconds(lambda _, run=loaded: run(int(source), int(target), batch, int(added)), 1, stream)
        )
    for memory in (source, target, added):
        memory.free()
    differs = patterns[0] != patterns[1]
    channels = tuple(np.unique(np.nonzero(differs)[1]).tolist())
    return Compared(both, int(differs.sum()), outputs[0].size, *times, channels)


def say(line: str) -> None:
    """Prints at once, also into a pipe."""
    print(line, flush=True)


def check(
    device: Device,
    toolchain: Toolchain,
    seconds: float,
    seed: int = 1,
    data_types: Sequence[DataType] = ("float32",),
    tell: Callable[[str], None] = say,
) -> list[Compared]:
    """Compares as many layers as there is time for, those of the networks first; tells a line for each."""
    end, arch = time.monotonic() + seconds, device.arch
    compared: list[Compared] = []
    refused: Counter[str] = Counter()
    cores = os.cpu_count() or 1
    # A process that is forked from one with a GPU may hang.
    with ProcessPoolExecutor(cores, get_context("spawn")) as pool:
        source = layers(seed, data_types)
        waiting: list[Future[Both]] = [pool.submit(compile_both, next(source), toolchain, arch) for _ in range(cores)]
        while waiting:
            done = next((each for each in waiting if each.done()), None)
            if done is None:
                time.sleep(0.01)
                continue
            waiting.remove(done)
            both = done.result()
            if time.monotonic() < end:
                waiting.append(pool.submit(compile_both, next(source), toolchain, arch))
            if both.failed:
                tell(f"{both.layer.name:<40} not compiled: {both.failed.splitlines()[0][:120]}")
            elif both.refused:
                refused[both.refused] += 1
            else:
                tell(f"{both.layer.name:<40} runs")  # known even if the GPU does not come back
                compared.append(compare(device, both))
                tell(compared[-1].line)
    for reason, count in refused.most_common():
        tell(f"left to ptxas: {count} because of: {reason}")
    for line in summary(compared):
        tell(line)
    return compared


def summary(compared: list[Compared]) -> list[str]:
    if not compared:
        return ["no layer compared"]
    wrong = [each for each in compared if each.differing]
    ratios = [each.ratio for each in compared]
    long = [each.ratio for each in compared if each.ptxas_microseconds > 20] or ratios
    faster = [log(each.both.ptxas_seconds / max(each.both.direct_seconds, 1e-9)) for each in compared]
    return [
        f"{len(compared)} layers, {len(wrong)} with a difference, {sum(each.outputs for each in compared):,} outputs",
        f"kernel time, direct / ptxas: geometric mean {_mean(ratios):.3f}, worst {max(ratios):.2f}; "
        f"of those over 20 us {_mean(long):.3f}, worst {max(long):.2f}",
        f"assembled {exp(sum(faster) / len(faster)):.0f}x faster than ptxas (geometric mean of CPU time)",
    ]


def _mean(ratios: list[float]) -> float:
    return exp(sum(map(log, ratios)) / len(ratios))


def main() -> int:
    from tests.gpu.workbench import any_toolchain

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seconds", type=float, default=60.0, help="no layer begins to compile after so many")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--data-types", nargs="+", choices=DATA_TYPES, default=["float32"])
    parser.add_argument("--save", type=Path, help="a folder for both cubins of each layer that differs")
    arguments = parser.parse_args()
    with Device() as device:
        compared = check(device, any_toolchain(), arguments.seconds, arguments.seed, arguments.data_types)
    wrong = [each for each in compared if each.differing]
    if arguments.save is not None:
        for each in wrong:
            folder = arguments.save / each.both.layer.name.replace(" ", "_")
            folder.mkdir(parents=True, exist_ok=True)
            for who, kernels in (("ptxas", each.both.ptxas), ("direct", each.both.direct)):
                for part, (cubin, _) in enumerate(kernels):
                    (folder / f"{who}{part}.cubin").write_bytes(cubin)
    return 1 if wrong or not compared else 0


if __name__ == "__main__":
    sys.exit(main())

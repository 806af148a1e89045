"""Measures kernels for the cost model, on a machine with a GPU: the layers of whole networks and the ten operators.

    python -m tests.benchmarks.cost_model.measure FILE [--seconds 540] [--tilings 6] [--data-type float32]

For each distinct layer at batch 1 and 64 a few tilings are taken from the cost model's ranking, close together at its
head and far apart behind it; each kernel is compared with float64 before it is timed. Cases come in a fixed random
order, so that a run that ends early is a fair sample.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path

from codegen.choice import ranked_tilings
from codegen.data_types import numpy_dtype
from codegen.networks import NETWORKS, TEN_OPERATORS, random_weights, write_network
from codegen.onnx.checkpoint import read_checkpoint
from codegen.operators import canonical
from codegen.spec import DataType, LayerSpec
from codegen.tiling import Tiling
from codegen.toolchain import find_toolchain
from farm.gpu.device import Device
from farm.gpu.kernels import BuiltLayer, KernelPool, NotBuiltError
from farm.gpu.stage import Shape, Stage
from farm.gpu.workload import Case, CaseKey
from farm.settings import load_settings
from farm.store import open_store
from farm.tuner.judge import Judge
from farm.tuner.rig import GpuBench
from farm.tuner.search import spread
from farm.worker.build import known_toolchain
from tests.benchmarks.cost_model.points import Point, write_points
from tests.gpu.workbench import any_toolchain

MEASURED = ("resnet18", "resnet50", "vgg16", "mobilenet_v2", "unet")
SPARSITY = 0.9
BATCHES = (1, 64)
MOST_BYTES = 9e8
"""Of a layer's input and output: larger ones take most of the time to make and to compare."""
BEGUN = 96
"""Kernels under way."""
REPEATS = 5


def cases(data_type: DataType) -> Iterator[tuple[str, Case]]:
    """Each distinct layer once at each batch, with the network where it was met first."""
    seen: set[tuple[LayerSpec, int]] = set()
    for name, spec in TEN_OPERATORS.items():
        weights = random_weights(spec, SPARSITY, 0)
        for batch in BATCHES:
            seen.add((canonical(spec), batch))
            yield "ten operators", Case(CaseKey(name, batch, SPARSITY, data_type), _typed(spec, data_type), weights)
    for network in MEASURED:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "net.onnx"
            write_network(path, NETWORKS[network](SPARSITY, 0))
            checkpoint = read_checkpoint(path)
        for layer in checkpoint.layers:
            for batch in BATCHES:
                bare = canonical(layer.spec), batch
                if bare in seen:
                    continue
                seen.add(bare)
                key = CaseKey(layer.name, batch, SPARSITY, data_type)
                yield network, Case(key, _typed(layer.spec, data_type), layer.weights, layer.rows or 1)


def _typed(spec: LayerSpec, data_type: DataType) -> LayerSpec:
    return replace(spec, data_type=data_type)


def sampled(case: Case, count: int) -> list[tuple[int, Tiling]]:
    """Ranks and tilings: 0, 1, 2, 4, 8, ... of those that are not nearly alike."""
    ranked = spread(ranked_tilings(case.spec, case.images, case.weights.nonzeros_per_kernel))
    ranks = [0, *(2**i for i in range(count - 1))]
    return [(rank, ranked[rank]) for rank in ranks if rank < len(ranked)]


def measured(case: Case, network: str, rank: int, built: BuiltLayer, bench: GpuBench, judge: Judge) -> Point | None:
    """None: its numbers are wrong, which is printed."""
    objection = judge.objection(built.tiling, bench.output(built.kernels))
    if objection:
        print(f"WRONG {case.key}: {built.tiling}: {objection}", flush=True)
        return None
    warm, cold = bench.both_microseconds(built.kernels, REPEATS)
    return Point(
        network=network,
        layer=case.key.operator,
        spec=case.spec,
        images=case.images,
        density=case.weights.nonzeros / case.spec.weights_count,
        rank=rank,
        tiling=built.tiling,
        parts=len(built.kernels),
        registers=built.facts["registers"],
        cubin_bytes=built.facts["cubin_bytes"],
        warm_microseconds=round(warm, 3),
        cold_microseconds=round(cold, 3),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--seconds", type=float, default=540)
    parser.add_argument("--tilings", type=int, default=6)
    parser.add_argument("--data-type", default="float32")
    arguments = parser.parse_args()
    end = time.monotonic() + arguments.seconds
    settings = load_settings()
    store = open_store(settings)
    toolchain = known_toolchain(find_toolchain(settings.nvcc or any_toolchain().nvcc, settings.ptxas), store)
    todo = list(cases(arguments.data_type))
    random.Random(0).shuffle(todo)
    todo = [(network, case) for network, case in todo if network == "ten operators" or _bytes(case) <= MOST_BYTES]
    print(f"{len(todo)} cases", flush=True)
    points: list[Point] = []
    with Device() as device, KernelPool(settings, store, toolchain, device.arch) as pool:
        stream, l2_bytes = device.new_stream(), device.facts.l2_bytes
        begun: list[tuple[str, Case, list[tuple[int, Future[BuiltLayer]]]]] = []
        for number in range(len(todo)):
            while len(begun) < len(todo) and sum(len(each[2]) for each in begun[number:]) < BEGUN:
                network, case = todo[len(begun)]
                tilings = sampled(case, arguments.tilings)
                begun.append((network, case, [(rank, pool.submit(case, tiling=tiling)) for rank, tiling in tilings]))
            network, case, futures = begun[number]
            begun[number] = (network, case, [])
            shape = Shape(case.spec, case.images, 0)
            with Stage(device, shape, l2_bytes) as stage:
                bench = GpuBench(device, stream, stage)
                judge = Judge(case, bench, 0)
                for rank, future in futures:
                    if time.monotonic() > end:
                        break
                    try:
                        point = measured(case, network, rank, future.result(), bench, judge)
                    except NotBuiltError as error:
                        print(f"NOT BUILT {case.key} rank {rank}: {error}", flush=True)
                        continue
                    points += [point] if point else []
            print(f"{number + 1}/{len(todo)} {network} {case.key.operator} {case.key.batch}: {len(points)}", flush=True)
            if number % 10 == 9 or time.monotonic() > end:
                write_points(points, arguments.file)
            if time.monotonic() > end:
                pool.give_up()
                for _, _, left in begun:
                    for _, future in left:
                        future.cancel()
                break
    write_points(points, arguments.file)


def _bytes(case: Case) -> float:
    spec, item = case.spec, numpy_dtype(case.spec.data_type).itemsize
    sizes = [1.0, 1.0]
    for i, shape in enumerate((spec.input_shape, spec.output_shape)):
        for extent in shape:
            sizes[i] *= extent
    return case.images * item * sum(sizes)


if __name__ == "__main__":
    main()

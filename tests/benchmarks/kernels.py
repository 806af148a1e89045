"""The ten operators' kernels on a GPU: right, and how long they take against the prototypes.

    python -m tests.benchmarks.kernels [--nvcc PATH] [--json FILE]

Needs a GPU, PyCUDA and torch (for CUDA graphs and the reference). Each kernel is checked against a float64 convolution,
outputs poisoned first, before it is timed: graph replay, inputs rotated, median of nine.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from codegen.assemble import assemble, ptxas_options
from codegen.choice import choose_tiling
from codegen.device import Device
from codegen.layers import Weights
from codegen.networks import TEN_OPERATORS, random_weights
from codegen.prediction import predict_microseconds
from codegen.rewrite import Kernel, rewrite
from codegen.template import make_template
from codegen.tiling import Tiling
from codegen.toolchain import Toolchain, ToolLimits, find_toolchain

SPARSITY = 0.9
BATCHES = (64, 1)
REPEATS = 9

PROTOTYPE_MICROSECONDS: dict[str, tuple[float, float]] = {
    "lenet-conv1": (2.1, 1.4),
    "lenet-conv2": (3.3, 2.3),
    "alexnet-conv1": (4.2, 1.5),
    "alexnet-conv2": (6.6, 2.4),
    "alexnet-conv3": (6.5, 2.3),
    "resnet-conv1": (51.8, 5.6),
    "resnet-conv2": (86.6, 7.0),
    "vgg-conv1": (255.1, 5.2),
    "vgg-conv2": (697.5, 17.1),
    "vgg-conv3": (383.9, 14.9),
}
"""The prototype's times on one H200 at batch 64 and 1 (measured before this project began)."""


def build(name: str, batch: int, arch: str, toolchain: Toolchain) -> tuple[Tiling, Weights, Kernel, bytes, int]:
    """One kernel as the farm would make it."""
    spec = TEN_OPERATORS[name]
    weights = random_weights(spec, SPARSITY)
    tiling = choose_tiling(spec, batch, weights.nonzeros_per_kernel)
    kernel = rewrite(make_template(spec, tiling, "compute_80", toolchain, ToolLimits()), weights)
    cubin = assemble(kernel.ptx, arch, toolchain, ptxas_options(3), ToolLimits())
    return tiling, weights, kernel, cubin.data, cubin.registers


def replayed(torch: Any, stream: Any, launch: Callable[[int], None], sets: int, guess: float) -> float:
    """Microseconds of one launch: a graph of many over rotated inputs, median of its replays."""
    launches = max(2 * sets, min(40, int(4000 / guess)))
    with torch.cuda.stream(stream):
        for i in range(sets):
            launch(i)
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for i in range(launches):
            launch(i % sets)
    times = []
    for _ in range(REPEATS):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        with torch.cuda.stream(stream):
            begin.record(stream)
            graph.replay()
            end.record(stream)
        end.synchronize()
        times.append(begin.elapsed_time(end) / launches * 1e3)
    return float(np.median(times))


def measure(torch: Any, device: Device, name: str, batch: int, built: Any) -> dict[str, Any]:
    """Checks, then times."""
    spec = TEN_OPERATORS[name]
    tiling, weights, kernel, cubin, registers = built
    loaded = device.load(cubin, kernel.launch)
    sets = 2 if batch * np.prod(spec.input_shape) > 2.5e7 else 4
    inputs = [torch.randn(batch, *spec.input_shape, device="cuda") for _ in range(sets)]
    outputs = [torch.full((batch, *spec.output_shape), float("nan"), device="cuda") for _ in range(sets)]
    reference = torch.nn.functional.conv2d(
        inputs[0].double(),
        torch.from_numpy(weights.kernel).cuda().double(),
        torch.from_numpy(weights.bias).cuda().double(),
        padding=spec.padding[:2],
    )
    stream = device.new_stream()
    outside = torch.cuda.ExternalStream(stream.handle)
    torch.cuda.synchronize()
    loaded(inputs[0].data_ptr(), outputs[0].data_ptr(), batch, stream)
    torch.cuda.synchronize()
    error = float((outputs[0].double() - reference).norm() / reference.norm())
    if not error < 1e-6:
        raise SystemExit(f"{name} at batch {batch} is wrong: relative error {error}")
    predicted = predict_microseconds(spec, tiling, batch, 1 - SPARSITY)

    def ours(i: int) -> None:
        loaded(inputs[i].data_ptr(), outputs[i].data_ptr(), batch, stream)

    median = replayed(torch, outside, ours, sets, predicted)
    dense = torch.from_numpy(weights.kernel).cuda()

    def peer(i: int) -> None:
        # Without the bias, which cuDNN's caller would add in another launch.
        torch.nn.functional.conv2d(inputs[i], dense, padding=spec.padding[:2])

    cudnn = {}
    for peer_name, tf32 in (("cudnn_fp32", False), ("cudnn_tf32", True)):
        torch.backends.cudnn.allow_tf32 = tf32
        cudnn[peer_name] = round(replayed(torch, outside, peer, sets, 4 * predicted), 2)
    prototype = PROTOTYPE_MICROSECONDS[name][BATCHES.index(batch)]
    return {
        "operator": name,
        "batch": batch,
        "microseconds": round(median, 2),
        "prototype": prototype,
        **cudnn,
        "ratio": round(median / prototype, 3),
        "predicted": round(predicted, 2),
        "relative_error": error,
        "registers": registers,
        "tiling": tiling.to_json(),
    }


def geometric_mean(values: list[float]) -> float:
    return float(np.exp(np.mean(np.log(values))))


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nvcc", type=Path, help="a system CUDA's nvcc")
    parser.add_argument("--json", type=Path, help="also write the rows here")
    options = parser.parse_args(arguments)
    import torch

    torch.backends.cudnn.benchmark = True
    torch.zeros(1, device="cuda")
    toolchain = find_toolchain(options.nvcc)
    rows = []
    with Device() as device, ThreadPoolExecutor() as pool:
        jobs = [(name, batch) for name in TEN_OPERATORS for batch in BATCHES]
        built = list(pool.map(lambda job: build(job[0], job[1], device.arch, toolchain), jobs))
        for (name, batch), one in zip(jobs, built, strict=True):
            rows.append(measure(torch, device, name, batch, one))
            torch.cuda.empty_cache()
        print(f"{device.name}, {datetime.now(UTC):%Y-%m-%d}, sparsity {SPARSITY}, nvcc {toolchain.nvcc_version}")
    print(f"{'operator':<15}{'batch':>6}{'us':>9}{'prototype':>11}{'ratio':>7}{'cuDNN':>9}{'TF32':>9}  tiling")
    for row in rows:
        tiling = Tiling(**row["tiling"])
        times = f"{row['microseconds']:>9.2f}{row['prototype']:>11.1f}{row['ratio']:>7.2f}"
        peers = f"{row['cudnn_fp32']:>9.1f}{row['cudnn_tf32']:>9.1f}"
        shape = f"{tiling.tile_width}x{tiling.tile_height} rows {tiling.rows} kernels {tiling.group_kernels}"
        print(f"{row['operator']:<15}{row['batch']:>6}{times}{peers}  {shape} channels {tiling.chunk_channels}")
    print(f"largest relative error {max(row['relative_error'] for row in rows):.1e}")
    for batch in BATCHES:
        ratios = [row["ratio"] for row in rows if row["batch"] == batch]
        print(f"batch {batch}: over the prototype {geometric_mean(ratios):.2f}, worst {max(ratios):.2f}")
        for peer in ("cudnn_fp32", "cudnn_tf32"):
            faster = [row[peer] / row["microseconds"] for row in rows if row["batch"] == batch]
            print(f"  {peer} takes {geometric_mean(faster):.2f} times as long, least {min(faster):.2f}")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main(sys.argv[1:])

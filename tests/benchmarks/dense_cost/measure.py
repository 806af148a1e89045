"""Measures dense layers in PyTorch on a GPU: every shape of some networks, in three precisions and two layouts.

    python -m tests.benchmarks.dense_cost.measure --seconds 240 -o h200.jsonl.gz

A layer is a convolution or matrix product and a ReLU in place, as `torch.compile` leaves them. A CUDA graph holds
CALLS of them in turn, each with weights of its own, since a network's weights are not in the L2 cache when their turn
comes. Layers are drawn in a random order until the time is over.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from math import prod
from pathlib import Path

import torch
from torch.nn import functional

from codegen.frontend.onnx.reader import read_checkpoint
from codegen.ir.layer_spec import Conv2d, LayerSpec, Linear
from codegen.model_zoo import NETWORKS, write_network

CALLS = 20
REPLAYS = 7
MOST_BYTES = 12 * 2**30
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128)
NAMES = ("resnet18", "resnet50", "vgg16", "mobilenet_v2", "unet", "efficientnet_b0", "densenet121")
LINEARS = ((96, 384), (384, 96), (192, 768), (384, 1536), (1536, 384), (768, 3072), (3072, 768), (512, 512))
ROWS = (1, 8, 64, 256, 1024, 4096, 16384)
KINDS = (
    ("fp32", "contiguous"),
    ("tf32", "contiguous"),
    ("tf32", "channels_last"),
    ("fp16", "contiguous"),
    ("fp16", "channels_last"),
)


def main() -> None:
    """Measures and writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=150.0)
    parser.add_argument("-o", "--output", type=Path, required=True)
    arguments = parser.parse_args()
    torch.backends.cudnn.benchmark = False
    questions = [(spec, images, kind) for spec, images in shapes() for kind in KINDS]
    random.Random(0).shuffle(questions)
    end = time.monotonic() + arguments.seconds
    with gzip.open(arguments.output, "wt") as file:
        for count, (spec, images, (precision, layout)) in enumerate(questions):
            if time.monotonic() > end:
                print(f"{count} of {len(questions)} measured")
                break
            if isinstance(spec, Linear) and layout == "channels_last":
                continue
            found = microseconds(spec, images, precision, layout)
            if found is not None:
                point = {"precision": precision, "layout": layout, "images": images, "microseconds": round(found, 2)}
                file.write(json.dumps({"spec": spec.to_json(), **point}, separators=(",", ":")) + "\n")


def shapes() -> Iterator[tuple[LayerSpec, int]]:
    """Distinct layers without their epilogues, and batch sizes."""
    specs: dict[LayerSpec, None] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in NAMES:
            path = Path(folder) / f"{name}.onnx"
            write_network(path, NETWORKS[name](0.9, 0))
            for layer in read_checkpoint(path).layers:
                spec = layer.spec
                if isinstance(spec, Conv2d):
                    specs[replace(spec, epilogue=(), bounded=False, gated=False)] = None
    for each in specs:
        for batch in BATCHES:
            yield each, batch
    for inputs, outputs in LINEARS:
        for rows in ROWS:
            yield Linear(inputs, outputs), rows


def microseconds(spec: LayerSpec, images: int, precision: str, layout: str) -> float | None:
    """Time of a layer in a graph; None if it takes too much memory or is unknown."""
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    dtype = torch.float16 if precision == "fp16" else torch.float32
    weights = max(1, min(CALLS, 2**31 // (spec.weights_count * 4)))
    moved = images * (prod(spec.input_shape) + prod(spec.output_shape)) * 4
    if moved * 3 + weights * spec.weights_count * 4 > MOST_BYTES:
        return None
    order = torch.channels_last if layout == "channels_last" else torch.contiguous_format
    run: Callable[[int], object]
    if isinstance(spec, Linear):
        x = torch.randn(images, spec.inputs, device="cuda", dtype=dtype)
        kernels = [torch.randn(spec.outputs, spec.inputs, device="cuda", dtype=dtype) for _ in range(weights)]

        def run(i: int) -> object:
            return functional.linear(x, kernels[i % weights]).relu_()
    elif isinstance(spec, Conv2d):
        x = torch.randn(images, spec.channels, spec.height, spec.width, device="cuda", dtype=dtype)
        x = x.to(memory_format=order)
        shape = (spec.output_channels, spec.channels // spec.groups, spec.kernel_height, spec.kernel_width)
        kernels = [torch.randn(shape, device="cuda", dtype=dtype).to(memory_format=order) for _ in range(weights)]
        top, left, bottom, right = spec.padding
        if (top, left) != (bottom, right):
            return None

        def run(i: int) -> object:
            return functional.conv2d(
                x, kernels[i % weights], None, spec.stride, (top, left), spec.dilation, spec.groups
            ).relu_()
    else:
        return None
    stream = torch.cuda.Stream()
    with torch.no_grad(), torch.cuda.stream(stream):
        for _ in range(2):
            run(0)
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            for i in range(CALLS):
                run(i)
        graph.replay()
        times = []
        for _ in range(REPLAYS):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            graph.replay()
            end.record()
            end.synchronize()
            times.append(begin.elapsed_time(end) * 1000 / CALLS)
    return statistics.median(times)


if __name__ == "__main__":
    main()

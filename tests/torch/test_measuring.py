"""What torch's profiler wrote of a replay, read."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("torch", reason="needs PyTorch: pip install torch")

from farm.torch.measuring import TracedKernel, read_trace


def test_kernels_copies_and_fills_are_read_in_the_order_of_their_beginning() -> None:
    events = [
        {"ph": "X", "cat": "kernel", "name": "linear", "ts": 30.5, "dur": 2, "tid": 7},
        {"ph": "X", "cat": "cuda_runtime", "name": "cudaGraphLaunch", "ts": 1.0, "dur": 9},
        {"ph": "X", "cat": "gpu_memcpy", "name": "Memcpy DtoD", "ts": 10.0, "dur": 1.5},
        {"ph": "M", "name": "process_name"},
        {"ph": "X", "cat": "kernel", "name": "conv2d", "ts": 20.0, "dur": 4.25},
    ]
    assert read_trace(json.dumps({"schemaVersion": 1, "traceEvents": events})) == [
        TracedKernel("Memcpy DtoD", 10.0, 11.5),
        TracedKernel("conv2d", 20.0, 24.25),
        TracedKernel("linear", 30.5, 32.5),
    ]

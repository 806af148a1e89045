"""Timing of a network's call, in a CUDA that is played, and reading of a replay from torch's profiler."""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install torch")

from torch._inductor.runtime.cache_dir_utils import cache_dir

from codegen.errors import DeviceError
from codegen.frontend.onnx.reader import read_checkpoint
from codegen.model_zoo import lenet5, write_network
from farm.bench.networks import torch_timing
from farm.bench.networks.breakdown import TracedKernel, read_trace
from farm.bench.networks.session import DenseWork
from farm.bench.networks.torch_timing import FEWEST_REPLAYS, NetworkGpu
from farm.cuda.prefetch import KERNEL


def test_kernels_copies_and_fills_are_read_in_the_order_of_their_beginning() -> None:
    events = [
        {"ph": "X", "cat": "kernel", "name": "linear", "ts": 30.5, "dur": 2, "tid": 7},
        {"ph": "X", "cat": "cuda_runtime", "name": "cudaGraphLaunch", "ts": 1.0, "dur": 9},
        {"ph": "X", "cat": "gpu_memcpy", "name": "Memcpy DtoD", "ts": 10.0, "dur": 1.5},
        {"ph": "M", "name": "process_name"},
        {"ph": "X", "cat": "kernel", "name": "conv2d", "ts": 20.0, "dur": 4.25},
        {"ph": "X", "cat": "kernel", "name": KERNEL, "ts": 21.0, "dur": 150},
    ]
    assert read_trace(json.dumps({"schemaVersion": 1, "traceEvents": events})) == [
        TracedKernel("Memcpy DtoD", 10.0, 11.5),
        TracedKernel("conv2d", 20.0, 24.25),
        TracedKernel("linear", 30.5, 32.5),
    ]


class PlayedCuda:
    """Replays call again what was called in the capture; each takes 20 ms by its events."""

    def __init__(self) -> None:
        self.closed = False
        self.since_closed = 0
        """Replays behind the gate."""
        self.seen: list[float] = []
        """First element of the input in each replay."""
        self.most_gated = 0
        self.replays = 0
        stream = SimpleNamespace(wait_stream=lambda _: None, synchronize=lambda: None, cuda_stream=1)
        self.cuda = SimpleNamespace(
            Stream=lambda: stream,
            Event=lambda **_: self,
            CUDAGraph=lambda: SimpleNamespace(replay=self.replay),
            graph=lambda *_, **__: nullcontext(),
            stream=lambda _: nullcontext(),
            current_stream=lambda: stream,
            synchronize=lambda: None,
            is_available=lambda: True,
        )

    def replay(self) -> None:
        self.replays += 1
        self.since_closed += self.closed
        self.most_gated = max(self.most_gated, self.since_closed)
        self.seen.append(float(self.held[0].flatten()[0]))

    def call(self, *held: Any) -> Any:
        self.held = held
        return held[0] * 2

    def record(self, _: Any) -> None: ...

    def synchronize(self) -> None: ...

    def elapsed_time(self, _: Any) -> float:
        return 20.0

    @contextmanager
    def gate(self) -> Iterator[None]:
        self.closed, self.since_closed = True, 0
        yield
        self.closed = False


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> PlayedCuda:
    cuda = PlayedCuda()
    monkeypatch.setattr(torch_timing.torch, "cuda", cuda.cuda)
    monkeypatch.setattr(torch_timing.torch.Tensor, "pin_memory", lambda tensor: tensor)
    monkeypatch.setattr(torch_timing, "Gate", lambda *_: SimpleNamespace(closed=cuda.gate))
    monkeypatch.setattr(torch_timing, "cool_down", lambda _: None)
    monkeypatch.setattr(torch_timing, "WAKE_SECONDS", 0.0)
    return cuda


def test_each_replay_has_other_inputs_and_a_gate_holds_back_one_at_most(played: PlayedCuda) -> None:
    inputs = [(torch.full((2, 3), float(i)),) for i in range(4)]
    timing = NetworkGpu().time(played.call, inputs)
    assert timing.latency == 20_000
    assert timing.period == 20_000 / FEWEST_REPLAYS
    assert timing.cpu > 0
    one_by_one = played.seen[2 : 2 + FEWEST_REPLAYS]  # after one to wake and one to guess by
    assert one_by_one == [float(i % 4) for i in range(FEWEST_REPLAYS)]
    assert played.most_gated == 1
    assert played.replays == 2 + 2 * FEWEST_REPLAYS


def test_replays_are_traced_one_by_one(played: PlayedCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    profile = torch.profiler.profile
    cpu = [torch.profiler.ProfilerActivity.CPU]
    monkeypatch.setattr(torch.profiler, "profile", lambda **_: profile(activities=cpu))
    inputs = [(torch.full((2, 3), float(i)),) for i in range(4)]
    gpu = NetworkGpu()
    played.cuda.is_available = lambda: False
    found = gpu.trace(played.call, inputs)
    assert found == [[]] * torch_timing.TRACES  # no kernel ran
    assert played.seen == [0, 1, 2, 3]


def test_without_a_gpu_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_timing.torch.cuda, "is_available", lambda: False)
    with pytest.raises(DeviceError, match="PyTorch finds no GPU here"):
        NetworkGpu()


@pytest.fixture
def work(tmp_path: Path) -> DenseWork:
    write_network(tmp_path / "lenet5.onnx", lenet5(0.9, 0))
    return DenseWork(read_checkpoint(tmp_path / "lenet5.onnx"), ((2, 1, 28, 28),), "fp16", "channels last")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_process_that_compiles_ahead_says_why_it_cannot(work: DenseWork) -> None:
    gpu = object.__new__(NetworkGpu)
    assert "PyTorch finds no GPU here" in gpu.compile_ahead(work, "default", 120)
    assert not multiprocessing.active_children()


def hang(work: DenseWork, mode: str, reasons: Connection, parent: int) -> None:
    """A process whose compiler runs on and on."""
    os.setsid()
    compiler = subprocess.Popen(["sleep", "600"])
    Path(mode).write_text(str(compiler.pid))
    compiler.wait()


def test_a_process_that_compiles_too_long_is_killed_with_its_compilers(
    work: DenseWork, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch_timing, "_compile_ahead", hang)
    file = tmp_path / "pid"
    seconds = 5.0
    while not file.exists() and seconds < 60:  # on a busy machine it takes long to start
        assert object.__new__(NetworkGpu).compile_ahead(work, str(file), seconds) == f"not finished in {seconds:.0f} s"
        seconds *= 3
    end = time.monotonic() + 10
    status = Path("/proc", file.read_text(), "stat")
    while status.exists() and status.read_text().split()[2] != "Z" and time.monotonic() < end:
        time.sleep(0.05)
    assert not status.exists() or status.read_text().split()[2] == "Z"
    assert not multiprocessing.active_children()


def test_what_torch_compiles_is_kept_until_it_is_too_much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu, kernel = object.__new__(NetworkGpu), tmp_path / "kept" / "ab" / "kernel.py"
    with gpu.compilations_kept(tmp_path / "kept"):
        assert Path(cache_dir()) == tmp_path / "kept"
        kernel.parent.mkdir()
        kernel.write_text("pass")
    with gpu.compilations_kept(tmp_path / "kept"):
        assert kernel.exists()
    assert Path(cache_dir()) != tmp_path / "kept"
    monkeypatch.setattr(torch_timing, "KEPT_BYTES", 0)
    with gpu.compilations_kept(tmp_path / "kept"):
        assert not kernel.exists()

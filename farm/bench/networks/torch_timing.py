"""Timing of whole networks on a GPU: a call is captured as a CUDA graph, replayed, timed and traced."""

from __future__ import annotations

import os
import shutil
import signal
import statistics
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing import Pipe, get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch._inductor.runtime.cache_dir_utils import temporary_cache_dir

from codegen.errors import CodegenError, DeviceError
from codegen.frontend.onnx.export.network import read_network
from codegen.frontend.onnx.export.residual_graph import Tensor
from codegen.ir.checkpoint import Checkpoint
from codegen.toolchain.temp_folders import TempFolder
from farm.bench.layers.results import Measurement
from farm.bench.networks.breakdown import TracedKernel, read_trace
from farm.bench.networks.cases import inputs_of
from farm.bench.networks.session import DenseWork
from farm.bench.networks.torch_dense import DenseLayer
from farm.bundle.reader import BundledLayer
from farm.cuda.device import IDLE_SECONDS, WAKE_SECONDS
from farm.cuda.graph import Gate, cool_down
from farm.errors import FarmError, UsageError
from farm.executors.processes import end_with_parent
from farm.torch.code_prefetch import prefetch_during_capture
from farm.torch.layer import no_gpu_way_out
from farm.torch.module import load, module_of

Inputs = tuple[torch.Tensor, ...]
"""Inputs of one call."""
Call = Callable[..., Any]
"""A network: input tensors to an output or a tuple of outputs."""

WARM_CALLS = 3
"""Calls before a capture, in which cuDNN selects algorithms and the allocator its sizes."""
MEASURED_MICROSECONDS = 150_000.0
"""Approximate time of one measurement."""
FEWEST_REPLAYS, MOST_REPLAYS = 15, 200
CPU_CALLS = 7
TRACES = 3
"""Traced replays, of which the median counts."""
KEPT_BYTES = 4 * 2**30
"""Size from which PyTorch's cache of compiled networks is emptied."""
TYPES = {"fp32": torch.float32, "tf32": torch.float32, "fp16": torch.float16}
"""Data type of activations and weights, by precision."""


@dataclass(frozen=True)
class Timing:
    """Times of a call in microseconds."""

    latency: float
    """Median of single replays on alternating inputs."""
    period: float
    """Time per replay in back-to-back replays, which gives the throughput."""
    cpu: float
    """CPU time to launch a call without a graph."""


@dataclass(frozen=True)
class Comparison:
    """Comparison of outputs with references, over all input sets."""

    relative_error: float
    """Norm of the difference over norm of the references; NaN if any value is."""
    top1: float | None
    """Share of images or pixels whose largest channel is the reference's."""


class NetworkGpu:
    """The current GPU. Raises DeviceError without one."""

    _device = "cuda"

    def __init__(self) -> None:
        if not torch.cuda.is_available():
            raise DeviceError(f"PyTorch finds no GPU here: {no_gpu_way_out()}")
        self._stream = torch.cuda.Stream()
        flag = torch.zeros(1, dtype=torch.int32).pin_memory()
        self._gate = Gate(self._stream.cuda_stream, flag.numpy().view(np.uint32), flag.data_ptr())
        self._awake_at = -IDLE_SECONDS
        """Time at which the GPU was last seen at full clock."""
        torch.backends.cudnn.benchmark = True
        self.allow_tf32(False)

    @property
    def arch(self) -> str:
        """Architecture such as sm_90."""
        major, minor = torch.cuda.get_device_capability()
        return f"sm_{major}{minor}"

    def facts(self) -> dict[str, Any]:
        """Facts of the GPU as plain JSON values; `id` is for nvidia-smi."""
        found = torch.cuda.get_device_properties(torch.cuda.current_device())
        return {
            "name": found.name,
            "arch": self.arch,
            "multiprocessors": found.multi_processor_count,
            "memory_bytes": found.total_memory,
            "l2_bytes": found.L2_cache_size,
            "id": f"GPU-{found.uuid}",
        }

    def versions(self) -> dict[str, str]:
        """Versions of PyTorch and its libraries."""
        number = torch.backends.cudnn.version() or 0
        cudnn = f"{number // 10000}.{number // 100 % 100}.{number % 100}"
        return {"torch": torch.__version__, "torch_cuda": str(torch.version.cuda), "cudnn": cudnn}

    def allow_tf32(self, allowed: bool) -> None:
        """Allows TF32 for cuDNN and cuBLAS."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch has old and new names for these switches
            torch.backends.cudnn.allow_tf32 = allowed
            torch.backends.cuda.matmul.allow_tf32 = allowed

    def load(self, bundle: Path) -> nn.Module:
        """Loads a compiled network. Raises errors of `farm.torch.load`."""
        return load(bundle)

    def dense(self, checkpoint: Checkpoint, precision: str, layout: str) -> nn.Module:
        """The network with all layers dense, their weights folded as in the compiled ones."""
        kind = torch.channels_last if layout == "channels last" else torch.contiguous_format
        network = dense_network(checkpoint, [each.name for each in checkpoint.layers])
        return network.to(dtype=TYPES[precision]).to(self._device).to(memory_format=kind)

    def compiled(self, network: nn.Module, mode: str) -> Call:
        """Compiles a network with torch.compile in a mode, dropping what it compiled before."""
        torch._dynamo.reset()
        call: Call = torch.compile(network, mode=mode, dynamic=False)
        return call

    def with_algorithms(self, measure: Callable[[], Measurement], *, searched: bool) -> Measurement:
        """Runs a measurement in which cuDNN takes the algorithms that it finds to be fastest, or predicts to be.

        In a thread of its own: PyTorch keeps a convolution's algorithm for each thread, however it was chosen.
        """
        torch.backends.cudnn.benchmark = searched
        try:
            with ThreadPoolExecutor(1) as thread:
                return thread.submit(measure).result()
        finally:
            torch.backends.cudnn.benchmark = True

    @contextmanager
    def compilations_kept(self, folder: Path) -> Iterator[None]:
        """Keeps what torch.compile makes within the block in a folder, emptied first if it is over KEPT_BYTES."""
        if sum(each.lstat().st_size for each in folder.rglob("*")) > KEPT_BYTES:
            shutil.rmtree(folder)
        folder.mkdir(parents=True, exist_ok=True)
        with temporary_cache_dir(str(folder)):
            yield

    def compile_ahead(self, work: DenseWork, mode: str, seconds: float) -> str:
        """Compiles a dense network in another process, for `compiled` to find in PyTorch's cache.

        Returns why there is nothing to be found; empty if there is.
        """
        ours, theirs = Pipe(duplex=False)
        with ours:
            process = get_context("spawn").Process(target=_compile_ahead, args=(work, mode, theirs, os.getpid()))
            process.start()
            theirs.close()
            try:
                return str(ours.recv()) if ours.poll(seconds) else f"not finished in {seconds:.0f} s"
            except EOFError:
                return "the process that compiled it died"
            finally:
                if process.pid is not None:
                    # Without a group of its own yet, the process has started no compiler.
                    with suppress(ProcessLookupError):
                        os.killpg(process.pid, signal.SIGKILL)
                process.kill()
                process.join()

    def references(self, checkpoint: Checkpoint, inputs: Sequence[Inputs], at_once: int) -> list[torch.Tensor]:
        """The model's first output in float64 without folding, `at_once` images at a time."""
        network = dense_network(checkpoint, ()).to(dtype=torch.float64).to(self._device)
        torch.backends.cudnn.benchmark = False
        try:
            with torch.inference_mode():
                return [torch.cat([first_of(network(*slices)) for slices in _sliced(each, at_once)]) for each in inputs]
        finally:
            torch.backends.cudnn.benchmark = True

    def inputs(
        self, tensors: Sequence[Tensor], shapes: Sequence[tuple[int, ...]], sets: int, seed: int
    ) -> list[Inputs]:
        """Sets of random inputs of the model's types."""
        random = np.random.default_rng(seed)
        return [
            tuple(_random(random, each, shape).to(self._device) for each, shape in zip(tensors, shapes, strict=True))
            for _ in range(sets)
        ]

    def as_for(self, inputs: Sequence[Inputs], precision: str, layout: str) -> list[Inputs]:
        """Inputs of a dense network in a precision and layout."""
        return [tuple(_converted(each, TYPES[precision], layout) for each in of_call) for of_call in inputs]

    def outputs(self, call: Call, inputs: Sequence[Inputs]) -> list[torch.Tensor]:
        """First output for each set of inputs."""
        with torch.inference_mode():
            return [first_of(call(*each)).clone() for each in inputs]

    def compare(self, outputs: Sequence[torch.Tensor], references: Sequence[torch.Tensor]) -> Comparison:
        """Compares outputs of equal input sets."""
        pairs = list(zip(outputs, references, strict=True))
        difference = sum(float((output.double() - reference).square().sum()) for output, reference in pairs)
        scale = sum(float(reference.square().sum()) for reference in references)
        top1 = None
        if all(reference.ndim > 1 and reference.shape[1] > 1 for reference in references):
            equal = [(output.argmax(1) == reference.argmax(1)).double().mean() for output, reference in pairs]
            top1 = float(sum(equal) / len(equal))
        return Comparison((difference / (scale or 1.0)) ** 0.5, top1)

    def time(self, call: Call, inputs: Sequence[Inputs]) -> Timing:
        """Times a call on rotated input sets."""
        with self._captured(call, inputs[0]) as replay:
            self._wake(replay)  # ungated, as the driver may wait for the GPU in the first replay
            guess = max(1.0, self._elapsed(replay.again))
            replays = int(min(MOST_REPLAYS, max(FEWEST_REPLAYS, MEASURED_MICROSECONDS / guess)))
            times = []
            for i in range(replays):
                replay.give(inputs[i % len(inputs)])
                times.append(self._elapsed(replay.again))
                cool_down(times[-1])
            few = max(FEWEST_REPLAYS, replays // 4)
            together = self._elapsed(partial(replay.again, few), gated=False)
            self._awake_at = time.monotonic()
        return Timing(float(statistics.median(times)), together / few, self._cpu_microseconds(call, inputs[0]))

    def trace(self, call: Call, inputs: Sequence[Inputs]) -> list[list[TracedKernel]]:
        """GPU activities of each traced replay, sorted by begin."""
        from torch.profiler import ProfilerActivity, profile

        found = []
        with self._captured(call, inputs[0]) as replay, TempFolder("trace") as folder:
            for i in range(1 + TRACES):
                replay.give(inputs[i % len(inputs)])
                torch.cuda.synchronize()
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # only one cycle of events is needed
                    with profile(activities=[ProfilerActivity.CUDA]) as profiler, torch.cuda.stream(self._stream):
                        replay.again()
                        torch.cuda.synchronize()
                profiler.export_chrome_trace(str(folder / "trace.json"))
                found.append(read_trace((folder / "trace.json").read_text()))
        return found[1:]  # the profiler starts during the first

    def release(self) -> None:
        """Returns cached memory to the driver."""
        torch.cuda.empty_cache()

    def reason(self, error: Exception) -> str:
        """Reason of a network's failure."""
        return reason_of(error)

    @contextmanager
    def _captured(self, call: Call, inputs: Inputs) -> Iterator[_Replay]:
        held = tuple(each.clone() for each in inputs)
        with torch.inference_mode():
            self._stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self._stream):
                for _ in range(WARM_CALLS):
                    call(*held)
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=self._stream), prefetch_during_capture():
                output = call(*held)
            with torch.cuda.stream(self._stream):
                yield _Replay(graph, held, output)
            torch.cuda.synchronize()

    def _wake(self, replay: _Replay) -> None:
        """Replays until the GPU's clock is up; once if it was recently."""
        start = time.monotonic()
        idle = start - self._awake_at >= IDLE_SECONDS
        replay.again()
        self._stream.synchronize()
        while idle and time.monotonic() - start < WAKE_SECONDS:
            replay.again()
            self._stream.synchronize()

    def _elapsed(self, enqueue: Callable[[], object], *, gated: bool = True) -> float:
        """GPU time of enqueued work in microseconds; if gated, it starts once all is enqueued.

        Large work must not be gated: a full queue waits for the GPU, and the GPU for the gate.
        """
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        self._stream.synchronize()
        with self._gate.closed() if gated else nullcontext():
            begin.record(self._stream)
            enqueue()
            end.record(self._stream)
        end.synchronize()
        return float(begin.elapsed_time(end)) * 1e3

    def _cpu_microseconds(self, call: Call, inputs: Inputs) -> float:
        times = []
        with torch.inference_mode():
            for _ in range(CPU_CALLS):
                torch.cuda.synchronize()
                start = time.perf_counter()
                call(*inputs)
                times.append((time.perf_counter() - start) * 1e6)
            torch.cuda.synchronize()
        return float(statistics.median(times))


def _compile_ahead(work: DenseWork, mode: str, reasons: Connection, parent: int) -> None:
    """Body of the process that compiles ahead."""
    os.setsid()  # the compilers that it starts belong to its group
    end_with_parent(parent)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)  # autotuning prints tables
    try:
        gpu = NetworkGpu()
        gpu.allow_tf32(work.precision == "tf32")
        inputs = gpu.inputs(inputs_of(work.checkpoint), work.shapes, 1, 0)
        call = gpu.compiled(gpu.dense(work.checkpoint, work.precision, work.layout), mode)
        gpu.outputs(call, gpu.as_for(inputs, work.precision, work.layout))
        reasons.send("")
    except (CodegenError, FarmError, RuntimeError, MemoryError) as error:
        reasons.send(reason_of(error))


class _Replay:
    """A call captured on the current stream."""

    def __init__(self, graph: torch.cuda.CUDAGraph, held: Inputs, output: object) -> None:
        self._graph = graph
        self._held = held
        self._output = output
        """Output in the graph's memory."""

    def give(self, inputs: Inputs) -> None:
        """Replaces the inputs."""
        for held, new in zip(self._held, inputs, strict=True):
            held.copy_(new)

    def again(self, times: int = 1) -> None:
        """Replays the graph."""
        for _ in range(times):
            self._graph.replay()


def dense_network(checkpoint: Checkpoint, names: Sequence[str]) -> nn.Module:
    """A checkpoint's network with the named layers dense, with folded weights. Raises UsageError."""
    if checkpoint.residual_graph is None:
        raise UsageError(f"{checkpoint.path} is no network: name an ONNX file")
    layers = [each for each in checkpoint.layers if each.name in set(names)]
    bundled = {each.name: BundledLayer(each.name, each.spec, bool(each.residual), ()) for each in layers}
    dense = {each.name: DenseLayer(each) for each in layers}
    return module_of(read_network(checkpoint.residual_graph.with_layers(layers)), bundled, dense).eval()


def reason_of(error: Exception) -> str:
    """Reason of a failure in one line."""
    if isinstance(error, torch.cuda.OutOfMemoryError):
        return "out of GPU memory"
    lines = str(error).strip().splitlines()
    return lines[0][:200] if lines else type(error).__name__


def first_of(output: Any) -> torch.Tensor:
    """First output of a network."""
    first: torch.Tensor = output[0] if isinstance(output, tuple | list) else output
    return first


def _converted(x: torch.Tensor, kind: torch.dtype, layout: str) -> torch.Tensor:
    if not x.is_floating_point():
        return x
    last = layout == "channels last" and x.ndim == 4
    return x.to(kind, memory_format=torch.channels_last) if last else x.to(kind)


def _random(random: np.random.Generator, tensor: Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    kind = np.dtype(tensor.dtype)
    if kind.kind in "fV":  # ml_dtypes' bfloat16 has kind V
        return torch.from_numpy(random.standard_normal(shape, np.float32)).to(getattr(torch, tensor.dtype))
    return torch.from_numpy(random.integers(0, 2, shape).astype(kind))


def _sliced(inputs: Inputs, at_once: int) -> Iterator[Inputs]:
    """Slices of all inputs in float64, by images."""
    for first in range(0, len(inputs[0]), at_once):
        yield tuple(
            (each[first : first + at_once].double() if each.is_floating_point() else each[first : first + at_once])
            for each in inputs
        )

"""A network as CUDA graphs: one launch per call instead of one per layer."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from farm.errors import UsageError
from farm.torch.code_prefetch import prefetch_during_capture

MOST_GRAPHS = 8
"""Most graphs of a module, one per combination of input shapes; each holds memory for all activations."""
WARM_CALLS = 3
"""Calls before a capture, in which libraries choose algorithms and the allocator grows."""

Key = tuple[tuple[torch.Size, torch.dtype, torch.device], ...]


def capture(network: nn.Module) -> nn.Module:
    """Wrap a network so that it runs as CUDA graphs, one per combination of input shapes, captured at its first call.

    A call copies the inputs, replays the graph on the current stream, and returns copies of the outputs. It takes the
    CPU a few microseconds instead of some for each layer. The network must be capturable: equal work for equal shapes,
    and no waiting for the GPU. Networks of `load` and `swap` are. During another capture and under torch.compile, calls
    go to the network itself. For inference only, without gradients. The graphs of the last 8 combinations are kept.
    Thread-safe; calls run one after another.
    """
    return _Captured(network)


@dataclass(frozen=True)
class _Graph:
    graph: torch.cuda.CUDAGraph
    inputs: tuple[torch.Tensor, ...]
    output: Any
    """A tensor or a tuple of tensors, in the graph's memory."""
    free: torch.cuda.Event
    """Recorded after the outputs of the last call were copied."""


class _Captured(nn.Module):
    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network
        self._graphs: OrderedDict[Key, _Graph] = OrderedDict()
        self._lock = threading.Lock()

    def forward(self, *inputs: torch.Tensor) -> Any:
        if torch.compiler.is_compiling() or not inputs or any(not x.is_cuda or x.numel() == 0 for x in inputs):
            return self.network(*inputs)
        if torch.cuda.is_current_stream_capturing():
            return self.network(*inputs)
        devices = {each.device for each in inputs}
        if len(devices) != 1:
            raise UsageError(f"the inputs of a captured network lie on {len(devices)} GPUs: move them to one")
        with self._lock, torch.cuda.device(devices.pop()):
            stream = torch.cuda.current_stream()
            with torch.inference_mode():  # the graph's inputs are inference tensors, in any mode of the caller
                found = self._graph(inputs)
                stream.wait_event(found.free)  # the last call may have been on another stream
                for held, given in zip(found.inputs, inputs, strict=True):
                    held.copy_(given)
                found.graph.replay()
            with torch.no_grad():
                output = _copied(found.output)
            found.free.record(stream)
        return output

    def _graph(self, inputs: tuple[torch.Tensor, ...]) -> _Graph:
        key = tuple((each.shape, each.dtype, each.device) for each in inputs)
        if key not in self._graphs:
            while len(self._graphs) >= MOST_GRAPHS:
                _, oldest = self._graphs.popitem(last=False)
                oldest.free.synchronize()
            self._graphs[key] = self._captured(inputs)
        self._graphs.move_to_end(key)
        return self._graphs[key]

    def _captured(self, inputs: tuple[torch.Tensor, ...]) -> _Graph:
        held = tuple(each.detach().clone(memory_format=torch.contiguous_format) for each in inputs)
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARM_CALLS):
                self.network(*held)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"), prefetch_during_capture():
            output = self.network(*held)
        free = torch.cuda.Event()
        free.record()
        return _Graph(graph, held, output, free)


def _copied(output: Any) -> Any:
    return tuple(each.clone() for each in output) if isinstance(output, tuple | list) else output.clone()

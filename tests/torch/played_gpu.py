"""A GPU that is played on the CPU: networks compute what they compute, times and traces are made up."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from codegen.ir.checkpoint import Checkpoint
from farm.bench.networks.breakdown import TracedKernel
from farm.bench.networks.session import DenseWork
from farm.bench.networks.torch_dense import DenseLayer
from farm.bench.networks.torch_timing import Call, Inputs, NetworkGpu, Timing
from farm.bundle.reader import Bundle
from farm.torch.module import module_of
from tests.torch.bundles import as_compiled

OWN_LATENCY, DENSE_LATENCY = 100.0, 300.0
REST = "pooling"


class PlayedGpu(NetworkGpu):
    """A GPU of architecture sm_90. `wrong` is added to the outputs of compiled networks."""

    _device = "cpu"

    def __init__(self, checkpoint: Checkpoint, wrong: float = 0.0) -> None:
        self._checkpoint = checkpoint
        self._wrong = wrong
        self.begun: list[str] = []
        """The measurements that began, in order."""
        self.unfinished = ""
        """Why nothing can be compiled ahead."""

    @property
    def arch(self) -> str:
        return "sm_90"

    def facts(self) -> dict[str, Any]:
        return {"name": "NVIDIA Played", "arch": "sm_90", "id": "GPU-none"}

    def allow_tf32(self, allowed: bool) -> None: ...

    def load(self, bundle: Path) -> nn.Module:
        opened = Bundle(bundle)
        dense = {layer.name: DenseLayer(layer) for layer in as_compiled(opened, self._checkpoint)}
        compute = {name: partial(self._compute, dense[name]) for name in opened.layers}
        return module_of(opened.network, opened.layers, compute)

    def _compute(
        self,
        layer: DenseLayer,
        x: torch.Tensor,
        residual: torch.Tensor | None,
        _output: torch.Tensor | None,
        gate: torch.Tensor | None,
    ) -> torch.Tensor:
        found: torch.Tensor = layer(x, residual, gate)
        return found + self._wrong

    @contextmanager
    def compilations_kept(self, folder: Path) -> Iterator[None]:
        yield

    def compile_ahead(self, work: DenseWork, mode: str, seconds: float) -> str:
        self.begun.append(f"{mode} {work.precision} {work.layout} within {seconds:.0f} s")
        return self.unfinished

    def compiled(self, network: nn.Module, mode: str) -> Call:
        self.begun.append(mode)
        call: Call = network
        return call

    def time(self, call: Call, inputs: Sequence[Inputs]) -> Timing:
        of_layers = any(node.target is torch.ops.farm.layer.default for node in call.graph.nodes)
        self.begun.append("ours" if of_layers else str(inputs[0][0].dtype))
        return Timing(OWN_LATENCY, OWN_LATENCY / 2, 50.0) if of_layers else Timing(DENSE_LATENCY, DENSE_LATENCY, 40.0)

    def trace(self, call: Call, inputs: Sequence[Inputs]) -> list[list[TracedKernel]]:
        """LeNet-5: its layers one after another with 2 us between them; fc1 has two parts, which overlap."""
        begins = {0: "conv2d", 12: "conv2d", 24: "linear", 26: "linear", 38: "linear"}
        spans = [TracedKernel(name, begin, begin + 10) for begin, name in begins.items()]
        return [[*spans, TracedKernel(REST, 50, 56)]] * 3

    def release(self) -> None: ...

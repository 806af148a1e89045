"""A session of whole networks: ours and the dense ones, each checked against float64, then timed. Needs no import of
torch: what it does with tensors, `farm.bench.networks.torch_timing` does."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from codegen.errors import CodegenError
from codegen.frontend.onnx.export.residual_graph import Tensor
from codegen.ir.checkpoint import Checkpoint
from codegen.ir.layer_spec import LIKELY_ROWS
from farm.bench.layers.contenders import GENERATED
from farm.bench.layers.results import WRONG, Measurement
from farm.bench.networks.breakdown import LayerKernels, breakdown, median_of
from farm.bench.networks.cases import input_shapes, inputs_of
from farm.bundle.reader import Bundle, BundledLayer
from farm.bundle.row_groups import group_for, row_groups
from farm.cuda.measure.workload import CaseKey
from farm.errors import FarmError

PRECISIONS = ("fp32", "tf32", "fp16")
LAYOUTS = {"fp32": ("",), "tf32": ("", "channels last"), "fp16": ("channels last",)}
"""Layouts, of which the faster counts; also for torch.compile, which keeps the layout that it is given."""


@dataclass(frozen=True)
class Mode:
    """A way in which PyTorch runs the dense network."""

    option: str = ""
    """Mode of torch.compile; empty for eager."""
    layouts: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: LAYOUTS)
    """Layouts by precision; other precisions are not measured."""
    limited: bool = False
    """Whether a process of its own compiles the network first, within a time limit."""


MODES = {
    "eager": Mode(),
    "compile": Mode("default"),
    # The session captures the graph, as for every contender.
    "max-autotune": Mode(
        "max-autotune-no-cudagraphs", {"tf32": ("channels last",), "fp16": ("channels last",)}, limited=True
    ),
}
SEARCHES = (False, True)
"""Whether cuDNN times its algorithms for each convolution, or takes those it predicts; neither is always faster."""
TOLERANCES = {"fp32": 1e-4, "tf32": 5e-2, "fp16": 5e-2}
"""Largest relative error, by norm, of a correct network; beyond it the time is void.

Wider than for one layer, as rounding errors grow from layer to layer.
"""
OWN_TOLERANCES = {"float32": 1e-4, "float16": 5e-2, "bfloat16": 2e-1}
INPUT_SETS = 4
"""Input sets that calls rotate through."""
REFERENCE_IMAGES = 16
"""Images per slice of the float64 reference."""
OVER = "not measured: the time that --seconds gives was over"


@dataclass(frozen=True)
class DenseWork:
    """A dense network and its inputs."""

    checkpoint: Checkpoint
    shapes: tuple[tuple[int, ...], ...]
    """Shapes of the inputs of a call."""
    precision: str
    layout: str


class Gpu(Protocol):
    """Interface of `farm.bench.networks.torch_timing.NetworkGpu`."""

    @property
    def arch(self) -> str: ...
    def allow_tf32(self, allowed: bool) -> None: ...
    def load(self, bundle: Path) -> Any: ...
    def dense(self, checkpoint: Checkpoint, precision: str, layout: str) -> Any: ...
    def compiled(self, network: Any, mode: str) -> Any: ...
    def with_algorithms(self, measure: Callable[[], Measurement], *, searched: bool) -> Measurement: ...
    def compile_ahead(self, work: DenseWork, mode: str, seconds: float) -> str: ...
    def references(self, checkpoint: Checkpoint, inputs: Sequence[Any], at_once: int) -> Any: ...
    def inputs(self, tensors: Sequence[Tensor], shapes: Sequence[tuple[int, ...]], sets: int, seed: int) -> Any: ...
    def as_for(self, inputs: Sequence[Any], precision: str, layout: str) -> Any: ...
    def outputs(self, call: Any, inputs: Sequence[Any]) -> Any: ...
    def compare(self, outputs: Any, references: Any) -> Any: ...
    def time(self, call: Any, inputs: Sequence[Any]) -> Any: ...
    def trace(self, call: Any, inputs: Sequence[Any]) -> Any: ...
    def release(self) -> None: ...
    def reason(self, error: Exception) -> str: ...


@dataclass(frozen=True)
class LoadedNetwork:
    """A case with its files loaded."""

    key: CaseKey
    checkpoint: Checkpoint
    bundle: Bundle
    compile_seconds: float | None = None


@dataclass(frozen=True)
class NetworkRules:
    """Settings of a session."""

    modes: tuple[str, ...] = tuple(MODES)
    precisions: tuple[str, ...] = PRECISIONS
    seed: int = 0
    seconds: float | None = None
    """Time after which nothing more is started."""
    compile_seconds: float = 300.0
    """Time limit for compiling one network in a limited mode."""
    allow_tf32: bool = False
    """Whether float32 layers that our network leaves to PyTorch run in TF32."""


@dataclass(frozen=True)
class _Data:
    inputs: Any
    references: Any


class NetworkSession:
    """Measures cases on one GPU: compiled and eager networks of all cases first, then torch.compile."""

    def __init__(self, gpu: Gpu, rules: NetworkRules, clock: Callable[[], float] = time.monotonic) -> None:
        self._gpu = gpu
        self._rules = rules
        self._clock = clock
        self._deadline = float("inf") if rules.seconds is None else clock() + rules.seconds
        self._data: dict[CaseKey, _Data] = {}

    def run(self, cases: Sequence[LoadedNetwork]) -> Iterator[Measurement]:
        """Yields each contender's measurement; a failure is a measurement's reason."""
        quick = [mode for mode in self._rules.modes if not MODES[mode].option]
        for case in cases:
            yield self._guarded(case, GENERATED, partial(self._own, case))
            for mode in quick:
                yield from self._peers(case, mode)
        for mode in self._rules.modes:
            if mode not in quick:
                for case in cases:
                    yield from self._peers(case, mode)

    def _peers(self, case: LoadedNetwork, mode: str) -> Iterator[Measurement]:
        for precision in (each for each in self._rules.precisions if each in MODES[mode].layouts):
            yield self._guarded(case, peer_name(mode, precision), partial(self._peer, case, mode, precision))

    def _guarded(self, case: LoadedNetwork, contender: str, measure: Callable[[], Measurement]) -> Measurement:
        if self._clock() > self._deadline:
            return Measurement(case.key, contender, None, OVER)
        try:
            return measure()
        except _NoTimeError as error:
            return Measurement(case.key, contender, None, str(error), relative_error=error.relative_error)
        except (FarmError, CodegenError) as error:
            return Measurement(case.key, contender, None, str(error))
        except (RuntimeError, MemoryError) as error:  # torch and its compilers raise RuntimeError
            return Measurement(case.key, contender, None, self._gpu.reason(error))
        finally:
            self._gpu.allow_tf32(False)
            self._gpu.release()

    def _prepared(self, case: LoadedNetwork) -> _Data:
        """Inputs and reference outputs, computed once per case."""
        if case.key not in self._data:
            tensors = inputs_of(case.checkpoint)
            shapes = input_shapes(tensors, case.key.batch)
            inputs = self._gpu.inputs(tensors, shapes, INPUT_SETS, self._rules.seed)
            fixed = any(isinstance(tensor.shape[0], int) for tensor in tensors if tensor.shape)
            at_once = case.key.batch if fixed else REFERENCE_IMAGES
            self._data[case.key] = _Data(inputs, self._gpu.references(case.checkpoint, inputs, at_once))
        return self._data[case.key]

    def _own(self, case: LoadedNetwork) -> Measurement:
        data = self._prepared(case)
        tf32 = self._rules.allow_tf32 and case.key.data_type == "float32"
        self._gpu.allow_tf32(tf32)
        begun = self._clock()
        network = self._gpu.load(case.bundle.path)
        facts: dict[str, Any] = {
            "load_seconds": round(self._clock() - begun, 3),
            "compile_seconds": case.compile_seconds,
            "job": case.bundle.manifest.job.id,
            "layers": len(case.bundle.layers),
            "launches": sum(len(each.kernels) for each in layer_kernels(case.bundle, self._gpu.arch, case.key.batch)),
            "code_bytes": code_bytes(case.bundle, self._gpu.arch),
        }
        tolerance = TOLERANCES["tf32"] if tf32 else OWN_TOLERANCES[case.key.data_type]
        return self._measured(case, GENERATED, network, data.inputs, tolerance, facts, traced=True)

    def _peer(self, case: LoadedNetwork, mode: str, precision: str) -> Measurement:
        data = self._prepared(case)
        self._gpu.allow_tf32(precision == "tf32")
        contender, tolerance = peer_name(mode, precision), TOLERANCES[precision]
        option, found = MODES[mode].option, []
        for layout in MODES[mode].layouts[precision]:
            begun = self._clock()
            if MODES[mode].limited:
                self._compile_ahead(case, option, precision, layout)
            network = self._gpu.dense(case.checkpoint, precision, layout)
            call = self._gpu.compiled(network, option) if option else network
            inputs = self._gpu.as_for(data.inputs, precision, layout)
            for searched in SEARCHES:
                note = ", ".join(filter(None, (layout, "algorithms searched" * searched)))
                measure = partial(self._measured, case, contender, call, inputs, tolerance, {}, note=note)
                measured = self._gpu.with_algorithms(measure, searched=searched)
                if option:
                    seconds = round(self._clock() - begun, 1)
                    measured = replace(measured, facts={**measured.facts, "compile_seconds": seconds})
                found.append(measured)
        return min(found, key=lambda each: each.microseconds or float("inf"))

    def _compile_ahead(self, case: LoadedNetwork, option: str, precision: str, layout: str) -> None:
        """Leaves a compiled network in PyTorch's cache. Raises _NoTimeError."""
        shapes = tuple(input_shapes(inputs_of(case.checkpoint), case.key.batch))
        work = DenseWork(case.checkpoint, shapes, precision, layout)
        seconds = min(self._rules.compile_seconds, max(self._deadline - self._clock(), 0.0))
        if reason := self._gpu.compile_ahead(work, option, seconds):
            raise _NoTimeError(reason)

    def _measured(
        self,
        case: LoadedNetwork,
        contender: str,
        call: Any,
        inputs: Any,
        tolerance: float,
        facts: dict[str, Any],
        *,
        note: str = "",
        traced: bool = False,
    ) -> Measurement:
        compared = self._gpu.compare(self._gpu.outputs(call, inputs), self._prepared(case).references)
        if not compared.relative_error <= tolerance:
            reason = f"{WRONG}relative error {compared.relative_error:.1e}, {tolerance:.0e} is allowed"
            raise _NoTimeError(reason, compared.relative_error)
        timing = self._gpu.time(call, inputs)
        facts = {
            **facts,
            "images_per_second": round(case.key.batch / timing.period * 1e6, 1),
            "period_microseconds": timing.period,
            "cpu_microseconds": timing.cpu,
            "top1": compared.top1,
        }
        if traced:
            facts |= self._traced(case, call, inputs)
        return Measurement(
            case.key, contender, timing.latency, note=note, relative_error=compared.relative_error, facts=facts
        )

    def _traced(self, case: LoadedNetwork, call: Any, inputs: Any) -> dict[str, Any]:
        layers = layer_kernels(case.bundle, self._gpu.arch, case.key.batch)
        try:
            traces = self._gpu.trace(call, inputs)
        except (RuntimeError, OSError, ValueError) as error:  # no profiler, no trace file, or invalid JSON
            return {"no_breakdown": self._gpu.reason(error)}
        found = median_of(breakdown(spans, layers) for spans in traces)
        return {"breakdown": found.to_json()} if found else {"no_breakdown": "the profiler saw no kernel"}


def peer_name(mode: str, precision: str) -> str:
    """Name of a contender."""
    return f"{mode}-{precision}"


def layer_kernels(bundle: Bundle, arch: str, images: int) -> list[LayerKernels]:
    """Kernels of each layer on an architecture for a number of images, in execution order."""

    def kernels(layer: BundledLayer) -> tuple[str, ...]:
        groups = row_groups(layer.cubins_for(arch))
        return tuple(each.launch.kernel for each in group_for(groups, images * (layer.rows_per_image or LIKELY_ROWS)))

    names = [node.layer for node in bundle.network.nodes if node.layer]
    return [LayerKernels(name, kernels(bundle.layers[name])) for name in names]


def code_bytes(bundle: Bundle, arch: str) -> int:
    """Size of the cubins loaded on an architecture."""
    return sum(len(bundle.cubin(each)) for layer in bundle.layers.values() for each in layer.cubins_for(arch))


class _NoTimeError(Exception):
    """A network has no time, for a reason."""

    def __init__(self, reason: str, relative_error: float | None = None) -> None:
        super().__init__(reason)
        self.relative_error = relative_error

"""Measurement session on this machine's GPU: every contender of every case is verified, then timed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

from codegen.errors import CodegenError, DeviceError
from codegen.ir.layer_spec import LayerSpec
from codegen.ir.tiling import Accumulator
from codegen.verification.compare import LayerRun, verify_output
from farm.bench.layers.contenders import GENERATED, Peer, peers_for
from farm.bench.layers.gimmik_kernels import GimmikKernels, gimmik_kernels
from farm.bench.layers.index_kernels import IndexCubins, index_cubins
from farm.bench.layers.peers import Layer, PeerKernels, Peers, Prepared
from farm.bench.layers.results import WRONG, Measurement
from farm.bench.layers.roof import Peaks, roof_microseconds
from farm.bench.layers.torch_gpu import NotApplicableError, NoTorchError, TorchGpu
from farm.cuda.device import Device
from farm.cuda.measure.kernels import BuiltLayer, KernelPool, NotBuiltError
from farm.cuda.measure.layer_data import LayerData, Shape
from farm.cuda.measure.workload import Case, CaseKey

PEERS_OF_STRUCTURED = ("cudnn-fp32",)
"""Peers that run structurally pruned layers."""
Kernels = TypeVar("Kernels")
BUILT_AHEAD = 64
"""Cases whose kernels are built ahead of measurement."""


@dataclass(frozen=True)
class Rules:
    """Settings of a session."""

    peers: tuple[str, ...]
    peaks: Peaks
    seed: int = 0
    accumulate: Accumulator = "float32"
    sets: int | None = None
    """Number of data sets used in turn; None: enough for a cold L2 cache."""


class Session:
    """Measures on one device, with torch where it is installed."""

    def __init__(self, device: Device, pool: KernelPool, rules: Rules) -> None:
        self._device = device
        self._pool = pool
        self._rules = rules
        self._l2_bytes = device.facts.l2_bytes
        self._stream = device.new_stream()
        self._without_torch = ""
        self._torch: TorchGpu | None = None
        try:
            self._torch = TorchGpu(self._stream.handle)
        except NoTorchError as error:
            self._without_torch = str(error)
        self._stage: LayerData | None = None
        self._index: dict[LayerSpec, Future[IndexCubins | None]] = {}
        """im2col and Escoin kernels per shape."""
        self._dense: dict[tuple[str, int, str], Measurement] = {}
        """Peers whose time does not depend on the sparsity, by operator, batch and name."""

    def versions(self) -> dict[str, str]:
        """Versions of torch and its libraries; empty without torch."""
        return self._torch.versions() if self._torch else {}

    def run(self, cases: Sequence[Case]) -> Iterator[list[Measurement]]:
        """Measures cases in order and yields their measurements; a failure is a measurement's reason."""
        begun = [self._begin(case) for case in cases[:BUILT_AHEAD]]
        try:
            for i, case in enumerate(cases):
                if i + BUILT_AHEAD < len(cases):
                    begun.append(self._begin(cases[i + BUILT_AHEAD]))
                yield self._measure(case, begun[i])
        finally:
            if self._stage:
                self._stage.close()
                self._stage = None

    def _begin(self, case: Case) -> _Begun:
        if case.peers_only:
            return _Begun()
        if case.spec not in self._index:
            self._index[case.spec] = self._pool.begin(partial(index_cubins, case.spec))
        gimmik = None
        if "gimmik" in self._rules.peers:
            gimmik = self._pool.begin(partial(gimmik_kernels, case.spec, case.weights, case.images))
        return _Begun(self._pool.submit(case, self._rules.accumulate), self._index[case.spec], gimmik)

    def _measure(self, case: Case, begun: _Begun) -> list[Measurement]:
        wanted = peers_for(case.spec.data_type, PEERS_OF_STRUCTURED if case.peers_only else self._rules.peers)
        try:
            stage = self._staged(case)
        except DeviceError as error:
            names = [*([GENERATED] if begun.layer else []), *(peer.name for peer in wanted)]
            return [Measurement(case.key, name, None, str(error)) for name in names]
        sums = None
        found = []
        try:
            if self._torch:
                with self._torch.on_stream():
                    shape = (case.images, *case.spec.input_shape)
                    x = self._torch.view(stage.inputs[0], shape, case.spec.data_type)
                    sums = self._torch.sums(case.spec, case.weights.kernel, x)
        except self._failures as error:
            reason = f"torch has no reference for it: {error}"
            found = [Measurement(case.key, peer.name, None, reason) for peer in wanted]
        own = [] if begun.layer is None else [self._generated(case, stage, begun.layer, sums)]
        found = own + (found or list(self._peers(case, stage, begun, sums, wanted)))
        del sums
        if self._torch:
            self._torch.release()
        return found

    @property
    def _failures(self) -> tuple[type[Exception], ...]:
        """Errors that end one measurement only; torch raises RuntimeError, PyCUDA its own."""
        return NotApplicableError, RuntimeError, MemoryError, self._device.failure

    def _staged(self, case: Case) -> LayerData:
        """Data of a layer at a batch, shared by the cases of a sweep."""
        shape = Shape(replace(case.spec), case.images, self._rules.seed, self._rules.sets)
        if self._stage is None or self._stage.shape != shape:
            if self._stage:
                self._stage.close()
                self._stage = None
            self._stage = LayerData(self._device, shape, self._l2_bytes)
        return self._stage

    def _generated(self, case: Case, stage: LayerData, built: Future[BuiltLayer], sums: Any) -> Measurement:
        facts: dict[str, Any] = {
            "spec": case.spec.to_json(),
            "images": case.images,
            "nonzeros": case.weights.nonzeros,
            "weights": case.spec.weights_count,
            "sets": stage.sets,
        }
        roof = roof_microseconds(case.spec, case.weights.nonzeros, case.images, self._rules.peaks)
        missing = Measurement(case.key, GENERATED, None, roof_microseconds=roof, facts=facts)
        try:
            layer = built.result()
            facts |= layer.facts
            loaded = self._device.load_layer(layer.kernels, self._stream)

            def launch(i: int) -> None:
                loaded(stage.inputs[i], stage.outputs[i], case.images, stage.residual_address)

            stage.poison()
            launch(0)
            run = LayerRun(
                case.spec, layer.tiling, case.weights, stage.x, stage.output(), stage.residual, seed=self._rules.seed
            )
            verified = verify_output(run)
            if not verified.ok:
                return replace(missing, reason=f"{WRONG}{verified.message}", relative_error=verified.relative_error)
            error = verified.relative_error
            if self._torch and sums is not None:
                error = _error_of_generated(self._torch, case, stage, sums)
            time = self._microseconds(launch, stage.sets)
        except (NotBuiltError, CodegenError) as failure:
            return replace(missing, reason=str(failure))
        except self._failures as failure:
            return replace(missing, reason=f"{type(failure).__name__}: {failure}")
        return replace(
            missing,
            microseconds=time,
            relative_error=error,
            predicted_microseconds=layer.predicted_microseconds,
            facts={**facts, "bound_share": verified.bound_share},
        )

    def _microseconds(self, launch: Callable[[int], None], sets: int) -> float:
        if self._torch:
            self._device.wake()
            return self._torch.microseconds(launch, sets, self._device.gate(self._stream))
        return self._device.microseconds(launch, sets, self._stream)

    def _peers(
        self, case: Case, stage: LayerData, begun: _Begun, sums: Any, wanted: Sequence[Peer]
    ) -> Iterator[Measurement]:
        if self._torch is None:
            yield from (Measurement(case.key, peer.name, None, self._without_torch) for peer in wanted)
            return
        kernels = PeerKernels(_made(begun.index), _made(begun.gimmik))
        layer = Layer(case.spec, case.weights, case.images, stage.inputs, stage.outputs)
        for peer in wanted:
            known = self._dense.get((case.key.operator, case.key.batch, peer.name))
            if known is not None and peer.reads_zeros:
                yield _again(known, case.key)
                continue
            found = self._peer(self._torch, peer, case.key, layer, kernels, sums)
            self._dense[case.key.operator, case.key.batch, peer.name] = found
            yield found

    def _peer(
        self, gpu: TorchGpu, peer: Peer, key: CaseKey, layer: Layer, kernels: PeerKernels, sums: Any
    ) -> Measurement:
        try:
            with gpu.on_stream():
                prepared = Peers(gpu, self._device, self._stream, layer, kernels).prepare(peer.name)
                gpu.allow_tf32(prepared.tf32)
                times = [
                    self._checked(gpu, peer, prepared, i, sums, len(layer.inputs))
                    for i in range(len(prepared.variants))
                ]
            time, error, note = min(times)
        except (NotApplicableError, _WrongError) as why:
            return Measurement(key, peer.name, None, str(why))
        except self._failures as failure:
            return Measurement(key, peer.name, None, gpu.reason(failure))
        finally:
            gpu.allow_tf32(False)
        return Measurement(key, peer.name, time, note=note, relative_error=error)

    def _checked(
        self, gpu: TorchGpu, peer: Peer, prepared: Prepared, number: int, sums: Any, sets: int
    ) -> tuple[float, float, str]:
        """Time, error and note of one variant, after its results were verified."""
        variant = prepared.variants[number]
        error = gpu.relative_error(prepared.as_output(variant.launch(0)), sums)
        if not error <= peer.tolerance:
            raise _WrongError(f"{WRONG}relative error {error:.1e}, {peer.tolerance:.0e} is allowed")
        self._device.wake()
        return gpu.microseconds(variant.launch, sets, self._device.gate(self._stream)), error, variant.note


@dataclass(frozen=True)
class _Begun:
    """Builds of a case."""

    layer: Future[BuiltLayer] | None = None
    index: Future[IndexCubins | None] | None = None
    gimmik: Future[GimmikKernels] | None = None


def _made(future: Future[Kernels] | None) -> Kernels | None:
    """Built kernels; None if the build failed, which the peers report."""
    try:
        return future.result() if future else None
    except CodegenError:
        return None


class _WrongError(Exception):
    """A peer's results are wrong."""


def _error_of_generated(gpu: TorchGpu, case: Case, stage: LayerData, sums: Any) -> float:
    """Largest relative error over the whole output; verification checks only some of the blocks."""
    shape = (case.images, *case.spec.output_shape)
    with gpu.on_stream():
        got = gpu.view(stage.outputs[0], shape, case.spec.data_type)
        residual = None
        if stage.residual_address is not None:
            residual = gpu.view(stage.residual_address, shape, case.spec.data_type)
        return gpu.relative_error(got, gpu.finished(case.spec, case.weights, sums, residual))


def _again(known: Measurement, case: CaseKey) -> Measurement:
    """A dense peer's measurement, reused at another sparsity."""
    if known.microseconds is None:
        return replace(known, case=case)
    at = f"measured at sparsity {known.case.sparsity:g}, {known.case.data_type} inputs"
    return replace(known, case=case, note=f"{known.note}; {at}".lstrip("; "))

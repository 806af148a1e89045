"""Verification of a whole network: its bundle, emulated or on a GPU, against onnxruntime."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codegen.frontend.onnx.reader import read_checkpoint
from codegen.frontend.tsv.manifest import is_tsv_network
from codegen.ir.dtypes import from_float32, to_float32
from codegen.toolchain.temp_folders import TempFolder
from farm.bundle.ptx import newest_ptx
from farm.bundle.reader import Bundle
from farm.bundle.writer import write_bundle
from farm.config.settings import Settings
from farm.errors import UsageError
from farm.executors import open_gpu
from farm.executors.contract import Notice, no_notice
from farm.jobs.model import JobDetail
from farm.runtime.emulated import layer_ptx, run_emulated
from farm.runtime.network import Network
from farm.runtime.plan import LayerStep, Plan, Port
from farm.runtime.plan_text import plan_of
from farm.store import open_store
from farm.store.contract import Store
from farm.verify.onnxruntime_reference import ReferenceTensor, reference_tensors

TOLERANCES = {"float32": 1e-4, "float16": 2e-2, "bfloat16": 1e-1}
"""Largest difference of an element as a share of its tensor's largest element.

Both sum in different orders, and errors grow from layer to layer.
"""
SATURATING = frozenset({"Sigmoid", "HardSigmoid", "Softmax", "Tanh"})
"""Operators with results of at most 1, computed through numbers near 1: onnxruntime's rounding is absolute."""
ROUNDINGS_OF_ONE = {"float32": 4 * 2**-23, "float16": 4 * 2**-10, "bfloat16": 4 * 2**-7}
"""Four of them, which such a result may be off by however small it is."""
MAX_EMULATED = 100_000_000
"""Most multiply-adds of non-zero weights, over all images, to emulate: they take minutes."""

Array = NDArray[Any]


@dataclass(frozen=True)
class TensorCheck:
    """Comparison of one tensor."""

    name: str
    layer: str
    """The compiled layer that computes it; empty for other operators."""
    elements: int
    relative_error: float
    """Norm of the difference over norm of onnxruntime's tensor."""
    tolerance_share: float
    """Largest difference as a share of the tolerance; at most 1 for a correct tensor."""

    @property
    def ok(self) -> bool:
        return self.tolerance_share <= 1


@dataclass(frozen=True)
class NetworkVerification:
    """Verification of a whole network."""

    where: str
    """"emulator" or the GPU's name."""
    images: int
    tensors: tuple[TensorCheck, ...]
    """Tensors of both, in the order of computation."""
    outputs: tuple[TensorCheck, ...]

    @property
    def ok(self) -> bool:
        return self.first_wrong is None

    @property
    def first_wrong(self) -> TensorCheck | None:
        """The first tensor that differs; outputs may hide a difference, as a Softmax does."""
        return next((each for each in (*self.tensors, *self.outputs) if not each.ok), None)


@dataclass(frozen=True)
class Ran:
    """Result of a run: bytes of tensors by name."""

    where: str
    tensors: Mapping[str, Array]


@dataclass(frozen=True)
class NetworkQuestion:
    """Settings of a network's verification."""

    inputs: tuple[Array, ...] = ()
    """Inputs in the network's order, images first; random if empty."""
    model: Path | None = None
    """The compiled model file, if it has moved."""
    gpu: bool = False
    """Run on a GPU of the cluster or, with `local`, of this machine; else in the emulator."""
    local: bool = False
    batch: int = 2
    """Images of random inputs."""
    seed: int = 0

    def answer(
        self, settings: Settings, store: Store, detail: JobDetail, notice: Notice = no_notice
    ) -> NetworkVerification:
        """Verifies the network of a job that succeeded. Raises UsageError, DeviceError and NoWorkerError."""
        plan = _plan(store, detail)
        inputs = self.inputs or network_inputs(plan, self.batch, self.seed)
        images = plan.images_of(inputs)
        model = Path(detail.job.model) if self.model is None else self.model
        check_model(model, detail)
        if not self.gpu:
            check_emulated(detail, images)
            return compare_network(plan, run_on_cpu(store, detail, inputs), model, inputs)
        with open_gpu(settings, local=self.local, notice=notice) as host:
            if host.is_remote:
                [ran] = host.run(partial(network_work, detail=detail, inputs=inputs))
            else:  # this farm's store may differ from the one in its settings
                ran = run_on_gpu(store, detail, inputs)
        return compare_network(plan, ran, model, inputs)


def network_inputs(plan: Plan, batch: int, seed: int) -> tuple[Array, ...]:
    """Random normal inputs; a network with a fixed batch gets that many images."""
    rng = np.random.default_rng(seed)
    images = plan.images or batch
    return tuple(_as_held(rng.standard_normal(port.shape_of(images), np.float32), port) for port in plan.inputs)


def _as_held(values: NDArray[np.float32], port: Port) -> Array:
    return from_float32(values, "bfloat16") if port.dtype == "bfloat16" else values.astype(port.held_in)


def _plan(store: Store, detail: JobDetail) -> Plan:
    """Plan of a job's network. Raises UsageError if it needs a framework."""
    with TempFolder("network") as folder:
        return plan_of(_bundle(folder, store, detail, ptx=False))


def check_model(model: Path, detail: JobDetail) -> None:
    """Raises UsageError for a model other than the compiled one, CheckpointError for an unreadable file."""
    if is_tsv_network(model):
        raise UsageError(f"{model} is no ONNX file, which onnxruntime could run: leave out --network")
    if not model.is_file():
        raise UsageError(f"{model} is not there any more: say with --model where the job's ONNX file is")
    read = {layer.name: layer.weights.digest for layer in read_checkpoint(model).layers}
    for build in detail.builds:
        if read.get(build.layer, build.weights) != build.weights:
            raise UsageError(
                f"{model} is not the model that was compiled, {build.layer} has other weights: say with --model which "
                "file is"
            )


def check_emulated(detail: JobDetail, images: int) -> None:
    """Raises UsageError for a network too large for the emulator."""
    work = sum(
        build.spec.multiply_adds * (build.rows or 1) * build.nonzeros // build.spec.weights_count
        for build in {build.position: build for build in detail.builds}.values()
    )
    if work * images > MAX_EMULATED:
        raise UsageError(
            f"{work * images / 1e6:,.0f} million multiply-adds are too many for the emulator, which does "
            f"{MAX_EMULATED / 1e6:.0f} million: use --gpu, or farm verify without --network"
        )


def run_on_cpu(store: Store, detail: JobDetail, inputs: Sequence[Array]) -> Ran:
    """Runs a network in the emulator. Raises EmulationError."""
    with TempFolder("network") as folder:
        bundle = _bundle(folder, store, detail, ptx=True)
        plan = plan_of(bundle)
        seen: dict[str, Array] = {}
        outputs = run_emulated(
            plan, layer_ptx(bundle, plan), bundle.constants, inputs, lambda name, data: seen.update({name: data.copy()})
        )
        return Ran("emulator", seen | _by_name(plan, outputs))


def run_on_gpu(store: Store, detail: JobDetail, inputs: Sequence[Array]) -> Ran:
    """Runs a network on this machine's GPU. Raises DeviceError without one."""
    with TempFolder("network") as folder, Network(_bundle(folder, store, detail, ptx=False)) as network:
        seen: dict[str, Array] = {}
        outputs = network.run(inputs, lambda name, data: seen.update({name: data}))
        return Ran(network.device_name, seen | _by_name(network.plan, outputs))


def network_work(settings: Settings, detail: JobDetail, inputs: Sequence[Array]) -> Generator[Ran, None, None]:
    """Runs a network on the GPU of the current machine."""
    yield run_on_gpu(open_store(settings), detail, inputs)


def compare_network(plan: Plan, ran: Ran, model: Path, inputs: Sequence[Array]) -> NetworkVerification:
    """Compares a network's result with onnxruntime. Raises UsageError if onnxruntime cannot run the model."""
    layers = {step.tensor: step.layer if isinstance(step, LayerStep) else "" for step in plan.steps}
    names = dict.fromkeys((*layers, *(port.name for port in plan.outputs)))
    given = {port.name: array for port, array in zip(plan.inputs, inputs, strict=True)}
    wanted = reference_tensors(model, given, names)
    checks = {
        name: _check(name, layers.get(name, ""), ran.tensors[name], wanted[name])
        for name in names
        if name in wanted and name in ran.tensors
    }
    missing = [port.name for port in plan.outputs if port.name not in checks]
    if missing:
        raise UsageError(f"{model} has no output {missing[0]}: say with --model which is the model that was compiled")
    return NetworkVerification(
        ran.where,
        plan.images_of(inputs),
        tuple(check for name, check in checks.items() if name in layers),
        tuple(checks[port.name] for port in plan.outputs),
    )


def _check(name: str, layer: str, data: Array, reference: ReferenceTensor) -> TensorCheck:
    """Compares a tensor; `data` holds at least its bytes."""
    wanted = reference.values
    dtype = wanted.dtype.name
    held = np.frombuffer(data.tobytes()[: wanted.nbytes], np.uint16 if dtype == "bfloat16" else wanted.dtype)
    got = to_float32(held, "bfloat16") if dtype == "bfloat16" else held
    expected = wanted.astype(np.float64).reshape(-1)
    with np.errstate(all="ignore"):
        difference = np.where(got == expected, 0.0, np.abs(got.astype(np.float64) - expected))
        difference[np.isnan(got) & np.isnan(expected)] = 0.0
    finite = np.abs(expected[np.isfinite(expected)])
    largest, norm = float(np.max(finite, initial=0.0)), float(np.sqrt(np.sum(finite**2)))
    worst = float(np.max(difference, initial=0.0))
    allowed = TOLERANCES[dtype] * largest
    if reference.operator in SATURATING:
        allowed = max(allowed, ROUNDINGS_OF_ONE[dtype])
    share = 0.0 if worst == 0 else worst / allowed if allowed and np.isfinite(worst) else float("inf")
    error = float(np.sqrt(np.sum(difference**2)))
    return TensorCheck(name, layer, prod(wanted.shape), error / norm if norm else error, share)


def _by_name(plan: Plan, outputs: Sequence[Array]) -> dict[str, Array]:
    return {port.name: array for port, array in zip(plan.outputs, outputs, strict=True)}


def _bundle(folder: Path, store: Store, detail: JobDetail, *, ptx: bool) -> Bundle:
    """Writes the job's bundle as farm fetch does."""
    kernels = newest_ptx(detail, store) if ptx else ()
    path = folder / "network.farm"
    write_bundle(path, detail.job, detail.builds, detail.results, {"nvcc": "", "ptxas": ""}, store, ptx=kernels)
    return Bundle(path)

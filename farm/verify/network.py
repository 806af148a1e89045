"""Verification of a whole network: its bundle, emulated or on a GPU, against onnxruntime.

In the emulator a small network runs whole, by its plan; of others, blocks of each layer (`sampled_layers.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codegen.frontend.onnx.export.residual_graph import Tensor
from codegen.frontend.onnx.export.segments import LayerCall, SegmentedNetwork
from codegen.frontend.onnx.reader import read_checkpoint
from codegen.frontend.tsv.manifest import is_tsv_network
from codegen.ir.dtypes import from_float32
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
from farm.runtime.hybrid import HybridNetwork, check_inputs
from farm.runtime.network import Network
from farm.runtime.plan import Arrays, LayerStep, Plan, Port, arrays_in_order
from farm.runtime.plan_text import plan_of
from farm.store import open_store
from farm.store.contract import Store
from farm.verify.onnxruntime_reference import ReferenceTensor, reference_tensors
from farm.verify.sampled_layers import check_layers
from farm.verify.tensor_checks import TensorCheck, check_tensor, is_quantized

MAX_EMULATED = 20_000_000
"""Most multiply-adds of non-zero weights, over all images, of a network that is emulated whole."""

Array = NDArray[Any]


@dataclass(frozen=True)
class NetworkVerification:
    """Verification of a whole network."""

    where: str
    """"emulator" or the GPU's name."""
    images: int
    tensors: tuple[TensorCheck, ...]
    """Tensors of both, in the order of computation."""
    outputs: tuple[TensorCheck, ...]
    sampled: bool = False
    """Whether only blocks of the layers ran, and the rest of the network in onnxruntime."""

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

    inputs: Arrays = ()
    """Inputs, images first; random if empty."""
    model: Path | None = None
    """The compiled model file, if it has moved."""
    gpu: bool = False
    """Run on a GPU of the cluster or, with `local`, of this machine; else in the emulator."""
    local: bool = False
    batch: int | None = None
    """Images of random inputs; two, or those that the network fixes, if not given."""
    seed: int = 0
    values: Mapping[str, float] = field(default_factory=dict)
    """Values of the model's inputs that were fixed when it was compiled."""

    def answer(
        self, settings: Settings, store: Store, detail: JobDetail, notice: Notice = no_notice
    ) -> NetworkVerification:
        """Verifies the network of a job that succeeded. Raises UsageError, DeviceError and NoWorkerError."""
        with TempFolder("network") as folder:
            bundle = _bundle(folder, store, detail, ptx=False)
            network = bundle.segments
            plan = None if bundle.refused else plan_of(bundle)
        model = Path(detail.job.model) if self.model is None else self.model
        inputs = arrays_in_order(network.inputs, self.inputs or network_inputs(network.inputs, self.batch, self.seed))
        if plan is None:
            check_inputs(network.inputs, inputs)
        else:
            plan.images_of(inputs)
        check_model(model, detail, network, self.values)
        reference = Reference(model, network, inputs, self.values)
        if not self.gpu:
            if plan is not None and _is_small(detail, len(inputs[0])):
                return compare_network(plan_tensors(plan), run_on_cpu(store, detail, inputs), reference)
            return _sampled(store, detail, reference, self.seed, notice)
        tensors = plan_tensors(plan) if plan is not None else layer_tensors(network)
        with open_gpu(settings, local=self.local, notice=notice) as host:
            if host.is_remote:
                [ran] = host.run(partial(network_work, detail=detail, inputs=inputs))
            else:  # this farm's store may differ from the one in its settings
                ran = run_on_gpu(store, detail, inputs)
        return compare_network(tensors, ran, reference)


def network_inputs(tensors: Sequence[Tensor], batch: int | None, seed: int) -> tuple[Array, ...]:
    """Random inputs: normal values, and of integers 0 and 1, which every table of indices has.

    A network with a fixed batch gets that many images. Raises UsageError for open sizes, or another batch.
    """
    batches = {each for tensor in tensors for each in tensor.shape[:1]}
    if batch is not None and batches and batch not in batches and all(isinstance(each, int) for each in batches):
        fixed = " or ".join(f"{each:,}" for each in batches)
        raise UsageError(f"--batch {batch}: the network's inputs fix the batch at {fixed}: leave --batch out")
    rng = np.random.default_rng(seed)
    found = []
    for tensor in tensors:
        first = [(batch or 2) if not isinstance(each, int) else each for each in tensor.shape[:1]]
        sizes = [each for each in tensor.shape[1:] if isinstance(each, int)]
        if len(sizes) < len(tensor.shape[1:]):
            raise UsageError(
                f"the input {tensor.name} has open sizes: give it with --input, or compile with fixed ones"
            )
        shape = (*first, *sizes)
        if tensor.dtype == "bfloat16":
            found.append(from_float32(rng.standard_normal(shape, np.float32), "bfloat16"))
        elif np.dtype(tensor.dtype).kind == "f":
            found.append(rng.standard_normal(shape, np.float32).astype(tensor.dtype))
        else:
            found.append(rng.integers(0, 2, shape).astype(tensor.dtype))
    return tuple(found)


@dataclass(frozen=True, eq=False)
class Reference:
    """onnxruntime's results for the compiled model."""

    model: Path
    network: SegmentedNetwork
    inputs: Sequence[Array]
    values: Mapping[str, float]
    """Values of inputs that the network lacks, because they were fixed when it was compiled."""

    def tensors(self, names: Collection[str]) -> dict[str, ReferenceTensor]:
        """The named tensors that the model has too. Raises UsageError if onnxruntime cannot run the model."""
        given = {port.name: array for port, array in zip(self.network.inputs, self.inputs, strict=True)}
        found = reference_tensors(self.model, given, names, self.values)
        if missing := [port.name for port in self.network.outputs if port.name not in found]:
            raise UsageError(
                f"{self.model} has no output {missing[0]}: say with --model which is the model that was compiled"
            )
        return found


def check_model(model: Path, detail: JobDetail, network: SegmentedNetwork, values: Mapping[str, float]) -> None:
    """Raises UsageError for a model other than the compiled one, CheckpointError for an unreadable file."""
    if is_tsv_network(model):
        raise UsageError(f"{model} is no ONNX file, which onnxruntime could run: leave out --network")
    if not model.is_file():
        gone = " any more" if str(model) == detail.job.model else ""
        raise UsageError(f"{model} is not there{gone}: say with --model where the job's ONNX file is")
    shapes = {each.name: tuple(size for size in each.shape if isinstance(size, int)) for each in network.inputs}
    fixed = {each.name: shapes[each.name] for each in network.inputs if len(shapes[each.name]) == len(each.shape) > 0}
    read = {layer.name: layer.weights.digest for layer in read_checkpoint(model, fixed, values).layers}
    # With the value of an input the model may have layers of another branch: then its outputs differ.
    if detail.builds and not values and read.keys().isdisjoint(build.layer for build in detail.builds):
        raise UsageError(
            f"{model} is not the model that was compiled, it has none of its layers: say with --model which file is"
        )
    for build in detail.builds:
        if read.get(build.layer, build.weights) != build.weights:
            raise UsageError(
                f"{model} is not the model that was compiled, {build.layer} has other weights: say with --model which "
                "file is"
            )


def _is_small(detail: JobDetail, images: int) -> bool:
    """Whether a network is emulated whole."""
    work = sum(
        build.spec.multiply_adds * (build.rows or 1) * build.nonzeros // build.spec.weights_count
        for build in {build.position: build for build in detail.builds}.values()
    )
    return work * images <= MAX_EMULATED


def run_on_cpu(store: Store, detail: JobDetail, inputs: Sequence[Array]) -> Ran:
    """Runs a network in the emulator. Raises EmulationError."""
    with TempFolder("network") as folder:
        bundle = _bundle(folder, store, detail, ptx=True)
        plan = plan_of(bundle)
        seen: dict[str, Array] = {}
        outputs = run_emulated(
            plan, layer_ptx(bundle, plan), bundle.constants, inputs, lambda name, data: seen.update({name: data.copy()})
        )
        return Ran("emulator", seen | _by_name(plan.outputs, outputs))


def run_on_gpu(store: Store, detail: JobDetail, inputs: Sequence[Array]) -> Ran:
    """Runs a network on this machine's GPU. Raises DeviceError without one."""
    with TempFolder("network") as folder:
        bundle = _bundle(folder, store, detail, ptx=False)
        seen: dict[str, Array] = {}
        network: HybridNetwork | Network
        with HybridNetwork(bundle) if bundle.refused else Network(bundle) as network:
            outputs = network.run(inputs, lambda name, data: seen.update({name: data}))
            return Ran(network.device_name, seen | _by_name(network.outputs, outputs))


def network_work(settings: Settings, detail: JobDetail, inputs: Sequence[Array]) -> Generator[Ran, None, None]:
    """Runs a network on the GPU of the current machine."""
    yield run_on_gpu(open_store(settings), detail, inputs)


def _by_name(ports: Sequence[Port | Tensor], arrays: Sequence[Array]) -> dict[str, Array]:
    return {port.name: array for port, array in zip(ports, arrays, strict=True)}


def plan_tensors(plan: Plan) -> dict[str, str]:
    """The tensors that a plan computes, in order, each with the layer that computes it; empty for glue kernels."""
    return {step.tensor: step.layer if isinstance(step, LayerStep) else "" for step in plan.steps}


def layer_tensors(network: SegmentedNetwork) -> dict[str, str]:
    """The tensors that compiled layers compute, in order, each with its layer."""
    return {step.output: step.layer for step in network.steps if isinstance(step, LayerCall)}


def compare_network(layers: Mapping[str, str], ran: Ran, reference: Reference) -> NetworkVerification:
    """Compares a network's result with onnxruntime; `layers` are the tensors to compare, as of `plan_tensors`.

    Raises UsageError if onnxruntime cannot run the model.
    """
    outputs = [port.name for port in reference.network.outputs]
    names = dict.fromkeys((*layers, *outputs))
    wanted = reference.tensors(names)
    quantized = is_quantized(wanted)
    checks = {
        name: check_tensor(name, layers.get(name, ""), ran.tensors[name], wanted[name], quantized=quantized)
        for name in names
        if name in wanted and name in ran.tensors
    }
    return NetworkVerification(
        ran.where,
        len(reference.inputs[0]),
        tuple(check for name, check in checks.items() if name in layers),
        tuple(checks[name] for name in outputs),
    )


def _sampled(
    store: Store, detail: JobDetail, reference: Reference, seed: int, notice: Notice = no_notice
) -> NetworkVerification:
    """Verifies sampled blocks of each layer, and the rest of the network by onnxruntime."""
    network = reference.network
    outputs = [port.name for port in network.outputs]
    wanted = reference.tensors({*layer_tensors(network), *outputs})
    checks, made = check_layers(store, detail, network, reference.inputs, wanted, seed, notice)
    return NetworkVerification(
        "emulator",
        len(reference.inputs[0]),
        tuple(checks),
        tuple(
            check_tensor(name, "", array, wanted[name], quantized=is_quantized(wanted))
            for name, array in zip(outputs, made, strict=True)
        ),
        sampled=True,
    )


def _bundle(folder: Path, store: Store, detail: JobDetail, *, ptx: bool) -> Bundle:
    """Writes the job's bundle as farm fetch does."""
    kernels = newest_ptx(detail, store) if ptx else ()
    path = folder / "network.farm"
    write_bundle(path, detail.job, detail.builds, detail.results, {"nvcc": "", "ptxas": ""}, store, ptx=kernels)
    return Bundle(path)

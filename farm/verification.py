"""Verifies a compiled job: every layer's kernel again, against the reference, on this CPU or on a GPU."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from codegen.device import Device
from codegen.errors import CodegenError, DeviceError
from codegen.layers import Weights
from codegen.operators import launch_of
from codegen.rewrite import rewrite
from codegen.template import Template
from codegen.verify import Verification, random_input, verify_kernel, verify_output
from farm.build import find_template
from farm.errors import BlobLostError, UsageError
from farm.jobs import Build, BuildResult
from farm.store.contract import Store, blob_digest


@dataclass(frozen=True)
class LayerVerification:
    """One layer's kernel, and the architectures whose cubins were made from it."""

    layer: str
    archs: tuple[str, ...]
    where: str
    """"emulator" or the GPU's name."""
    verification: Verification


def verify_on_cpu(
    store: Store, builds: Sequence[Build], results: Sequence[BuildResult], *, batch: int = 2, seed: int = 0
) -> Iterator[LayerVerification]:
    """Makes every distinct kernel again, checks that it is the one which was assembled, and runs it in the emulator.

    Gives one verification for each layer and virtual architecture, in the order of the layers. Raises BlobLostError if
    the store has lost a template or weights.
    """
    verified: dict[tuple[str, str], Verification] = {}
    for build in builds:
        archs: dict[tuple[str, str | None], list[str]] = {}
        for result in results:
            if result.build == build.id and result.cubin is not None:
                archs.setdefault((result.template_key, result.ptx), []).append(result.arch)
        for (template_key, ptx), names in archs.items():
            kernel = (template_key, build.weights)
            if kernel not in verified:
                verified[kernel] = _verify_kernel(store, build, template_key, ptx, batch, seed)
            yield LayerVerification(build.layer, tuple(sorted(names, key=_number)), "emulator", verified[kernel])


def _verify_kernel(
    store: Store, build: Build, template_key: str, ptx: str | None, batch: int, seed: int
) -> Verification:
    weights = _weights(store, build)
    text = find_template(store, template_key)
    if text is None:
        raise BlobLostError(f"{build.layer}: the store has lost its template: run farm compile again")
    try:
        kernel = rewrite(Template.from_ptx(text), weights)
        if blob_digest(kernel.ptx) != ptx:
            return _wrong("the rewriter gives other PTX than was assembled (it has changed): run farm compile again")
        return verify_kernel(kernel, build.spec, build.tiling, weights, batch=batch, seed=seed)
    except CodegenError as error:
        return _wrong(str(error))


def verify_on_gpu(
    store: Store, builds: Sequence[Build], results: Sequence[BuildResult], *, batch: int, seed: int = 0
) -> Iterator[LayerVerification]:
    """Runs the cubins that fit this machine's GPU. Raises DeviceError without a GPU, UsageError if no cubin fits it."""
    with Device() as device:
        archs = sorted({result.arch for result in results if result.cubin is not None}, key=_number)
        fitting = [arch for arch in archs if runs_on(arch, device.arch)]
        if not fitting:
            raise UsageError(
                f"the GPU here is {device.arch}, the job has {', '.join(archs)}: compile it with --arch {device.arch}"
            )
        by_build = {result.build: result for result in results if result.arch == fitting[-1]}
        for build in builds:
            result = by_build.get(build.id)
            if result is not None and result.cubin is not None:
                verification = _verify_cubin(store, device, build, result.cubin, batch, seed)
                yield LayerVerification(build.layer, (result.arch,), device.name, verification)


def _verify_cubin(store: Store, device: Device, build: Build, digest: str, batch: int, seed: int) -> Verification:
    weights = _weights(store, build)
    cubin = store.get(digest)
    if cubin is None:
        raise BlobLostError(f"{build.layer}: the store has lost its cubin: run farm compile again")
    launch = launch_of(build.spec, build.tiling)
    x = random_input(build.spec, batch, seed)
    try:
        output = device.run(cubin, launch, x, build.spec.output_shape)
    except DeviceError as error:
        return _wrong(str(error))
    return verify_output(build.spec, build.tiling, weights, x, output, launch.grid_at(batch), seed)


def runs_on(arch: str, device: str) -> bool:
    """Cubins run on later minor versions of their generation; those with a letter only on their own."""
    if arch[-1].isalpha():  # as in sm_90a: tied to this very GPU
        return arch[:-1] == device
    return _number(arch) // 10 == _number(device) // 10 and _number(arch) <= _number(device)


def _number(arch: str) -> int:
    return int(re.sub(r"\D", "", arch))


def _weights(store: Store, build: Build) -> Weights:
    data = store.get(build.weights)
    if data is None:
        raise BlobLostError(f"{build.layer}: the store has lost its weights: run farm compile again")
    return Weights.from_bytes(build.spec, data)


def _wrong(message: str) -> Verification:
    return Verification(0, 0, 0, relative_error=float("nan"), bound_share=float("nan"), message=message)

"""Verification of a job's layers against the reference, in the emulator or on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from codegen.emulator.sass.emulate import is_known
from codegen.errors import CodegenError, DeviceError, TemplateError, UnsupportedCodeError
from codegen.ir.checkpoint import Weights
from codegen.ir.launch import Launch
from codegen.ir.tiling import Part
from codegen.ptx.rewrite import rewrite
from codegen.ptx.template import Template
from codegen.target.arch import arch_number, runs_on
from codegen.verification.compare import (
    LayerRun,
    Verification,
    random_run,
    verify_layer,
    verify_output,
)
from farm.config.settings import Settings
from farm.cuda.device import Device
from farm.errors import BlobLostError, UsageError
from farm.jobs.model import Build, BuildResult
from farm.store import open_store
from farm.store.contract import Store, blob_digest
from farm.worker.cache_lookup import find_template, read_cubin


@dataclass(frozen=True)
class LayerVerification:
    """Verification of one layer's kernels, for the architectures that share them."""

    layer: str
    parts: int
    archs: tuple[str, ...]
    batches: tuple[int, ...]
    """Batch sizes that these kernels serve, if other batch sizes have kernels of their own; else empty."""
    where: str
    """"machine code" for cubins in the emulator, "emulator" for their PTX, or the GPU's name."""
    verification: Verification
    ptx_because: str = ""
    """Why the PTX was emulated and not the cubins; empty if the cubins were run."""


def check_batch(builds: Sequence[Build], results: Sequence[BuildResult], batch: int) -> None:
    """Raises UsageError for a batch larger than a layer's kernels take in one launch."""
    of_build = {build.id: build for build in builds}
    for result in results:
        build, limit = of_build[result.build], result.known_launch.images_limit
        rows = build.rows or 1
        if batch * rows > limit:
            fewer = limit // rows
            raise UsageError(f"{batch:,} images are more than a launch of {build.layer} takes: give at most {fewer:,}")


def verify_on_cpu(
    store: Store,
    builds: Sequence[Build],
    results: Sequence[BuildResult],
    *,
    batch: int = 2,
    seed: int = 0,
) -> Iterator[LayerVerification]:
    """Emulates the cubins of every distinct kernel, and checks that its PTX is still the one that ptxas assembled.

    Where the emulator does not support the machine code, it runs the PTX. Yields one verification per layer and
    distinct code, in layer order. `batch` counts images, or rows where the model does not give the rows of an image.
    Raises BlobLostError for a lost template, weights or cubin.
    """
    verified: dict[tuple[_Made, str, tuple[Part, ...], int | None], tuple[Verification, str]] = {}
    for build, of_arch in _in_order(builds, results):
        archs: dict[tuple[_Made, tuple[int, ...]], list[str]] = {}
        for arch in sorted(of_arch, key=arch_number):
            archs.setdefault((_made(build, arch, of_arch[arch]), build.own_batches(arch)), []).append(arch)
        for (made, batches), names in archs.items():
            parts = build.parts_of(names[0])
            layer = (made, build.weights, parts, build.rows)
            if layer not in verified:
                drawn = partial(random_run, build.spec, build.tiling, batch=batch * (build.rows or 1), seed=seed)
                verified[layer] = _verify_kernels(store, build, parts, made, drawn)
            verification, refusal = verified[layer]
            reason = refusal or _unsupported(build, names)
            where = "emulator" if reason else "machine code"
            yield LayerVerification(build.layer, len(parts), tuple(names), batches, where, verification, reason)


def _in_order(
    builds: Sequence[Build], results: Sequence[BuildResult]
) -> list[tuple[Build, dict[str, list[BuildResult]]]]:
    """Builds with their cubins per architecture: layers as given, and within a layer the oldest architecture first."""
    of_layer = {layer: number for number, layer in enumerate(dict.fromkeys(build.layer for build in builds))}
    found = [(build, _by_arch(build, results)) for build in builds]
    return sorted(found, key=lambda each: (of_layer[each[0].layer], min(map(arch_number, each[1]), default=0)))


def verify_run(
    store: Store, build: Build, results: Sequence[BuildResult], run_of: Callable[[Weights], LayerRun]
) -> LayerVerification:
    """Emulates a layer's kernels for one architecture on given arrays: the one emulated best, else the newest.

    `run_of` makes the run, again if the emulator refuses the machine code and runs the PTX. Raises BlobLostError.
    """
    of_arch = _by_arch(build, results)
    arch = _best_arch(build, of_arch)
    parts, made = build.parts_of(arch), _made(build, arch, of_arch[arch])
    verification, refusal = _verify_kernels(store, build, parts, made, run_of)
    reason = refusal or _unsupported(build, [arch])
    where = "emulator" if reason else "machine code"
    return LayerVerification(build.layer, len(parts), (arch,), build.own_batches(arch), where, verification, reason)


def best_emulated(builds: Sequence[Build], results: Sequence[BuildResult]) -> Build:
    """The build of a layer that `verify_run` emulates best; its builds differ in their architectures."""
    return max(builds, key=lambda build: _preference(build, _best_arch(build, _by_arch(build, results))))


def _best_arch(build: Build, archs: Iterable[str]) -> str:
    return max(archs, key=lambda arch: _preference(build, arch))


def _preference(build: Build, arch: str) -> tuple[bool, int]:
    return not _unsupported(build, [arch]), arch_number(arch)


def _unsupported(build: Build, archs: Sequence[str]) -> str:
    """Why the emulator does not run a build's cubins for these architectures; empty if it does."""
    if build.tiling.reads_table:  # it lacks their shuffles and constant data
        return "machine code with weight tables is not emulated"
    return "" if all(map(is_known, archs)) else f"machine code of {', '.join(archs)} is not emulated"


@dataclass(frozen=True)
class _Made:
    """Builds of a layer's parts to verify."""

    template_key: str
    ptx: tuple[str | None, ...]
    """Digests of the parts' PTX; None for cubins made without it."""
    launches: tuple[Launch, ...]
    cubins: tuple[str | None, ...]
    """Digests of the cubins to emulate; empty to emulate the PTX."""


def _made(build: Build, arch: str, kernels: Sequence[BuildResult]) -> _Made:
    launches = tuple(kernel.known_launch for kernel in kernels)
    words = tuple(kernel.cubin for kernel in kernels) if not _unsupported(build, [arch]) else ()
    return _Made(kernels[0].template_key, tuple(kernel.ptx for kernel in kernels), launches, words)


def _by_arch(build: Build, results: Sequence[BuildResult]) -> dict[str, list[BuildResult]]:
    """Cubins of a layer per architecture, in the order of its parts."""
    found: dict[str, list[BuildResult]] = {}
    for result in sorted(results, key=lambda each: each.part):
        if result.build == build.id and result.cubin is not None:
            found.setdefault(result.arch, []).append(result)
    return found


def _verify_kernels(
    store: Store, build: Build, parts: tuple[Part, ...], made: _Made, run_of: Callable[[Weights], LayerRun]
) -> tuple[Verification, str]:
    """The verification, and why the emulator did not run the cubins that it was to run; empty if it did."""
    weights = _weights(store, build)
    cubins = [read_cubin(store, digest, build.layer) for digest in made.cubins] or None
    text = find_template(store, made.template_key)
    if text is None:
        raise BlobLostError(f"{build.layer}: the store has lost its template: run farm compile again")
    try:
        template = Template.from_ptx(text)
        for part, digest in zip(parts, made.ptx, strict=True):
            if digest is not None and blob_digest(rewrite(template, weights, part).ptx) != digest:
                changed = "the rewriter has changed and gives other PTX than was assembled: run farm compile again"
                return _wrong(changed), ""

        def emulated(cubins: list[bytes] | None) -> Verification:
            return verify_layer(template, run_of(weights), parts, made.launches, cubins)

        try:
            return emulated(cubins), ""
        except UnsupportedCodeError as error:
            return emulated(None), str(error)
    except TemplateError as error:
        return _wrong(f"its stored template is unusable ({error}): run farm compile again with FARM_RECACHE=1"), ""
    except CodegenError as error:
        return _wrong(str(error)), ""


def verify_on_gpu(
    store: Store, builds: Sequence[Build], results: Sequence[BuildResult], *, batch: int, seed: int = 0
) -> Iterator[LayerVerification]:
    """Verifies the cubins that run on this machine's GPU.

    Raises DeviceError without a GPU, UsageError without such cubins.
    """
    with Device() as device:
        archs = sorted({result.arch for result in results if result.cubin is not None}, key=arch_number)
        fitting = [arch for arch in archs if runs_on(arch, device.arch)]
        if not fitting:
            raise UsageError(
                f"the GPU here is {device.arch}, the job has {', '.join(archs)}: compile it with --arch {device.arch}"
            )
        arch = fitting[-1]
        for build in builds:
            made = _by_arch(build, results).get(arch, [])
            if made:
                verification = _verify_cubins(store, device, build, made, batch * (build.rows or 1), seed)
                parts, batches = build.parts_of(arch), build.own_batches(arch)
                yield LayerVerification(build.layer, len(parts), (arch,), batches, device.name, verification)


def verification_work(
    settings: Settings, builds: Sequence[Build], results: Sequence[BuildResult], batch: int, seed: int
) -> Generator[LayerVerification, None, None]:
    """Verifies cubins on the GPU of the current machine."""
    yield from verify_on_gpu(open_store(settings), builds, results, batch=batch, seed=seed)


def _verify_cubins(
    store: Store, device: Device, build: Build, made: Sequence[BuildResult], batch: int, seed: int
) -> Verification:
    weights = _weights(store, build)
    kernels = [(_cubin(store, build, result), result.known_launch) for result in made]
    run = random_run(build.spec, build.tiling, weights, batch, seed)
    try:
        output = device.run_layer(kernels, run.x, build.spec.output_shape, run.residual, run.gate)
    except DeviceError as error:
        return _wrong(str(error))
    return verify_output(replace(run, output=output))


def _cubin(store: Store, build: Build, result: BuildResult) -> bytes:
    return read_cubin(store, result.cubin, build.cubin_name(result.arch, result.part))


def _weights(store: Store, build: Build) -> Weights:
    data = store.get(build.weights)
    if data is None:
        raise BlobLostError(f"{build.layer}: the store has lost its weights: run farm compile again")
    return Weights.from_bytes(build.spec, data)


def _wrong(message: str) -> Verification:
    return Verification(0, 0, 0, relative_error=float("nan"), bound_share=float("nan"), message=message)

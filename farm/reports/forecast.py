"""Forecasts of compiles: predicted cache hits, builds and times, without running a tool or writing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import zip_longest

import numpy as np
from numpy.typing import NDArray

from codegen.ir.checkpoint import Checkpoint
from codegen.sass.qualification import NO_QUALIFICATIONS, Qualifications
from codegen.selection.code_size import stream_instructions
from codegen.selection.dense_cost import DENSE_PRECISIONS, DensePrecision, dense_microseconds
from codegen.selection.tool_time import SKELETON_SECONDS, direct_seconds, nvcc_seconds, ptxas_seconds
from codegen.toolchain.ptxas import level_of
from codegen.toolchain.tools import Toolchain
from farm.jobs.kernel_times import build_microseconds
from farm.jobs.model import Build, NewJob
from farm.reports.coverage import Coverage, coverage_of
from farm.reports.shared_archs import SharedCost, shared_costs
from farm.reports.trust import TrustSaving, trust_savings
from farm.scheduler.plan import Plan, plan
from farm.store.contract import Store
from farm.worker.cache_lookup import find_cubin, has_patch_template, has_template
from farm.worker.direct import SKELETON_STAGE, skeleton_key_of
from farm.worker.messages import CubinRequest, Request

INSTRUCTION_BYTES = 16
LOOKERS = 8
"""Threads that query the store; they mostly wait for S3."""


@dataclass(frozen=True)
class LayerForecast:
    """Forecast of one layer, for the architectures and batch sizes that share a tiling."""

    build: Build
    archs: tuple[str, ...]
    cubins: int
    cubins_there: int
    cubins_patched: int
    """Missing cubins that are patched into code of the same mask, as far as their values allow."""
    template_there: bool
    """Whether the store has the templates of all these architectures."""
    code_bytes: int
    """Predicted machine code for one architecture."""
    ptxas_seconds: float
    """CPU time of ptxas for missing cubins."""
    skeleton_seconds: float
    """CPU time of ptxas for missing skeletons of the direct assembler, as if no other layer shared them."""
    assembler_seconds: float
    """CPU time of the direct assembler, and of value patches, for missing cubins."""
    kernel_microseconds: Mapping[str, Mapping[int, float]]
    """Predicted kernel time on the GPU of each of the architectures, by batch size."""
    dense_microseconds: Mapping[str, Mapping[int, Mapping[DensePrecision, float]]]
    """Predicted time of the dense layer in PyTorch on each of these GPUs, in the faster layout, by batch size."""


@dataclass(frozen=True)
class ModelForecast:
    """Forecast of one checkpoint."""

    job: NewJob
    layers: tuple[LayerForecast, ...]
    coverage: Coverage
    shared_costs: tuple[SharedCost, ...] = ()

    def code_bytes(self, arch: str) -> int:
        """Predicted machine code of all layers for an architecture."""
        return sum(layer.code_bytes for layer in self.layers if arch in layer.archs)

    def dense_microseconds(self, arch: str, batch: int) -> dict[DensePrecision, float]:
        """Predicted time of all these layers dense in PyTorch at a batch size, by precision."""
        times = [layer.dense_microseconds.get(arch, {}).get(batch, {}) for layer in self.layers]
        return {precision: sum(of.get(precision, 0.0) for of in times) for precision in DENSE_PRECISIONS}

    def kernel_microseconds(self, arch: str, batch: int) -> float:
        """Predicted kernel time of all layers on the GPU of an architecture, at a batch size."""
        return sum(layer.kernel_microseconds.get(arch, {}).get(batch, 0.0) for layer in self.layers)


@dataclass(frozen=True)
class Forecast:
    """Forecast of all checkpoints, with shared builds counted once."""

    models: tuple[ModelForecast, ...]
    templates_to_make: int
    templates_there: int
    cubins_to_make: int
    cubins_there: int
    cubins_patched: int
    code_bytes: int
    """Machine code of all cubins, cached ones included."""
    nvcc_seconds: float | None
    """CPU time of nvcc; None for templates of the full form, which are not predicted."""
    ptxas_seconds: float
    skeleton_seconds: float
    assembler_seconds: float
    saved_seconds: float
    """CPU time that the templates and cubins in the store would take; templates of the full form count as nothing."""
    trust_savings: tuple[TrustSaving, ...]

    @property
    def total_seconds(self) -> float:
        """CPU time of all tools; templates of the full form count as nothing."""
        return (self.nvcc_seconds or 0.0) + self.ptxas_seconds + self.skeleton_seconds + self.assembler_seconds


@dataclass(frozen=True)
class _Kernel:
    """Prediction of one cubin."""

    code_bytes: int
    ptxas_seconds: float
    assembler_seconds: float
    skeleton: str
    """Key of a missing skeleton that ptxas builds first; empty if none."""

    @property
    def seconds(self) -> float:
        """CPU time of the cubin, without that of its skeleton."""
        return self.ptxas_seconds + self.assembler_seconds


def forecast(
    jobs: Sequence[NewJob],
    checkpoints: Sequence[Checkpoint],
    toolchain: Toolchain,
    store: Store,
    *,
    recache: bool,
    qualifications: Qualifications = NO_QUALIFICATIONS,
    own_jobs: Sequence[NewJob] = (),
) -> Forecast:
    """Forecast of the jobs of checkpoints; `recache` ignores the contents of the store.

    `own_jobs` are the same checkpoints for the architectures that share the jobs' cubins, if there are any.
    """
    jobs = [replace(job, builds=tuple(replace(build, id=i) for i, build in enumerate(job.builds))) for job in jobs]
    todo = plan([(job, job.builds) for job in jobs], toolchain, qualifications)
    there = set() if recache else _there(todo, store)
    streams = {
        (job.id, build.id): _streams(build, model)
        for job, model in zip(jobs, checkpoints, strict=True)
        for build in job.builds
    }
    skeletons = {each.key: skeleton_key_of(each, toolchain) for each in todo.cubins if each.assembler == "direct"}
    made = {} if recache else _skeletons_made(skeletons.values(), store)
    missing = [request for request in todo.cubins if request.key not in there]
    patched = set() if recache else _patched(missing, store)
    requests: dict[tuple[str, int], list[CubinRequest]] = {key: [] for key in streams}
    of_cubin: dict[str, _Kernel] = {}
    for request in todo.cubins:
        for target in todo.targets[request.key]:
            requests[target.job, target.build].append(request)
            skeleton = skeletons.get(request.key, "")
            of_cubin[request.key] = _kernel(
                streams[target.job, target.build], request, skeleton, made.get(skeleton), request.key in patched
            )
    found = [request for request in todo.cubins if request.key in there]
    saved_nvcc = [nvcc_seconds(each.spec, each.tiling) for each in todo.templates if each.key in there]
    templates = {request.template.key: request.template for request in missing if request.template.key not in there}
    nvcc = [nvcc_seconds(template.spec, template.tiling) for template in templates.values()]

    def layer(job: NewJob, build: Build) -> LayerForecast:
        asked = requests[job.id, build.id]
        kernels = [of_cubin[request.key] for request in asked if request.key not in there]
        options, archs = job.options, build.archs(job.options)
        served = {arch: build.own_batches(arch) or options.batches for arch in archs}
        return LayerForecast(
            build=build,
            archs=archs,
            cubins=len(asked),
            cubins_there=sum(request.key in there for request in asked),
            cubins_patched=sum(request.key in patched for request in asked),
            template_there=all(request.template.key in there for request in asked),
            code_bytes=sum(of_cubin[request.key].code_bytes for request in asked) // len(archs),
            ptxas_seconds=sum(kernel.ptxas_seconds for kernel in kernels),
            skeleton_seconds=_skeleton_seconds(kernels),
            assembler_seconds=sum(kernel.assembler_seconds for kernel in kernels),
            kernel_microseconds={
                arch: {batch: build_microseconds(build, batch, options.device(arch)) for batch in batches}
                for arch, batches in served.items()
            },
            dense_microseconds={
                arch: {
                    batch: dense_microseconds(build.spec, batch * build.likely_rows, options.device(arch))
                    for batch in batches
                }
                for arch, batches in served.items()
            },
        )

    return Forecast(
        models=tuple(
            ModelForecast(
                job,
                tuple(layer(job, build) for build in job.builds),
                coverage_of(job.builds, job.skipped),
                () if own is None else shared_costs(job, own),
            )
            for job, own in zip_longest(jobs, own_jobs)
        ),
        templates_to_make=len(templates),
        templates_there=sum(template.key in there for template in todo.templates),
        cubins_to_make=len(missing),
        cubins_there=len(found),
        cubins_patched=len(patched),
        code_bytes=sum(kernel.code_bytes for kernel in of_cubin.values()),
        nvcc_seconds=None if None in nvcc else sum(each for each in nvcc if each is not None),
        ptxas_seconds=sum(of_cubin[request.key].ptxas_seconds for request in missing),
        skeleton_seconds=_skeleton_seconds([of_cubin[request.key] for request in missing]),
        assembler_seconds=sum(of_cubin[request.key].assembler_seconds for request in missing),
        saved_seconds=sum(filter(None, saved_nvcc)) + sum(of_cubin[each.key].seconds for each in found),
        trust_savings=trust_savings(todo, {each.key: of_cubin[each.key].seconds for each in missing}),
    )


def _streams(build: Build, model: Checkpoint) -> NDArray[np.float64]:
    """Machine instructions of each K group, [K groups]."""
    [weights] = [layer.weights for layer in model.layers if layer.name == build.layer]
    return stream_instructions(build.spec, build.tiling, weights.nonzeros_per_output)


def _kernel(
    streams: NDArray[np.float64], request: CubinRequest, skeleton: str, made: bool | None, patched: bool
) -> _Kernel:
    """Prediction of a cubin.

    `made` tells whether the store has its skeleton: False if ptxas has shown that there is none, None if unknown.
    """
    instructions = float(streams[request.part.first : request.part.end].sum())
    by_ptxas = assembled = 0.0
    if patched or (request.assembler == "direct" and made is not False):
        assembled = direct_seconds(instructions)
    else:
        by_ptxas = ptxas_seconds(request.template.spec, instructions, level_of(request.options))
    return _Kernel(INSTRUCTION_BYTES * int(instructions), by_ptxas, assembled, "" if made is not None else skeleton)


def _skeleton_seconds(kernels: Sequence[_Kernel]) -> float:
    """CPU time of ptxas for missing skeletons, each counted once."""
    return SKELETON_SECONDS * len({kernel.skeleton for kernel in kernels} - {""})


def _skeletons_made(keys: Iterable[str], store: Store) -> dict[str, bool]:
    """For skeletons with a record: whether the skeleton exists."""
    keys = list(dict.fromkeys(keys))
    with ThreadPoolExecutor(LOOKERS) as pool:
        records = zip(keys, pool.map(partial(store.get_record, SKELETON_STAGE), keys), strict=True)
        return {key: "refused" not in record for key, record in records if record is not None}


def _patched(missing: Sequence[CubinRequest], store: Store) -> set[str]:
    """Keys of the missing cubins for which ptxas need not run: it has made, or will make, code of their mask."""
    keys = list(dict.fromkeys(request.patch_template for request in missing if request.patch_template))
    with ThreadPoolExecutor(LOOKERS) as pool:
        known = dict(zip(keys, pool.map(partial(has_patch_template, store), keys), strict=True))
    found = set()
    for request in missing:
        if known.get(request.patch_template):
            found.add(request.key)
        elif known.get(request.patch_template, False) is None:
            known[request.patch_template] = True  # this cubin's build makes it
    return found


def _there(todo: Plan, store: Store) -> set[str]:
    """Keys of the templates and cubins in the store; a recorded refusal counts, as nothing is built then."""

    def is_there(request: Request) -> bool:
        if isinstance(request, CubinRequest):
            return find_cubin(store, request.key, whole=request.whole) is not None
        return has_template(store, request.key)

    requests: list[Request] = [*todo.templates, *todo.cubins]
    with ThreadPoolExecutor(LOOKERS) as pool:
        found = zip(requests, pool.map(is_there, requests), strict=True)
        return {request.key for request, there in found if there}

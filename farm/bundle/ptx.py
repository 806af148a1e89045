"""PTX of a job's kernels, rewritten from the stored templates and weights, for GPUs newer than its cubins."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby

from codegen.errors import TemplateError
from codegen.ir.checkpoint import Weights
from codegen.kernels import needs_clusters
from codegen.keys import REWRITER_SOURCES, code_digest
from codegen.ptx.rewrite import rewrite
from codegen.ptx.template import Template
from codegen.target.arch import arch_number, virtual_arch
from farm.errors import BlobLostError, UsageError
from farm.jobs.model import Build, BuildResult, JobDetail
from farm.store.contract import Store, blob_digest
from farm.worker.cache_lookup import find_cubin, find_template
from farm.worker.messages import CubinFacts


@dataclass(frozen=True)
class KernelPtx:
    """PTX of a cubin's kernel."""

    result: BuildResult
    virtual_arch: str
    text: bytes


def newest_ptx(detail: JobDetail, store: Store) -> list[KernelPtx]:
    """The PTX of every part of each layer for the newest of the job's architectures that has the layer.

    Raises BlobLostError if the store has lost a template or weights, UsageError if the rewriter may give other PTX than
    it gave for the job.
    """
    return [
        kernel
        for _, builds in groupby(detail.builds, key=lambda build: build.position)
        for kernel in _of_layer(list(builds), {build.id: detail.results_of(build) for build in detail.builds}, store)
    ]


def _of_layer(
    builds: Iterable[Build], results: Mapping[int, Iterable[BuildResult]], store: Store
) -> Iterator[KernelPtx]:
    builds = list(builds)
    archs = {result.arch for build in builds for result in results[build.id]}
    newest = max(archs, key=lambda arch: (arch_number(arch), not arch[-1].isalpha()))
    for build in builds:
        yield from _of_build(build, [each for each in results[build.id] if each.arch == newest], store)


def _of_build(build: Build, results: Iterable[BuildResult], store: Store) -> Iterator[KernelPtx]:
    data = store.get(build.weights)
    if data is None:
        raise BlobLostError(f"{build.layer}: the store has lost its weights: run farm compile again")
    weights = Weights.from_bytes(build.spec, data)
    for result in results:
        ptx = find_template(store, result.template_key)
        if ptx is None:
            raise BlobLostError(f"{build.layer}: the store has lost its template: run farm compile again")
        try:
            made = rewrite(Template.from_ptx(ptx), weights, build.parts_of(result.arch)[result.part]).ptx
        except TemplateError as error:
            raise UsageError(
                f"{build.layer}: its stored template is unusable ({error}): run farm compile again"
            ) from None
        if not _is_unchanged(made, result, store):
            raise UsageError(
                f"{build.layer}: the rewriter has changed and gives other PTX than was assembled: "
                "run farm compile again"
            )
        yield KernelPtx(result, virtual_arch(result.arch, clusters=needs_clusters(build.tiling)), made)


def _is_unchanged(made: bytes, result: BuildResult, store: Store) -> bool:
    """Whether PTX is what ptxas assembled; for a cubin made without PTX, whether the rewriter's sources are the same.

    Other sources may have put the template's placeholders in another order, or launched its kernel differently.
    """
    if result.ptx is not None:
        return blob_digest(made) == result.ptx
    found = find_cubin(store, result.cubin_key)
    facts = None if found is None else found.made
    return isinstance(facts, CubinFacts) and facts.rewriter == code_digest(REWRITER_SOURCES)

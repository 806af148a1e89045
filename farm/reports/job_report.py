"""Report of a job by layer: zeros, code and kernel times. Runs no tool."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby

from codegen.ir.checkpoint import Weights
from farm.jobs.kernel_times import build_microseconds
from farm.jobs.model import Build, BuildOptions, BuildResult, JobDetail
from farm.ledger import Ledger, Statistics
from farm.reports.coverage import Coverage, coverage_of
from farm.reports.zero_map import ZeroMap, zero_map
from farm.store.contract import Store


@dataclass(frozen=True)
class KernelTime:
    """Time of one launch of a layer with all its parts, at the job's largest batch size."""

    microseconds: float
    gpu: str
    measured: bool
    """Whether it was measured in a tuning run at about this density; else the cost model predicted it."""


@dataclass(frozen=True)
class Variant:
    """A layer's builds for the architectures and batch sizes that share a tiling."""

    build: Build
    archs: tuple[str, ...]
    results: tuple[BuildResult, ...]
    """Cubins so far, in the order of architectures and parts."""
    times: Mapping[str, KernelTime]
    """By architecture; those that run the job's largest batch size with this tiling."""

    def results_for(self, arch: str) -> tuple[BuildResult, ...]:
        """Results per part, for parts that have ended."""
        return tuple(result for result in self.results if result.arch == arch)


@dataclass(frozen=True)
class LayerReport:
    """Report of one layer."""

    variants: tuple[Variant, ...]
    """One or more variants."""
    zeros: ZeroMap | None
    """None if the weights are lost."""

    @property
    def build(self) -> Build:
        """Name, shape and weights common to all variants."""
        return self.variants[0].build

    def for_arch(self, arch: str) -> Variant:
        """Variant of an architecture's largest batch size. Raises KeyError for an architecture outside the job."""
        for variant in self.variants:
            if arch in variant.times:
                return variant
        raise KeyError(arch)

    def results_for(self, arch: str) -> tuple[BuildResult, ...]:
        """Results for an architecture, of all batch sizes."""
        return tuple(result for variant in self.variants for result in variant.results_for(arch))

    def cubins_for(self, arch: str) -> int:
        """Number of cubins for an architecture, of all batch sizes."""
        return sum(len(variant.build.parts_of(arch)) for variant in self.variants if arch in variant.archs)

    def time_for(self, arch: str) -> KernelTime:
        """Time of one launch. Raises KeyError for an architecture outside the job."""
        return self.for_arch(arch).times[arch]


@dataclass(frozen=True)
class JobReport:
    """Report of a job: its layers in graph order, and its cache statistics."""

    detail: JobDetail
    layers: tuple[LayerReport, ...]
    coverage: Coverage
    statistics: Statistics
    """Statistics of this job alone."""
    trace: str
    """Id of its trace; empty where none are made."""

    def total_microseconds(self, arch: str) -> float:
        """Sum of all layers' times at the job's largest batch size."""
        return sum(layer.time_for(arch).microseconds for layer in self.layers)

    def arch_groups(self) -> list[tuple[str, ...]]:
        """Groups of architectures with equal kernel times, in the job's order."""
        groups: dict[tuple[KernelTime, ...], list[str]] = {}
        for arch in self.detail.job.options.archs:
            groups.setdefault(tuple(layer.time_for(arch) for layer in self.layers), []).append(arch)
        return [tuple(group) for group in groups.values()]


def job_report(detail: JobDetail, ledger: Ledger, store: Store, trace: str) -> JobReport:
    """Report of a job, finished or not."""
    layers = []
    for _, builds in groupby(detail.builds, key=lambda build: build.position):
        variants = list(builds)
        weights = _weights(store, variants[0])
        layers.append(
            LayerReport(
                tuple(_variant(detail, build) for build in variants),
                None if weights is None else zero_map(weights.kernel),
            )
        )
    coverage = coverage_of(detail.builds, detail.job.skipped)
    return JobReport(detail, tuple(layers), coverage, ledger.statistics.of_job(detail.job.id), trace)


def _weights(store: Store, build: Build) -> Weights | None:
    data = store.get(build.weights)
    return None if data is None else Weights.from_bytes(build.spec, data)


def _variant(detail: JobDetail, build: Build) -> Variant:
    options = detail.job.options
    archs, results = build.archs(options), tuple(detail.results_of(build))
    timed = [arch for arch in archs if build.serves(arch, options.batches[-1], options)]
    times = {arch: _time(options, build, arch) for arch in timed}
    return Variant(build, archs, results, times)


def _time(options: BuildOptions, build: Build, arch: str) -> KernelTime:
    batch = options.batches[-1]
    for choice in build.choices:
        time = choice.microseconds(batch * build.likely_rows)
        if choice.arch == arch and time is not None:
            return KernelTime(time, choice.gpu, measured=True)
    device = options.device(arch)
    return KernelTime(build_microseconds(build, batch, device), device.name, measured=False)

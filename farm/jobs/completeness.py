"""The complete part of a job that did not succeed: layers of which an architecture has all cubins."""

from __future__ import annotations

from dataclasses import dataclass, replace

from farm.jobs.model import BuildResult, JobDetail


@dataclass(frozen=True)
class MissingLayer:
    """A layer that a bundle lacks for some architectures."""

    name: str
    operator: str
    archs: tuple[str, ...]
    reason: str
    """The first error of its cubins, or why they were not started."""


def whole_part(detail: JobDetail) -> tuple[JobDetail, tuple[MissingLayer, ...]]:
    """Splits a job into its complete builds and results, and the missing layers, in the order of the layers.

    A layer is complete for an architecture if it has a cubin for every part, at every batch size.
    """
    results: list[BuildResult] = []
    missing: list[MissingLayer] = []
    for build in detail.builds:
        of_build = detail.results_of(build)
        lacking: dict[str, list[str]] = {}
        for arch in build.archs(detail.job.options):
            of_arch = [each for each in of_build if each.arch == arch]
            there = [each for each in of_arch if each.cubin is not None and each.launch is not None]
            if len(there) == len(build.parts_of(arch)):
                results += there
                continue
            errors = [each.error for each in of_arch if each.error]
            reason = errors[0] if errors else f"not built: {detail.job.reason or detail.job.status}"
            lacking.setdefault(reason, []).append(arch)
        operator = str(build.spec.to_json()["operator"])
        missing += [MissingLayer(build.layer, operator, tuple(archs), reason) for reason, archs in lacking.items()]
    lacked = {(each.name, arch) for each in missing for arch in each.archs}
    layers = {build.id: build.layer for build in detail.builds}
    whole = tuple(each for each in results if (layers[each.build], each.arch) not in lacked)
    builds = tuple(build for build in detail.builds if any(each.build == build.id for each in whole))
    return replace(detail, builds=builds, results=whole), tuple(missing)

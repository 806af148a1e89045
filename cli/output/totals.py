"""Sums over the layers of a job: its cubins for each architecture, and how much of the model is compiled."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from cli.output.render import counted, magnitude
from farm.jobs.model import JobDetail, Outcome

if TYPE_CHECKING:
    from farm.reports.coverage import Coverage


@dataclass(frozen=True)
class ArchTotal:
    """All cubins of a job for one architecture."""

    arch: str
    cubins: int
    """That are there."""
    cubins_of: int
    hits: int
    ptxas_seconds: float
    """What ptxas took for them, whenever that was."""
    registers: int
    """The most of any."""
    spill_bytes: int
    cubin_bytes: int


def arch_totals(detail: JobDetail) -> list[ArchTotal]:
    """In the order of the job's architectures."""
    options = detail.job.options
    totals = []
    for arch in options.archs:
        there = [result for result in detail.results if result.arch == arch and result.cubin]
        totals.append(
            ArchTotal(
                arch=arch,
                cubins=len(there),
                cubins_of=sum(len(build.parts_of(arch)) for build in detail.builds if arch in build.archs(options)),
                hits=sum(result.outcome is Outcome.HIT for result in there),
                ptxas_seconds=sum(result.ptxas_seconds for result in there if result.assembler == "ptxas"),
                registers=max((result.registers for result in there), default=0),
                spill_bytes=sum(result.spill_bytes for result in there),
                cubin_bytes=sum(result.cubin_bytes for result in there),
            )
        )
    return totals


def totals_json(detail: JobDetail) -> dict[str, Any]:
    """The same as --json gives it."""
    layers = {build.position: build for build in detail.builds}.values()
    return {
        "layers": len(layers),
        "weights": sum(build.spec.weights_count for build in layers),
        "nonzeros": sum(build.nonzeros for build in layers),
        "archs": [asdict(total) for total in arch_totals(detail)],
    }


def coverage_line(coverage: Coverage) -> str:
    """How much of a model is compiled."""
    left = f", {coverage.skipped} skipped" if coverage.skipped else ""
    most = " at most" if coverage.of_unknown_size else ""
    weights = coverage.share_of_weights(coverage.weights)
    multiply_adds = coverage.share_of_multiply_adds(coverage.multiply_adds)
    return (
        f"{counted(coverage.compiled, 'layer')} compiled{left}:{most} {weights:.1%} of "
        f"{magnitude(coverage.all_weights)} weights, {multiply_adds:.1%} of {magnitude(coverage.all_multiply_adds)} "
        "multiply-adds an image"
    )


def coverage_json(coverage: Coverage) -> dict[str, Any]:
    """The same as --json gives it."""
    return {
        "layers": coverage.compiled,
        "layers_skipped": coverage.skipped,
        "layers_of_unknown_size": coverage.of_unknown_size,
        "weights": coverage.weights,
        "weights_total": coverage.all_weights,
        "nonzeros": coverage.nonzeros,
        "multiply_adds": coverage.multiply_adds,
        "multiply_adds_total": coverage.all_multiply_adds,
        "share_of_weights": coverage.share_of_weights(coverage.weights),
        "share_of_multiply_adds": coverage.share_of_multiply_adds(coverage.multiply_adds),
    }

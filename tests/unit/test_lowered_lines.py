"""Notes about cubins that were built at a lower -O level than the job's."""

from __future__ import annotations

from dataclasses import replace

from cli.output.layers import lowered_lines
from farm.jobs.model import JobDetail, Outcome
from tests.unit.test_cli_output import detail


def at_level_one(*, cluster: int) -> JobDetail:
    whole = detail(Outcome.BUILT)
    [build], [result] = whole.builds, whole.results
    build = replace(build, tiling=replace(build.tiling, cluster=cluster))
    return JobDetail(whole.job, (build,), (replace(result, optimisation=1),))


def test_cubins_built_at_a_lower_level_are_noted() -> None:
    [line] = lowered_lines(at_level_one(cluster=1))
    assert line.plain.startswith("1 cubin built at -O1, ptxas timed out at -O3: ")
    assert line.plain.endswith(" sm_80")


def test_kernels_with_clusters_are_meant_for_that_level() -> None:
    assert lowered_lines(at_level_one(cluster=8)) == []

"""A layer in several parts for ptxas is one cubin and one launch where it is assembled directly."""

from __future__ import annotations

from pathlib import Path

import pytest

from codegen.errors import MachineCodeError
from codegen.ir.checkpoint import Weights
from codegen.ir.tiling import Part
from codegen.sass.assemble.assembler import DirectAssembler
from codegen.sass.assemble.link import LinkedCode
from farm.api import Farm
from farm.bundle.reader import Bundle
from farm.jobs.model import BuildOptions, Job, JobDetail, Status
from tests.bundle_samples import manifest_of, validator
from tests.samples import checkpoint, cut_in_two, layer
from tests.toolchain.tools import NET, Tools
from tests.verifications import assert_right

BOTH = BuildOptions(("sm_80", "sm_90"), assembler="direct")
code_of = DirectAssembler.code


@pytest.fixture(autouse=True)
def halved(monkeypatch: pytest.MonkeyPatch) -> None:
    cut_in_two(monkeypatch)


@pytest.fixture(autouse=True)
def one_supported_architecture(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("codegen.sass.qualification.SUPPORTED_ARCHS", ("sm_90",))


def refuse_whole_layers(assembler: DirectAssembler, weights: Weights, part: Part) -> LinkedCode:
    if part.end - part.first == assembler.template.spec.output_channels:
        raise MachineCodeError("not as one cubin")
    return code_of(assembler, weights, part)


def parts_made(detail: JobDetail, arch: str) -> list[list[tuple[int, str]]]:
    """[builds]: the parts of each, and their assemblers."""
    made = [[each for each in detail.results_of(build) if each.arch == arch] for build in detail.builds]
    return [[(each.part, each.assembler) for each in results] for results in made]


def test_it_is_one_cubin_and_one_launch_beside_the_parts_of_other_architectures(
    farm: Farm, tools: Tools, tmp_path: Path
) -> None:
    [job] = farm.compile([NET], BOTH)
    assert (job.status, job.done, job.total) == (Status.SUCCEEDED, 6, 6), job.reason
    assert tools.calls() == ["nvcc"] * 2 + ["ptxas"] * (4 + 2)  # two skeletons
    detail = farm.inspect(job.id)
    assert parts_made(detail, "sm_90") == [[(0, "direct")]] * 2
    assert parts_made(detail, "sm_80") == [[(0, "ptxas"), (1, "ptxas")]] * 2
    farm.fetch(job.id, tmp_path / "out")
    manifest = manifest_of(tmp_path / "out")
    validator().validate(manifest)
    for one, described in zip(NET.layers, manifest["layers"], strict=True):
        launches = [launch for launch in described["launches"] if "sm_90" in launch["cubins"]]
        assert [launch["grid"][2]["fixed"] for launch in launches] == [one.spec.output_channels]
        assert "part" not in launches[0]["cubins"]["sm_90"]["path"]
        assert sum("sm_80" in launch["cubins"] for launch in described["launches"]) == 2
    opened = Bundle(tmp_path / "out")
    for name in ("conv1", "conv2"):
        assert [len(opened.layers[name].cubins_for(arch)) for arch in ("sm_80", "sm_90")] == [2, 1]


def test_the_emulator_finds_it_right_in_one_part_and_in_two(farm: Farm) -> None:
    [job] = farm.compile([NET], BOTH)
    found = [(each.archs, each.parts, each.where, each.verification.ok) for each in farm.verify(job.id)]
    assert sorted(found) == [(("sm_80",), 2, "machine code", True)] * 2 + [(("sm_90",), 1, "machine code", True)] * 2


def test_what_the_assembler_refuses_as_one_cubin_is_made_in_parts_and_the_job_says_why(
    farm: Farm, tools: Tools, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DirectAssembler, "code", refuse_whole_layers)
    [job] = farm.compile([NET], BOTH)
    check_parts(farm, job)
    log = [event.text for event in farm.logs(job.id)]
    assert "conv1 sm_90: 2 cubins instead of one: not as one cubin" in log
    tools.calls()
    [again] = farm.compile([NET], BOTH)
    check_parts(farm, again)
    assert (again.hits, tools.calls()) == (8, [])
    [other] = farm.compile([checkpoint(layer("conv1", seed=8))], BOTH)
    assert (other.status, other.total) == (Status.SUCCEEDED, 4), other.reason


def check_parts(farm: Farm, job: Job) -> None:
    assert (job.status, job.done, job.total) == (Status.SUCCEEDED, 8, 8), job.reason
    detail = farm.inspect(job.id)
    assert parts_made(detail, "sm_90") == [[(0, "direct"), (1, "direct")]] * 2
    assert_right(farm.verify(job.id))


def test_it_is_cut_when_the_job_runs_if_ptxas_is_to_make_it_by_then(
    farm: Farm, monkeypatch: pytest.MonkeyPatch
) -> None:
    submission = farm.submit([NET], BOTH)
    monkeypatch.setattr("farm.scheduler.plan.assembler_for", lambda *_, **__: ("ptxas", "no longer qualified"))
    [job] = farm.run([each.id for each in submission.jobs])
    assert (job.status, job.done, job.total) == (Status.SUCCEEDED, 8, 8), job.reason
    assert parts_made(farm.inspect(job.id), "sm_90") == [[(0, "ptxas"), (1, "ptxas")]] * 2
    assert "conv1 sm_90: 2 cubins instead of one: no longer qualified" in [each.text for each in farm.logs(job.id)]


def test_the_forecast_counts_it_once(farm: Farm) -> None:
    found = farm.forecast([NET], BOTH)
    assert [each.cubins for each in found.models[0].layers] == [3, 3]

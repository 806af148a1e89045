"""The plan of jobs: shared tasks occur once, and expensive templates come first."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from itertools import groupby

import pytest

from codegen.ir.layer_spec import Conv2d
from codegen.ir.tiling import Part, Tiling
from codegen.keys import digest_fields
from codegen.sass.qualification import NO_QUALIFICATIONS
from codegen.toolchain.tools import Toolchain
from farm.jobs.model import Build, BuildOptions, Job, Status
from farm.scheduler.plan import Plan, Target, assembler_of, plan, plan_of
from farm.worker.messages import Turn
from tests.samples import fixed_toolchain

TOOLCHAIN = fixed_toolchain()
SPEC = Conv2d(8, 12, 12, 8, 3, 3)
TILING = Tiling("conv2d", 10, 10, 1, 4, 4, 2)
WHOLE = (Part(0, 2),)
HALVES = (Part(0, 1), Part(1, 2))


def job(job_id: str = "job1", archs: tuple[str, ...] = ("sm_80", "sm_90"), **options: int) -> Job:
    return Job(
        id=job_id,
        submission="s",
        submitter="ada",
        name="net",
        model="/models/net.onnx",
        model_digest="cd" * 32,
        options=replace(BuildOptions(archs), **options),
        status=Status.RUNNING,
        reason="",
        stage="",
        done=0,
        total=0,
        hits=0,
        tries=1,
        submitted_at=datetime.now(UTC),
    )


def build(
    number: int,
    weights: str = "",
    nonzeros: int = 100,
    tiling: Tiling = TILING,
    parts: tuple[Part, ...] = WHOLE,
    mask: str = "",
) -> Build:
    digest = weights or f"{number:064x}"
    mask = mask or digest
    return Build(number, "job1", number, f"conv{number}", "x", "y", SPEC, tiling, digest, nonzeros, mask, parts)


def planned(*builds: Build, archs: tuple[str, ...] = ("sm_80", "sm_90"), **options: int) -> Plan:
    return plan([(job(archs=archs, **options), builds)], TOOLCHAIN)


def test_there_is_one_cubin_for_each_layer_and_architecture() -> None:
    found = planned(build(1), build(2))
    assert {(target.build, target.arch) for who in found.targets.values() for target in who} == {
        (1, "sm_80"),
        (1, "sm_90"),
        (2, "sm_80"),
        (2, "sm_90"),
    }
    assert len(found.cubins) == 4


def test_layers_of_one_shape_share_a_template() -> None:
    found = planned(build(1), build(2))
    assert len(found.templates) == 1
    assert {request.template for request in found.cubins} == set(found.templates)


def test_another_tiling_is_another_template() -> None:
    assert len(planned(build(1), build(2, tiling=replace(TILING, rows=2))).templates) == 2


def test_turing_has_a_template_of_its_own_and_all_later_ones_share_theirs() -> None:
    found = planned(build(1), archs=("sm_75", "sm_80", "sm_90", "sm_120"))
    assert sorted(request.virtual_arch for request in found.templates) == ["compute_75", "compute_80"]


def test_equal_weights_in_an_equal_shape_are_assembled_once() -> None:
    found = planned(build(1, weights="ab" * 32), build(2, weights="ab" * 32), archs=("sm_90",))
    assert [found.targets[request.key] for request in found.cubins] == [
        (Target("job1", 1, "sm_90", 0), Target("job1", 2, "sm_90", 0))
    ]


def test_of_cubins_with_one_mask_only_the_first_takes_the_time_of_ptxas() -> None:
    large, parts = Conv2d(64, 56, 56, 64, 3, 3), (Part(0, 1), Part(1, 2))
    one_mask = [build(number, nonzeros=9000, mask="cd" * 32, parts=parts) for number in (1, 2, 3)]
    found = planned(*(replace(each, spec=large) for each in one_mask))
    by_template = {each.patch_template for each in found.cubins}
    assert len(by_template) == 4  # two parts for two architectures
    for key in by_template:
        first, *others = [each for each in found.cubins if each.patch_template == key]
        assert len({each.key for each in (first, *others)}) == 3
        assert all(each.seconds < first.seconds / 2 for each in others)


def test_jobs_that_run_together_share_cubins() -> None:
    first, second = job("job1"), job("job2", archs=("sm_90", "sm_120"))
    found = plan([(first, [build(1, weights="ab" * 32)]), (second, [build(2, weights="ab" * 32)])], TOOLCHAIN)
    assert len(found.cubins) == 3
    assert (Target("job1", 1, "sm_90", 0), Target("job2", 2, "sm_90", 0)) in found.targets.values()


def test_each_part_of_a_layer_is_a_cubin_of_the_same_template() -> None:
    found = planned(build(1, parts=HALVES))
    assert len(found.templates) == 1
    assert {(request.part, request.arch) for request in found.cubins} == {
        (part, arch) for part in HALVES for arch in ("sm_80", "sm_90")
    }
    assert {target for who in found.targets.values() for target in who} == {
        Target("job1", 1, arch, number) for number in (0, 1) for arch in ("sm_80", "sm_90")
    }


def test_a_part_that_two_layers_have_in_common_is_assembled_once() -> None:
    found = planned(build(1, "ab" * 32, parts=HALVES), build(2, "ab" * 32, parts=HALVES), archs=("sm_90",))
    assert [{target.part for target in found.targets[request.key]} for request in found.cubins] == [{0}, {1}]
    assert all({target.build for target in who} == {1, 2} for who in found.targets.values())


def test_a_part_costs_its_share_of_the_layers_multiply_adds() -> None:
    tiling, parts = replace(TILING, rows=2, group_outputs=2), (Part(0, 3), Part(3, 4))
    assert [request.cost for request in planned(build(1, tiling=tiling, parts=parts), archs=("sm_90",)).cubins] == [
        150,
        50,
    ]


def test_a_larger_part_takes_ptxas_longer() -> None:
    found = planned(build(1, parts=(Part(0, 1), Part(1, 4))), archs=("sm_90",))
    assert 0 < found.cubins[0].seconds < found.cubins[1].seconds
    assert all(request.seconds > 0 for request in found.templates)


def test_the_parts_of_a_layer_that_the_assembler_refused_are_expected_to_take_ptxas_s_time() -> None:
    one, halves = job(archs=("sm_90",)), build(1, parts=HALVES)
    direct = replace(one, options=replace(one.options, assembler="direct"))
    refused = plan_of(direct, halves, "sm_90", TOOLCHAIN, NO_QUALIFICATIONS).cubins
    assert [each.key for each in refused] == [each.key for each in plan([(direct, [halves])], TOOLCHAIN).cubins]
    by_ptxas = plan_of(
        replace(one, options=replace(one.options, assembler="ptxas")), halves, "sm_90", TOOLCHAIN, NO_QUALIFICATIONS
    )
    assert [(each.seconds, each.turn) for each in refused] == [(each.seconds, each.turn) for each in by_ptxas.cubins]
    assert {each.turn for each in refused} == {Turn.PTXAS}


def test_the_cubins_of_one_part_stay_neighbours_and_parts_follow_one_another() -> None:
    found = planned(build(1, parts=HALVES), build(2, parts=HALVES))
    order = [(request.weights[-1], request.part.first) for request in found.cubins]
    assert [key for key, _ in groupby(order)] == [("1", 0), ("1", 1), ("2", 0), ("2", 1)]


def test_auto_leaves_cubins_that_other_architectures_share_to_ptxas() -> None:
    one = job(archs=("sm_90",))
    for shared, reason in ((), ""), (("sm_80",), "direct code is for sm_80 alone, and other GPUs shall run it"):
        trusting = replace(one.options, archs=("sm_80",), shared=shared, trust="checked")
        _, why = assembler_of(trusting, SPEC, TILING, "sm_80", TOOLCHAIN, NO_QUALIFICATIONS)
        assert why.startswith(reason)
        assert ("leave out the +" in why) == bool(shared)
    alone = replace(one.options, shared=("sm_90",), trust="checked")
    assert assembler_of(alone, SPEC, TILING, "sm_90", TOOLCHAIN, NO_QUALIFICATIONS) == ("direct", "")


def test_another_optimisation_level_is_another_cubin_of_the_same_template() -> None:
    jobs = [(job("job1", ("sm_90",)), [build(1)]), (job("job2", ("sm_90",), optimisation=1), [build(1)])]
    found = plan(jobs, TOOLCHAIN)
    assert (len(found.templates), len(found.cubins)) == (1, 2)
    assert {request.options for request in found.cubins} == {("-O3",), ("-O1",)}


def test_the_most_expensive_templates_come_first_and_a_full_one_before_a_rolled_one() -> None:
    small, full = replace(TILING, group_outputs=1), replace(TILING, form="full")
    found = planned(build(1, tiling=small), build(2, tiling=TILING), build(3, tiling=full))
    assert [request.tiling for request in found.templates] == [full, TILING, small]


def test_the_fields_that_are_kept_are_those_of_the_keys() -> None:
    found = planned(build(1))
    for request in found.templates:
        assert digest_fields(found.template_fields[request.key]) == request.key
    for cubin in found.cubins:
        assert digest_fields(found.cubin_fields[cubin.key]) == cubin.key


@pytest.mark.parametrize("toolchain", [fixed_toolchain(ptxas="13.0.89"), fixed_toolchain(nvcc="13.0.89")])
def test_another_version_of_a_tool_changes_every_cubin(toolchain: Toolchain) -> None:
    old = {request.key for request in planned(build(1)).cubins}
    new = plan([(job(), [build(1)])], toolchain)
    assert old.isdisjoint(request.key for request in new.cubins)


def test_another_version_of_ptxas_keeps_the_templates() -> None:
    new = plan([(job(), [build(1)])], fixed_toolchain(ptxas="13.0.89"))
    assert new.templates == planned(build(1)).templates

"""`farm tune` of a network: the most expensive layer first, in the time given, its measurements as in the network."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import count

import pytest

from codegen.ir.checkpoint import Layer, Pool
from codegen.ir.layer_spec import Conv2d, LayerSpec, MaxPool
from codegen.ir.tiling import Tiling
from codegen.sass.qualification import Assembler
from codegen.selection.choose import misfit_of
from codegen.target.device_model import REFERENCE
from farm.cuda.measure.workload import NONZERO_BYTES, Case, Choice, model_cases
from farm.tuning.book import TuningBook, tuned_spec
from farm.tuning.search.candidates import ParallelRanker, Unranked, serial_ranker
from farm.tuning.search.layer_kinds import MIN_CANDIDATES, Effort, Kind, kinds_of, led_by_records, shares_of
from farm.tuning.search.tune import Outcome, TunePlan, TuneProgress
from tests.samples import SMALL, SMALLER, checkpoint, layer
from tests.tuning_samples import KeptRecords, PlayedBuilder, PlayedRig, record, whole_tuning

DEEP = Conv2d(256, 14, 14, 256, 3, 3, (1, 1), (1, 1, 1, 1))
LARGE = Conv2d(32, 28, 28, 32, 3, 3, (1, 1), (1, 1, 1, 1))
NET = checkpoint(layer("small", spec=SMALLER), layer("medium", spec=SMALL), layer("large", spec=LARGE))
BY_PTXAS = PlayedBuilder().assembler_of


def cases(*batches: int) -> list[Case]:
    return list(model_cases(NET, [], Choice(batches)))


def kinds(*batches: int) -> list[str]:
    return [kind.case.key.operator for kind in kinds_of(cases(*batches), "sm_90", "float32", 3, BY_PTXAS)]


def names(outcomes: list[Outcome]) -> list[str]:
    return [each.layer for each in outcomes]


def tuned(plan: TunePlan, builder: PlayedBuilder, clock: Callable[[], float], *batches: int) -> list[Outcome]:
    rig = PlayedRig(lambda tiling: 10.0)
    return whole_tuning(rig, builder, KeptRecords(), cases(*batches), plan, TuneProgress(), clock)


def test_the_layer_that_takes_most_of_the_networks_time_comes_first() -> None:
    assert kinds(64) == ["large", "medium", "small"]
    outcomes = tuned(TunePlan(Effort(candidates=1)), PlayedBuilder(), lambda: 0.0, 64)
    assert names(outcomes) == ["large", "medium", "small"]


def test_layers_are_ranked_side_by_side_as_in_turn() -> None:
    layers = [Unranked.of(case, "sm_90", "float32", REFERENCE) for case in cases(1, 64)]
    assert list(ParallelRanker(2)(layers)) == list(serial_ranker(layers))


def test_layers_of_a_kind_count_together() -> None:
    many = [layer(f"medium{i}", spec=SMALL, seed=i) for i in range(40)]
    net = checkpoint(layer("large", spec=LARGE), *many)
    found = kinds_of(list(model_cases(net, [], Choice((1,)))), "sm_90", "float32", 3, BY_PTXAS)
    assert [kind.case.key.operator for kind in found] == ["medium0", "large"]


def test_each_batch_size_is_worth_the_same() -> None:
    found = kinds_of(cases(1, 64), "sm_90", "float32", 3, BY_PTXAS)
    shares = shares_of(found)
    for batch in (1, 64):
        of_batch = [share for kind, share in zip(found, shares, strict=True) if kind.case.key.batch == batch]
        assert sum(of_batch) == pytest.approx(0.5)


def test_more_candidates_are_tried_of_what_takes_longer_and_at_least_two_of_all() -> None:
    many = [layer(f"many{i}", spec=SMALL, seed=i) for i in range(40)]
    net = checkpoint(layer("alone", spec=SAME), *many)
    builder, rig = PlayedBuilder(), PlayedRig(lambda tiling: 10.0)
    plan = TunePlan(Effort(seconds=4))
    whole_tuning(rig, builder, KeptRecords(), list(model_cases(net, [], Choice((64,)))), plan, TuneProgress())
    tried = {name: sum(case.key.operator == name for case in builder.cases) for name in ("many0", "alone")}
    assert tried["many0"] > tried["alone"] == MIN_CANDIDATES


def built_in(seconds: float, assembler: Assembler) -> int:
    """Candidates of a deep layer that are built in a given time."""
    deep = list(model_cases(checkpoint(layer("deep", spec=DEEP)), [], Choice((64,))))
    [kind] = kinds_of(deep, "sm_90", "float32", 3, lambda spec, tiling: assembler)
    [building] = Effort(seconds=seconds).buildings([kind], builder := PlayedBuilder(assembler=assembler), "float32")
    list(building.as_built(lambda: False))
    return len(builder.built)


def test_more_candidates_are_tried_of_what_is_assembled_without_ptxas() -> None:
    assert built_in(60, "direct") > built_in(60, "ptxas")


def test_the_time_alone_limits_the_candidates() -> None:
    assert built_in(200, "direct") > 1.8 * built_in(100, "direct") > 24


def test_what_the_time_does_not_suffice_for_is_left_and_is_no_failure_of_the_layer() -> None:
    table, rig = KeptRecords(), PlayedRig(lambda tiling: 10.0)
    ticks = count()
    plan = TunePlan(Effort(seconds=2))
    outcomes = whole_tuning(rig, PlayedBuilder(), table, cases(64), plan, TuneProgress(), lambda: float(next(ticks)))
    assert [(each.layer, each.left) for each in outcomes] == [("large", False), ("medium", True), ("small", True)]
    assert [each.record is None for each in outcomes] == [False, True, True]
    assert len(table.kept) == 1
    again = whole_tuning(rig, PlayedBuilder(), table, cases(64), plan, TuneProgress(), lambda: 0.0)
    assert [(each.layer, each.known) for each in again] == [("large", True), ("medium", False), ("small", False)]


def test_no_layer_takes_the_time_of_the_others() -> None:
    """Every candidate takes seconds, so the first layer alone could take all of it."""
    now = count()
    outcomes = tuned(TunePlan(Effort(seconds=120.0)), PlayedBuilder(assembler="direct"), lambda: 4.0 * next(now), 64)
    tried = {each.layer: each.record.tried for each in outcomes if each.record}
    assert list(tried) == ["large", "medium", "small"]
    assert tried["large"] > tried["small"]


def test_builders_go_on_with_the_next_layer_while_the_one_at_hand_is_measured() -> None:
    builder = PlayedBuilder(workers=8)
    begun: list[set[str]] = []

    def time_of(tiling: Tiling) -> float:
        begun.append({case.key.operator for case in builder.cases})
        return 10.0

    plan = TunePlan(Effort(candidates=2))
    whole_tuning(PlayedRig(time_of), builder, KeptRecords(), cases(64), plan, TuneProgress())
    assert begun[0] == {"large", "medium", "small"}


def test_between_two_runs_of_a_layer_the_other_layers_of_its_network_move_their_data_and_code() -> None:
    def moved(each: Layer, batch: int) -> int:
        spec: LayerSpec = each.spec
        values = spec.channels * spec.height * spec.width + spec.output_channels * spec.height * spec.width
        return 4 * batch * values + NONZERO_BYTES * each.weights.nonzeros

    net = checkpoint(layer("medium", spec=SAME), layer("large", spec=LARGE))
    medium, large = net.layers
    found = {case.key.operator: case.others_bytes for case in model_cases(net, [], Choice((64,)))}
    assert found == {"medium": moved(large, 64), "large": moved(medium, 64)}


def test_tilings_of_a_layers_records_for_other_densities_are_tried_behind_the_models_choice() -> None:
    [case] = cases(64)[1:2]
    [kind] = kinds_of([case], "sm_90", "float32", 3, BY_PTXAS)
    known = [replace(record(tiling, layer(spec=SMALL)), microseconds=5.0) for tiling in kind.ranked[-3:]]
    sparser = [
        replace(each, key=replace(each.key, density_band=band))
        for each, band in zip(known, (0.02, 0.1, 0.05), strict=True)
    ]
    last, nearest, near = kind.ranked[-3:]
    found = with_one_group(led_by_records(kind, sparser))
    assert found[:4] == [kind.ranked[0], nearest, near, last]
    assert sorted(map(str, found)) == sorted(map(str, kind.ranked))
    foreign = replace(sparser[0], key=replace(sparser[0].key, arch="sm_80"))
    assert with_one_group(led_by_records(kind, [foreign])) == list(kind.ranked)


def with_one_group(kind: Kind) -> list[Tiling]:
    """The candidates whose blocks have one K group."""
    return [each for each in kind.ranked if each.groups == 1]


def test_near_the_first_tilings_of_a_1x1_layer_every_other_one_has_blocks_of_several_k_groups() -> None:
    [case] = model_cases(checkpoint(layer("pointwise", spec=Conv2d(64, 14, 14, 128, 1, 1))), [], Choice((64,)))
    [kind] = kinds_of([case], "sm_90", "float32", 3, BY_PTXAS)
    found = led_by_records(kind, []).ranked
    several = [each for each in found if each.groups > 1]
    assert found[0] == kind.ranked[0]
    assert [each.groups > 1 for each in found[1:7]] == [True, False] * 3
    assert tuple(each for each in found if each.groups == 1) == kind.ranked
    nonzeros = case.weights.nonzeros_per_output
    assert len(set(several)) == len(several) > 3
    assert not any(misfit_of(case.spec, each, nonzeros) for each in several)


def test_blocks_of_several_k_groups_are_tried_too_where_another_kernel_leads() -> None:
    [case] = model_cases(
        checkpoint(layer("deep", spec=Conv2d(512, 7, 7, 512, 3, 3, (1, 1), (1, 1, 1, 1)))), [], Choice((1,))
    )
    [kind] = kinds_of([case], "sm_90", "float32", 3, BY_PTXAS)
    assert "conv2d" not in {each.kernel for each in kind.ranked[:2]}
    assert any(each.groups > 1 for each in led_by_records(kind, []).ranked)


SAME = Conv2d(8, 14, 14, 8, 3, 3, (1, 1), (1, 1, 1, 1))


def test_of_two_records_that_which_was_chosen_as_in_a_network_counts_then_the_faster_one() -> None:
    [kind] = kinds_of(cases(64)[1:2], "sm_90", "float32", 3, BY_PTXAS)
    warm = record(kind.ranked[0], layer("medium", spec=SMALL), microseconds=5.0)
    cold = replace(warm, tiling=kind.ranked[1], microseconds=9.0, cold_microseconds=12.0, model_cold_microseconds=15.0)
    colder = replace(cold, tiling=kind.ranked[2], cold_microseconds=11.0)
    for records in ([warm, cold, colder], [colder, cold, warm]):
        assert list(TuningBook.of(records).records.values()) == [colder]
    assert (warm.slower, cold.slower) == (2.5, 1.25)


def test_a_layer_before_a_pool_whose_windows_overlap_is_tuned_with_it_too() -> None:
    wide, halves = (
        replace(layer(name, spec=LARGE), pool=Pool(f"MaxPool {name}", "y", step))
        for name, step in (("wide", MaxPool(3, (1, 1, 1, 1))), ("halves", MaxPool()))
    )
    found = list(model_cases(checkpoint(wide, halves), [], Choice((4,), with_pools=True)))
    assert [case.key.operator for case in found] == ["wide", "wide with its pool", "halves"]
    joined = found[1].spec
    assert joined == wide.with_pool().spec
    assert tuned_spec(joined) == replace(joined, epilogue=joined.epilogue[-1:]) != tuned_spec(LARGE)
    assert tuned_spec(halves.with_pool().spec) == tuned_spec(LARGE)
    assert [case.key.operator for case in model_cases(checkpoint(wide), [], Choice((4,)))] == ["wide"]

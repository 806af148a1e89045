"""`farm tune`'s loop on a GPU that is played: right before fast, kept at once, gone on with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from codegen.ir.tiling import Tiling
from codegen.selection.choose import choose_tiling, ranked_tilings
from codegen.verification.compare import LayerRun, Verification, verify_output
from farm.cuda.measure.workload import Case, Choice, model_cases
from farm.tuning.search.building import ALIKE, Building, spread
from farm.tuning.search.layer_kinds import Effort
from farm.tuning.search.layer_search import Found, search
from farm.tuning.search.tune import Outcome, TunePlan, TuneProgress
from tests.samples import SMALL, SMALLER, checkpoint, layer
from tests.tuning_samples import KeptRecords, PlayedBuilder, PlayedRig, ended, whole_tuning

CASES = list(model_cases(checkpoint(layer("conv1"), layer("conv2", spec=SMALLER)), [], Choice((4,))))
CASE = CASES[0]
RANKED = spread(ranked_tilings(SMALL, 4, CASE.weights.nonzeros_per_output))
FEW = Effort(candidates=24)
PLAN = TunePlan(FEW)


def slower_with_rank(tiling: Tiling) -> float:
    """The other order of a tiling's blocks comes right behind it, several K groups in a block behind all."""
    if tiling.groups > 1:
        return 10.0 + len(RANKED)
    return 10.0 + RANKED.index(replace(tiling, order="group")) + 0.5 * (tiling.order == "place")


def fastest(winner: Tiling) -> Callable[[Tiling], float]:
    return lambda tiling: 5.0 if tiling == winner else 10.0


def found(rig: PlayedRig, builder: PlayedBuilder | None = None, effort: Effort = FEW) -> Found:
    building = Building(CASE, builder or PlayedBuilder(), RANKED, "float32", effort.candidates)
    return ended(search(building, rig, lambda: False))


def test_the_ranking_begins_with_the_tiling_that_is_chosen() -> None:
    assert RANKED[0] == choose_tiling(SMALL, 4, CASE.weights.nonzeros_per_output)
    assert len(set(RANKED)) == len(RANKED) > 12


def kind(tiling: Tiling) -> tuple[int, ...]:
    return tiling.tile_width, tiling.tile_height, tiling.rows, tiling.images, tiling.group_outputs


def test_of_tilings_nearly_alike_a_few_come_first_and_none_is_lost() -> None:
    ranked = ranked_tilings(SMALL, 4, CASE.weights.nonzeros_per_output)
    count = Counter(map(kind, ranked))
    head = RANKED[: sum(min(ALIKE, each) for each in count.values())]
    assert max(Counter(map(kind, head)).values()) <= ALIKE < max(count.values())
    assert set(map(kind, head)) == set(count)
    assert set(RANKED) == set(ranked)


def test_the_fastest_wins_and_the_models_choice_is_told_beside_it() -> None:
    rig = PlayedRig(fastest(RANKED[5]))
    result = found(rig)
    assert result.best is not None
    assert result.model is not None
    assert (result.best.tiling, result.best.times.cold_microseconds) == (RANKED[5], 5.0)
    assert (result.model.tiling, result.model.times.cold_microseconds) == (RANKED[0], 10.0)
    assert result.tried == FEW.candidates


def test_what_is_nearly_like_the_fastest_so_far_comes_before_the_rest_of_the_ranking() -> None:
    liked = RANKED[2]
    alike, first_alike = ([tiling for tiling in RANKED if kind(tiling) == kind(of)] for of in (liked, RANKED[0]))
    builder = PlayedBuilder()
    found(PlayedRig(lambda tiling: 5.0 if kind(tiling) == kind(liked) else 10.0), builder, Effort(candidates=14))
    assert set(alike) | set(RANKED[:4]) <= set(builder.built) <= {*alike, *first_alike, *RANKED[:14]}
    assert not set(alike) <= set(RANKED[:14])


def test_a_wrong_kernel_is_never_timed_never_wins_and_is_reported() -> None:
    bad = RANKED[5]
    rig = PlayedRig(fastest(bad), wrong=lambda tiling: tiling == bad)
    result = found(rig)
    assert result.best is not None
    assert result.best.tiling != bad
    assert bad not in rig.measured
    [said] = result.wrong
    assert str(bad) in said


def test_a_first_kernel_that_is_wrong_does_not_make_the_right_ones_wrong() -> None:
    rig = PlayedRig(slower_with_rank, wrong=lambda tiling: tiling == RANKED[0])
    result = found(rig)
    assert result.best is not None
    assert result.model is None
    assert (len(result.wrong), result.tried) == (1, FEW.candidates)


class NearlyRight(PlayedRig):
    """The fastest is off by too little for two kernels to differ, and by too much for one to be right."""

    def output(self, kernels: Sequence[tuple[Any, Any]]) -> NDArray[Any]:
        output = super().output(kernels)
        if self.time_of(kernels[0][1]) == 5.0:
            output += np.float32(5e-5) * np.abs(output).max()
        return output


def test_what_the_reference_refuses_is_not_kept_though_it_is_near_the_first_kernels_output() -> None:
    result = found(NearlyRight(fastest(RANKED[5])))
    assert result.best is not None
    assert result.best.tiling != RANKED[5]
    [said] = result.wrong
    assert said.startswith(f"{RANKED[5]}: in the block of outputs")


def test_the_models_choice_has_no_time_if_the_reference_refuses_it() -> None:
    result = found(NearlyRight(fastest(RANKED[0])))
    assert result.best is not None
    assert (result.model, len(result.wrong)) == (None, 1)
    assert RANKED[0] not in [each.tiling for each in result.measured]


def test_the_reference_sees_a_tilings_output_once(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Tiling] = []

    def verify(run: LayerRun) -> Verification:
        seen.append(run.tiling)
        return verify_output(run)

    monkeypatch.setattr("farm.tuning.search.check.verify_output", verify)
    for winner in (RANKED[0], RANKED[5]):
        found(PlayedRig(fastest(winner)))
    assert seen == [RANKED[0], RANKED[0], RANKED[5]]


def test_of_a_large_output_some_images_are_compared_the_first_and_the_last_among_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = PlayedRig(fastest(RANKED[5]), wrong=lambda tiling: tiling == RANKED[5])
    monkeypatch.setattr("farm.tuning.search.check.MAX_OUTPUTS", 1)
    [said] = found(rig).wrong  # a played wrong kernel is wrong in its last output
    assert "1 outputs differ from those of the first kernel" in said


def test_if_all_are_wrong_there_is_no_best() -> None:
    result = found(PlayedRig(slower_with_rank, wrong=lambda tiling: True))
    assert (result.best, result.reason, len(result.wrong)) == (None, "all of its kernels are wrong", FEW.candidates)


def test_what_does_not_build_is_counted_and_left_out() -> None:
    result = found(PlayedRig(slower_with_rank), PlayedBuilder(fails=lambda tiling: tiling in RANKED[1:3]))
    assert (result.tried, result.not_built) == (22, 2)
    nothing = found(PlayedRig(slower_with_rank), PlayedBuilder(fails=lambda tiling: True))
    assert nothing.best is None
    assert "ptxas ran into its time limit" in nothing.reason


def test_only_the_models_first_choice_is_left_to_ptxas_if_the_assembler_refuses_it() -> None:
    builder = PlayedBuilder()
    found(PlayedRig(slower_with_rank), builder)
    assert len(builder.built) > 1
    assert builder.left_to_ptxas == [RANKED[0]]


def test_when_time_is_up_the_models_first_choice_has_been_measured_all_the_same() -> None:
    rig, builder = PlayedRig(slower_with_rank), PlayedBuilder()
    result = ended(search(Building(CASE, builder, RANKED, "float32", None), rig, lambda: True))
    assert result.best is not None
    assert (result.best.tiling, result.tried) == (RANKED[0], 1)
    assert builder.built == RANKED[:1]


class Interrupting(TuneProgress):
    """Ctrl-C once the first layer is done."""

    def done(self, outcome: Outcome) -> None:
        raise KeyboardInterrupt


def test_an_interruption_keeps_what_is_done_and_the_same_call_goes_on() -> None:
    table, rig = KeptRecords(), PlayedRig(lambda tiling: 10.0)
    with pytest.raises(KeyboardInterrupt):
        whole_tuning(rig, PlayedBuilder(), table, CASES, PLAN, Interrupting())
    assert len(table.kept) == 1
    builder = PlayedBuilder()
    outcomes = whole_tuning(rig, builder, table, CASES, PLAN, TuneProgress())
    assert [(each.layer, each.known) for each in outcomes] == [("conv1", True), ("conv2", False)]
    assert len(table.kept) == 2
    assert len(builder.built) == FEW.candidates
    assert all(each.known for each in whole_tuning(rig, PlayedBuilder(), table, CASES, PLAN, TuneProgress()))


def test_again_tunes_what_has_a_record() -> None:
    table = KeptRecords()
    whole_tuning(PlayedRig(fastest(RANKED[5])), PlayedBuilder(), table, CASES[:1], PLAN, TuneProgress())
    again = TunePlan(FEW, force=True)
    [outcome] = whole_tuning(PlayedRig(fastest(RANKED[2])), PlayedBuilder(), table, CASES[:1], again, TuneProgress())
    assert not outcome.known
    [record] = table.records()
    assert record.tiling == RANKED[2]
    assert (record.cold_microseconds, record.model_cold_microseconds, record.tried) == (5.0, 10.0, FEW.candidates)
    assert (record.microseconds, record.model_microseconds) == (4.0, 4.0)


def test_a_record_whose_tiling_no_longer_does_is_made_anew() -> None:
    table = KeptRecords()
    whole_tuning(PlayedRig(slower_with_rank), PlayedBuilder(), table, CASES[:1], PLAN, TuneProgress())
    [record] = table.records()
    table.put(replace(record, tiling=replace(record.tiling, stages=4096)))
    [outcome] = whole_tuning(PlayedRig(slower_with_rank), PlayedBuilder(), table, CASES[:1], PLAN, TuneProgress())
    assert not outcome.known
    assert table.records() == [outcome.record]


def test_a_record_of_another_gpu_is_no_reason_to_skip_a_layer() -> None:
    table = KeptRecords()
    whole_tuning(PlayedRig(slower_with_rank, gpu="another"), PlayedBuilder(), table, CASES[:1], PLAN, TuneProgress())
    [outcome] = whole_tuning(PlayedRig(slower_with_rank), PlayedBuilder(), table, CASES[:1], PLAN, TuneProgress())
    assert not outcome.known
    assert len(table.kept) == 2


def test_layers_of_one_kind_are_tuned_once() -> None:
    net = checkpoint(layer("conv1"), layer("conv2", seed=1))
    cases: list[Case] = list(model_cases(net, [], Choice((4,))))
    [outcome] = whole_tuning(PlayedRig(slower_with_rank), PlayedBuilder(), KeptRecords(), cases, PLAN, TuneProgress())
    assert (outcome.layer, outcome.also) == ("conv1", ("conv2",))


def test_a_layer_without_right_kernels_has_no_record() -> None:
    table = KeptRecords()
    rig = PlayedRig(slower_with_rank, wrong=lambda tiling: True)
    [outcome] = whole_tuning(rig, PlayedBuilder(), table, CASES[:1], PLAN, TuneProgress())
    assert (outcome.record, len(outcome.wrong)) == (None, FEW.candidates)
    assert not table.kept


def test_the_winner_is_the_fastest_as_in_a_network_whatever_it_takes_over_and_over() -> None:
    rig = PlayedRig(fastest(RANKED[5]), warm_time_of=fastest(RANKED[2]))
    result = found(rig)
    assert result.best is not None
    assert result.best.tiling == RANKED[5]
    assert (result.best.times.cold_microseconds, result.best.times.warm_microseconds) == (5.0, 10.0)


def test_only_what_a_record_says_is_timed_over_and_over_too() -> None:
    rig = PlayedRig(fastest(RANKED[5]))
    found(rig)
    assert rig.measured_warm == [RANKED[5], RANKED[0]]


def test_what_is_measured_is_told_with_the_layer_it_was_measured_on() -> None:
    rig = PlayedRig(slower_with_rank)
    [outcome] = whole_tuning(rig, PlayedBuilder(), KeptRecords(), CASES[:1], PLAN, TuneProgress())
    assert outcome.measured is not None
    assert (outcome.measured.spec, outcome.measured.images) == (CASE.spec, CASE.images)
    assert {each.tiling for each in outcome.measured.kernels} == set(rig.measured)


def test_a_record_that_was_not_chosen_as_in_a_network_is_made_anew() -> None:
    table = KeptRecords()
    whole_tuning(PlayedRig(slower_with_rank), PlayedBuilder(), table, CASES[:1], PLAN, TuneProgress())
    [record] = table.records()
    table.put(replace(record, cold_microseconds=None, model_cold_microseconds=None))
    [outcome] = whole_tuning(PlayedRig(slower_with_rank), PlayedBuilder(), table, CASES[:1], PLAN, TuneProgress())
    assert not outcome.known
    assert table.records() == [outcome.record]

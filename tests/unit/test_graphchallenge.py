"""The sparse DNN challenge without a GPU: inputs, live rows, tables of indices, what is built, wrong arguments."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from cli.main import run
from codegen.frontend.tsv.manifest import CLIP
from codegen.frontend.tsv.matrix import SparseMatrix
from codegen.frontend.tsv.network import write_tsv_network
from codegen.model_zoo.radixnet import radix_net, random_layers
from farm.bench.graphchallenge.benchmark import rates
from farm.bench.graphchallenge.inputs import digit_rows
from farm.bench.graphchallenge.kernels import (
    Submitted,
    candidate_tilings,
    layer_cases,
    persistent_layout,
    submit_kernels,
)
from farm.bench.graphchallenge.network import (
    COMPACTED,
    MULTIPROCESSORS,
    ChallengeNetwork,
    Cycle,
    cycle_of,
    edge_table,
    grouped_table,
    in_tiles,
    launch_plans,
    make_network,
    outcome_of,
    read_network,
)
from farm.cuda.measure.workload import Case
from farm.errors import UsageError
from tests.unit.small_challenge import NEURONS, challenge


def test_digits_are_zeros_and_ones_all_different_and_the_same_for_a_seed() -> None:
    rows = digit_rows(1024, 4000, seed=1)
    assert rows.shape == (4000, 1024)
    assert set(np.unique(rows)) == {0, 1}
    assert 0.1 < rows.mean() < 0.3
    assert len(np.unique(rows, axis=0)) == 4000
    assert np.array_equal(rows, digit_rows(1024, 4000, seed=1))
    assert not np.array_equal(rows, digit_rows(1024, 4000, seed=2))


@pytest.mark.parametrize("more", [[], ["--inputs", "missing.tsv"]])
def test_more_rows_than_memory_holds_are_told_before_any_is_made(
    more: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("os.sysconf", {"SC_PHYS_PAGES": 2**20, "SC_PAGE_SIZE": 2**12}.__getitem__)
    monkeypatch.setattr("farm.bench.graphchallenge.inputs.rows_of", None)
    assert run(["bench", "graphchallenge", "--neurons", "65536", *more]) == 2
    assert "60,000 rows of 65,536 neurons take 47 GB of memory and this machine has 4 GB" in capsys.readouterr().err


def test_a_layer_that_memory_does_not_hold_is_told_before_it_is_emulated(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("os.sysconf", {"SC_PHYS_PAGES": 2**10, "SC_PAGE_SIZE": 2**12}.__getitem__)
    assert run(["bench", "graphchallenge", "--emulate", "--layers", "1", "--rows", "1"]) == 2
    assert "a layer of 1,024 neurons takes 0 GB of memory and this machine has 0 GB" in capsys.readouterr().err


def test_what_a_gpu_must_hold_grows_with_rows_and_neurons() -> None:
    assert challenge(rows=2000).gpu_bytes - challenge(rows=1000).gpu_bytes == 7 * 4 * 1000 * NEURONS


def test_digits_need_a_square_of_neurons_and_scikit_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="not a square of pixels"):
        digit_rows(2048, 1)
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(UsageError, match="scikit-learn, which is not installed"):
        digit_rows(1024, 1)


def test_most_rows_of_a_radix_net_die_and_the_others_converge() -> None:
    net = make_network("radix-net", 1024, 40, digit_rows(1024, 500), 0)
    outcome = outcome_of(net)
    assert outcome.live_rows[0] == 500
    assert list(outcome.live_rows) == sorted(outcome.live_rows, reverse=True)
    assert 0 < len(outcome.alive) < 50
    assert (outcome.values == CLIP).all()
    assert outcome.converged_rows[0] == 0
    assert outcome.converged_rows[-1] == outcome.live_rows[-1] == len(outcome.alive)


def test_rates_count_all_rows_and_apart_from_them_those_that_are_not_zero() -> None:
    net = challenge()
    outcome = outcome_of(net)
    found = rates(net, outcome, 100.0)
    edges = 32 * NEURONS
    assert found["edges"] == 8 * edges
    assert found["nominal_teraedges_per_second"] == round(50 * 8 * edges / 100 / 1e6, 2)
    assert found["live_teraedges_per_second"] == round(sum(outcome.live_rows) * edges / 100 / 1e6, 3)
    assert found["live_share"] == round(sum(outcome.live_rows) / (50 * 8), 5)


def test_rows_lie_across_in_tiles() -> None:
    rows = np.arange(15, dtype=np.float32).reshape(5, 3)
    tiles = in_tiles(rows, 4)
    assert tiles.shape == (2, 3, 4)
    assert np.array_equal(tiles[0].T, rows[:4])
    assert tiles[1, :, 0].tolist() == rows[4].tolist()
    assert not tiles[1, :, 1:].any()


@pytest.mark.parametrize("group", [8, 16])
def test_tables_of_indices_hold_the_layer(group: int) -> None:
    [matrix] = random_layers(NEURONS, 1, edges=5)
    kernel = matrix.kernel(NEURONS, NEURONS)
    grouped, again = grouped_table(kernel, group), np.zeros_like(kernel)
    assert grouped.most == np.diff(grouped.first).max()
    for g in range(NEURONS // group):
        entries = slice(*grouped.first[g : g + 2])
        again[g * group : (g + 1) * group, grouped.inputs[entries]] = grouped.weights[entries].T
    assert np.array_equal(again, kernel)
    edges, again = edge_table(kernel, group), np.zeros_like(kernel)
    assert edges.most == 5 * group
    for k in range(NEURONS):
        entries = slice(*edges.first[k : k + 2])
        again[k, edges.inputs[entries]] = edges.weights[entries]
    assert np.array_equal(again, kernel)


def test_dead_rows_go_after_each_of_the_first_layers_and_after_the_last() -> None:
    net = challenge(COMPACTED + 5)
    assert [i for i in range(COMPACTED + 5) if net.compacts(i)] == [*range(COMPACTED), COMPACTED + 4]
    later = replace(net, uncompacted=3)
    assert [i for i in range(COMPACTED + 5) if later.compacts(i)] == [*range(2, COMPACTED), COMPACTED + 4]
    assert later.segments[:2] == [range(3), range(3, 4)]
    assert [i for i in range(COMPACTED + 5) if net.clears_marks(i)] == [COMPACTED + 4]
    assert not any(challenge(3).clears_marks(i) for i in range(3))


def test_one_launch_goes_over_the_layers_between_two_compactions() -> None:
    assert challenge(COMPACTED + 5).segments == [*(range(i, i + 1) for i in range(COMPACTED)), range(COMPACTED, 15)]
    assert challenge(3).segments == [range(i, i + 1) for i in range(3)]


def test_layers_take_turns_from_where_they_come_again() -> None:
    net = make_network("radix-net", 1024, 30, np.zeros((1, 1024), np.float32), 0)
    checkpoint = net.checkpoint()
    cycle = cycle_of(checkpoint)
    assert cycle == Cycle(7, 1)  # the first layer reads the inputs in their own order
    names = [layer.weights.digest for layer in checkpoint.layers]
    assert [names[cycle.number_of(i)] for i in range(30)] == names
    short = make_network("radix-net", 1024, 4, np.zeros((1, 1024), np.float32), 0)
    assert [cycle_of(short.checkpoint()).number_of(i) for i in range(4)] == [0, 1, 2, 3]


def test_layers_become_one_kernel_where_all_its_blocks_run_at_once_and_they_repeat_soon() -> None:
    net = make_network("radix-net", 1024, 120, np.zeros((1, 1024), np.float32), 0)
    how = persistent_layout(net, net.checkpoint())
    assert how is not None
    assert how.group_blocks * 1024 // 16 <= MULTIPROCESSORS
    wide = make_network("radix-net", 4096, 2, np.zeros((1, 4096), np.float32), 0)
    assert persistent_layout(wide, wide.checkpoint()) is None
    drawn = make_network("random", 1024, 2, np.zeros((1, 1024), np.float32), 0)
    assert persistent_layout(drawn, drawn.checkpoint()) is None


def test_as_many_blocks_are_launched_as_the_gpu_runs_at_once_overlapping_and_not() -> None:
    found = launch_plans(threads=512, groups=64)
    assert [(each.group_blocks, each.overlapping) for each in found] == [(4, False), (4, True)]
    assert str(found[-1]) == "4 blocks a group, overlapping"
    assert {each.group_blocks for each in launch_plans(threads=1024, groups=256)} == {1}


def test_blocks_of_many_registers_are_also_launched_as_few_as_run_at_once() -> None:
    found = launch_plans(threads=256, groups=8, registers=193)
    blocks = [(each.group_blocks, each.overlapping) for each in found]
    assert blocks == [(66, False), (66, True), (16, False), (16, True)]
    assert [each.group_blocks for each in launch_plans(threads=512, groups=64, registers=40)] == [4, 4]
    assert [each.group_blocks for each in launch_plans(threads=512, groups=32, registers=106)] == [8, 8, 4, 4]


def test_only_layers_that_differ_are_built_and_with_groups_that_suit_the_pattern() -> None:
    net = make_network("radix-net", 1024, 120, np.zeros((1, 1024), np.float32), 0)
    checkpoint = net.checkpoint()
    assert len(layer_cases(net, checkpoint)) == 6 + 1  # the first reads the inputs in their own order
    assert {tiling.group_outputs for tiling in candidate_tilings(net, checkpoint)} == {16, 32}
    drawn = make_network("random", 1024, 2, np.zeros((1, 1024), np.float32), 0)
    assert {tiling.group_outputs for tiling in candidate_tilings(drawn, drawn.checkpoint())} == {64, 128}


def test_networks_that_differ_in_depth_share_their_kernels() -> None:
    submitted: list[tuple[str, object]] = []

    class Pool:
        def submit(self, case: Case, tiling: object) -> object:
            submitted.append((case.weights.digest, tiling))
            return object()

        def begin(self, compile_peer: object) -> object:
            return compile_peer

    deep = [make_network("radix-net", 1024, layers, np.zeros((1, 1024), np.float32), 0) for layers in (120, 480)]
    builds = Submitted({}, {}, {})
    made = [submit_kernels(cast("Any", Pool()), net, builds) for net in deep]
    for one, other in ([each.persistent for each in made], [each.pipelined for each in made]):
        assert one is not None
        assert one == other
    submitted.clear()
    builds = Submitted({}, {}, {})
    nets = [challenge(layers) for layers in (4, 8, 3)]
    kernels = [submit_kernels(cast("Any", Pool()), net, builds) for net in nets]
    assert len(submitted) == len(set(submitted)) == len(builds.layers)
    for net, found in zip(nets, kernels, strict=True):
        for tiling, layers in found.layers:
            assert list(layers) == list(layer_cases(net, found.checkpoint))
            assert all(builds.layers[digest, tiling] is future for digest, future in layers.items())


@pytest.mark.parametrize(
    ("kind", "neurons", "message"),
    [("dense", 1024, "unknown network dense"), ("radix-net", 64, "no RadiX-Net of 64 neurons")],
)
def test_unknown_networks_are_refused(kind: str, neurons: int, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make_network(kind, neurons, 2, np.zeros((1, neurons), np.float32), 0)


def test_a_network_of_files_must_be_like_the_challenges(tmp_path: Path) -> None:
    path = write_tsv_network(tmp_path, radix_net(NEURONS), NEURONS, 2, -0.3, None)
    with pytest.raises(UsageError, match="not a challenge network"):
        read_network(path, np.zeros((1, NEURONS), np.float32))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothing"], "unknown network nothing"),
        (["--peers", "x"], "--peers x: unknown peer: expected all, none or some of index, cusparse"),
        (["--emulate", "--json", "-"], "--json and --emulate cannot be combined"),
        (["--layers", "0"], "--layers"),
        (["--neurons", "1000"], "not a square"),
        (["--inputs", "missing.tsv"], "no such file"),
    ],
)
def test_wrong_arguments_are_told(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", "graphchallenge", "--rows", "2", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_matrices_are_taken_as_they_are() -> None:
    matrix = SparseMatrix(np.array([0]), np.array([1]), np.array([2.0], np.float32))
    net = ChallengeNetwork("one", 2, (matrix,), (0.5,), CLIP, np.array([[1, 0], [0, 0]], np.float32))
    assert outcome_of(net).values.tolist() == [[0.5, 2.5]]

"""The kernels beside the compiled ones, and the challenge itself, in the emulator."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from codegen.emulator.ptx import emulate
from codegen.frontend.tsv.manifest import CLIP
from codegen.frontend.tsv.network import tile_rows, write_tsv_network
from codegen.model_zoo.radixnet import radix_net, random_layers
from codegen.toolchain.tools import find_toolchain
from farm.bench.graphchallenge.kernels import index_kernel_ptx, listed_virtual_arch
from farm.bench.graphchallenge.network import ChallengeNetwork, edge_table, grouped_table, in_tiles
from tests.command import farm
from tests.unit.small_challenge import write_rows

NEURONS, ROWS, GROUP, BIAS = 64, 300, 16, -0.3


@pytest.fixture(scope="module")
def challenge() -> ChallengeNetwork:
    rows = (np.random.default_rng(2).random((ROWS, NEURONS)) < 0.2).astype(np.float32)
    [matrix] = random_layers(NEURONS, 1, seed=3, edges=8)
    return ChallengeNetwork("small", NEURONS, (matrix,), (BIAS,), CLIP, rows)


@pytest.fixture(scope="module")
def ptx(challenge: ChallengeNetwork) -> str:
    return index_kernel_ptx(challenge, GROUP, listed_virtual_arch("sm_90"), find_toolchain())


@pytest.mark.parametrize("blocks", [1, 2])
@pytest.mark.parametrize("entry", ["index_layer", "index_edges"])
def test_index_kernels_compute_the_layer_of_listed_columns(
    challenge: ChallengeNetwork, ptx: str, entry: str, blocks: int
) -> None:
    kernel = challenge.matrices[0].kernel(NEURONS, NEURONS)
    table = grouped_table(kernel, GROUP) if entry == "index_layer" else edge_table(kernel, GROUP)
    entry_bytes = 4 * GROUP + 4 if entry == "index_layer" else 8
    tiles = in_tiles(challenge.rows, tile_rows(NEURONS))
    places = np.sort(np.random.default_rng(0).permutation(ROWS)[:280]).astype(np.int32)
    output, marks = np.full_like(tiles, np.nan), np.zeros(tiles[:, 0].size, dtype=np.uint8)
    biases = np.full(NEURONS, BIAS, dtype=np.float32)
    arguments: list[Any] = [tiles, output, np.array([280], np.int32), places, marks]
    arguments += [table.first, table.inputs, table.weights, biases]
    emulate.run(ptx, (blocks, 1, NEURONS // GROUP), (256, 1, 1), table.most * entry_bytes, arguments, kernel=entry)
    expected = np.clip(challenge.rows[places].astype(np.float64) @ kernel.T + BIAS, 0, CLIP)
    got = output.transpose(0, 2, 1).reshape(-1, NEURONS)
    np.testing.assert_allclose(got[:280], expected, rtol=1e-5, atol=1e-5)
    assert np.isnan(got[280:]).all()
    assert np.array_equal(marks[:280] != 0, (expected > 0).any(axis=1))


@pytest.mark.parametrize("columns", [0, 1, 37, 4096, 9001])
def test_many_blocks_list_the_columns_that_are_left_in_order(ptx: str, columns: int) -> None:
    most = 10_000
    rng = np.random.default_rng(columns)
    alive = rng.random(most) < 0.3
    marks, others = alive.astype(np.uint8), np.ones(most, np.uint8)  # beyond the columns lie those of layers before
    names = rng.permutation(most).astype(np.int32)
    places, kept = np.full(most, -1, np.int32), np.full(most, -1, np.int32)
    left = np.array([-1], np.int32)
    arguments: list[Any] = [np.array([columns], np.int32), marks, others, places, left, names, kept]
    emulate.run(ptx, (-(-most // 4096), 1, 1), (1024, 1, 1), 0, arguments, kernel="list_columns")
    expected = np.flatnonzero(alive[:columns])
    assert left[0] == len(expected)
    assert np.array_equal(places[: len(expected)], expected)
    assert np.array_equal(kept[: len(expected)], names[expected])
    assert (places[len(expected) :] == -1).all()
    assert not others[:columns].any()


def test_what_follows_cusparse_adds_the_bias_clips_marks_and_gathers(ptx: str) -> None:
    columns = 300
    values = (np.random.default_rng(5).standard_normal((NEURONS, columns)) * 30).astype(np.float32)
    values[:, ::3] = -1
    expected = np.clip(values + np.float32(BIAS), 0, np.float32(CLIP))
    marks = np.zeros(columns, np.uint8)
    grid = (-(-columns // 256), NEURONS // 32, 1)
    biases = np.full(NEURONS, BIAS, dtype=np.float32)
    emulate.run(ptx, grid, (256, 1, 1), 0, [values, biases, marks, columns], kernel="finish")
    np.testing.assert_array_equal(values, expected)
    places = np.flatnonzero(marks).astype(np.int32)
    assert len(places) == 200
    chosen = np.zeros((NEURONS, 200), np.float32)
    emulate.run(ptx, grid, (256, 1, 1), 0, [values, chosen, places, columns, 200], kernel="gather")
    np.testing.assert_array_equal(chosen, expected[:, places])


@pytest.mark.parametrize("random", [False, True], ids=["RadiX-Net", "random"])
def test_a_network_runs_in_the_emulator_and_its_rows_and_values_are_those_of_float64(
    tmp_path: Path, random: bool
) -> None:
    matrices = random_layers(NEURONS, 3) if random else radix_net(NEURONS)
    write_tsv_network(tmp_path / "net", matrices, NEURONS, 12, BIAS, CLIP)
    write_rows(tmp_path / "rows.tsv", (np.random.default_rng(2).random((40, NEURONS)) < 0.2).astype(np.float32))
    options = ["--inputs", str(tmp_path / "rows.tsv"), "--rows", "40", "--emulate"]
    ended = farm(tmp_path, {}, "bench", "graphchallenge", str(tmp_path / "net"), *options)
    assert ended.code == 0, ended.err
    assert ended.out.startswith("PASS  net: ")
    assert "as in float64" in ended.out
    assert ended.err.count("rows left") == 12

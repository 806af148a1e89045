"""Several layers in one kernel, in the emulator and through ptxas."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from codegen import emulate
from codegen.assemble import assemble
from codegen.chain import DONE_BYTES, KERNEL, Chain, chained
from codegen.errors import TemplateError
from codegen.layers import FloatArray, Weights
from codegen.spec import Clip, Conv2d
from codegen.template import Template, make_template
from codegen.tiling import Tiling
from codegen.toolchain import DEFAULT_LIMITS, find_toolchain

NEURONS, WIDTH, COLUMNS, CLIP, THREADS = 32, 64, 150, 4.0, 32
TILES = 3
"""Of WIDTH columns in memory: room for 192, of which COLUMNS are computed."""


@pytest.fixture(scope="module")
def templates() -> dict[int, Template]:
    """By the outputs of a group: two groups, and all in one."""
    spec = Conv2d(NEURONS, 1, WIDTH, NEURONS, 1, 1, epilogue=(Clip(0.0, CLIP),))
    tilings = {group: Tiling(THREADS, 1, 1, group, NEURONS, stages=0, listed=True) for group in (16, NEURONS)}
    toolchain = find_toolchain()
    return {
        group: make_template(spec, each, "compute_90", toolchain, DEFAULT_LIMITS) for group, each in tilings.items()
    }


@pytest.fixture(scope="module")
def layers() -> list[Weights]:
    rng = np.random.default_rng(4)
    kernels = rng.standard_normal((3, NEURONS, NEURONS)) * (rng.random((3, NEURONS, NEURONS)) < 0.2)
    shape = (NEURONS, NEURONS, 1, 1)
    return [
        Weights(each.astype(np.float32).reshape(shape), rng.standard_normal(NEURONS).astype(np.float32))
        for each in kernels
    ]


class Buffers:
    """What a chain reads and writes."""

    def __init__(self, tiles: int) -> None:
        rng = np.random.default_rng(5)
        self.input = rng.random((TILES, NEURONS, WIDTH)).astype(np.float32)
        self.output, self.spare = np.full_like(self.input, np.nan), np.full_like(self.input, np.nan)
        self.places = rng.permutation(TILES * WIDTH)[:COLUMNS].astype(np.int32)
        self.marks = np.zeros(TILES * WIDTH, np.uint8)
        self.done = np.zeros(tiles * DONE_BYTES // 4, np.uint32)

    def arguments(self, output: FloatArray, first: int, layers: int) -> list[Any]:
        step = NEURONS * WIDTH
        given = [self.input, output, TILES, step, np.array([COLUMNS], np.int32), self.places, self.marks]
        return [*given, self.spare, self.done, first, layers]


def columns_of(tiles: FloatArray) -> FloatArray:
    return tiles.transpose(0, 2, 1).reshape(-1, NEURONS)


def expected(columns: FloatArray, layers: list[Weights]) -> FloatArray:
    values = columns.astype(np.float64)
    for each in layers:
        values = np.clip(values @ each.kernel.reshape(NEURONS, NEURONS).T + each.bias, 0, CLIP)
    return values


@pytest.mark.parametrize("count", [1, 2, 3, 4, 8])
def test_layers_follow_one_another_and_after_the_last_comes_the_one_that_is_said(
    templates: dict[int, Template], layers: list[Weights], count: int
) -> None:
    chain = Chain(1, 1)
    given = Buffers(chain.tiles)
    ptx = chained(templates[NEURONS], layers, 1, chain)
    emulate.run(ptx, (1, 1, 1), (THREADS, 1, 1), 0, given.arguments(given.output, 0, count), kernel=KERNEL)
    last = given.output if count % 2 else given.spare
    in_turn = [layers[0], *([layers[1], layers[2]] * 4)][:count]
    wanted = expected(columns_of(given.input)[given.places], in_turn)
    np.testing.assert_allclose(columns_of(last)[:COLUMNS], wanted, rtol=1e-5, atol=1e-5)
    assert np.isnan(columns_of(last)[COLUMNS:]).all()
    assert given.done[0] == count
    assert np.array_equal(given.marks[:COLUMNS] != 0, (wanted > 0).any(axis=1))


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_what_a_block_made_in_the_layer_before_it_has_in_registers(
    templates: dict[int, Template], layers: list[Weights], count: int
) -> None:
    chain = Chain(1, 5)  # room for all columns at once
    given = Buffers(chain.tiles)
    ptx = chained(templates[NEURONS], layers, 1, chain)
    assert re.search(r"@!%kept ld\.global\.cg\.f32 %own\d+", ptx.decode())
    emulate.run(ptx, (5, 1, 1), (THREADS, 1, 1), 0, given.arguments(given.output, 0, count), kernel=KERNEL)
    last = given.output if count % 2 else given.spare
    in_turn = [layers[0], *([layers[1], layers[2]] * 4)][:count]
    wanted = expected(columns_of(given.input)[given.places], in_turn)
    np.testing.assert_allclose(columns_of(last)[:COLUMNS], wanted, rtol=1e-5, atol=1e-5)


def test_a_block_has_the_group_that_reads_what_it_made(templates: dict[int, Template]) -> None:
    half = np.ones((16, 16), np.float32)
    none = np.zeros_like(half)
    straight, crossed = (np.block(blocks) for blocks in ([[half, none], [none, half]], [[none, half], [half, none]]))
    shape, bias = (NEURONS, NEURONS, 1, 1), np.zeros(NEURONS, np.float32)
    layers = [Weights(each.reshape(shape), bias) for each in (straight, crossed, crossed)]
    loads = chained(templates[16], layers, 0, Chain(1, 1)).decode().count("ld.global.cg.f32")
    assert loads == len(layers) * NEURONS  # none for what others made
    mixed = [Weights(np.ones(shape, np.float32), bias)] * 2
    text = chained(templates[16], mixed, 0, Chain(1, 1)).decode()
    assert text.count("@!%kept ld.global.cg.f32") == text.count("ld.global.cg.f32 \t") == len(mixed) * NEURONS


def test_a_layer_with_more_inputs_than_outputs_is_no_chain() -> None:
    spec = Conv2d(2 * NEURONS, 1, WIDTH, NEURONS, 1, 1, epilogue=(Clip(0.0, CLIP),))
    tiling = Tiling(THREADS, 1, 1, 16, NEURONS, stages=0, listed=True)
    template = make_template(spec, tiling, "compute_90", find_toolchain(), DEFAULT_LIMITS)
    wide = Weights(np.ones((NEURONS, 2 * NEURONS, 1, 1), np.float32), np.zeros(NEURONS, np.float32))
    with pytest.raises(TemplateError, match="as many inputs as outputs"):
        chained(template, [wide], 0, Chain(1, 1))


@pytest.mark.parametrize("count", [1, 2])
def test_only_the_last_layer_marks_its_columns(
    templates: dict[int, Template], layers: list[Weights], count: int
) -> None:
    dead = Weights(layers[1].kernel, np.full(NEURONS, -1000, np.float32))
    given = Buffers(1)
    ptx = chained(templates[NEURONS], [layers[0], dead], 0, Chain(1, 1))
    emulate.run(ptx, (1, 1, 1), (THREADS, 1, 1), 0, given.arguments(given.output, 0, count), kernel=KERNEL)
    assert given.marks.any() == (count == 1)


@pytest.mark.parametrize("first", [0, 1, 2])
def test_each_group_of_a_layer_is_computed_for_each_tile_of_columns(
    templates: dict[int, Template], layers: list[Weights], first: int
) -> None:
    chain = Chain(1, 3)
    given = Buffers(chain.tiles)
    ptx = chained(templates[16], layers, 0, chain)
    emulate.run(ptx, (3, 1, 2), (THREADS, 1, 1), 0, given.arguments(given.output, first, 1), kernel=KERNEL)
    wanted = expected(columns_of(given.input)[given.places], [layers[first]])
    np.testing.assert_allclose(columns_of(given.output)[:COLUMNS], wanted, rtol=1e-5, atol=1e-5)
    assert given.done[:: DONE_BYTES // 4].tolist() == [2, 2, 2]


def test_the_parts_of_a_block_have_barriers_and_tiles_of_their_own(
    templates: dict[int, Template], layers: list[Weights]
) -> None:
    ptx = chained(templates[16], layers, 0, Chain(4, 2))
    made = assemble(ptx, "sm_90", find_toolchain())
    assert made.spill_bytes == 0
    text = ptx.decode()
    assert f".maxntid {4 * THREADS}, 1, 1" in text
    assert "ld.global.nc" not in text  # other blocks write what a layer reads
    assert "griddepcontrol" not in text

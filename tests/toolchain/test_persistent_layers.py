"""A persistent kernel of several layers, in the emulator and through ptxas."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from codegen.emulator.ptx import emulate
from codegen.errors import TemplateError
from codegen.ir.checkpoint import FloatArray, Weights
from codegen.ir.layer_spec import Conv2d, LayerSpec, LeakyRelu, Linear
from codegen.toolchain.ptxas import assemble
from codegen.toolchain.tools import find_toolchain
from farm.bench.graphchallenge.persistent_layers import DONE_BYTES, KERNEL, PersistentLayout, persistent_kernel
from tests.toolchain.square_layers import NEURONS, SPEC, WIDTH, columns_of, expected, square_layers

COLUMNS, THREADS, ARCH = 150, 32, "sm_90"
TILES = 3
"""Tiles of WIDTH columns in memory: room for 192, of which COLUMNS are computed."""
IN_BATCHES = PersistentLayout(NEURONS, THREADS, 1, 1)
"""One block, in five batches."""
AT_ONCE = PersistentLayout(NEURONS, THREADS, 1, 5)


@pytest.fixture(scope="module")
def layers() -> list[Weights]:
    return square_layers(0.2)


class Buffers:
    """Buffers of a persistent kernel."""

    def __init__(self, tiles: int) -> None:
        rng = np.random.default_rng(5)
        self.input = rng.random((TILES, NEURONS, WIDTH)).astype(np.float32)
        self.output, self.spare = np.full_like(self.input, np.nan), np.full_like(self.input, np.nan)
        self.places = rng.permutation(TILES * WIDTH)[:COLUMNS].astype(np.int32)
        self.marks = np.zeros(TILES * WIDTH, np.uint8)
        self.done = np.zeros(tiles * DONE_BYTES // 4, np.uint32)

    def run(
        self,
        layers: list[Weights],
        layout: PersistentLayout,
        first: int,
        count: int,
        again: int = 0,
        order: int | None = None,
        without: bytes = b"never",
    ) -> FloatArray:
        """Columns of the last layer, with warps in the order of a seed and some text removed from the kernel."""
        ptx = re.sub(without, b"", persistent_kernel(SPEC, layers, again, layout, ARCH))
        given: list[Any] = [self.input, self.output, TILES, NEURONS * WIDTH, np.array([COLUMNS], np.int32)]
        given += [self.places, self.marks, self.spare, self.done, first, count]
        grid = layout.group_blocks, 1, NEURONS // layout.group
        emulate.run(ptx, grid, (layout.threads * layout.parts, 1, 1), 0, given, kernel=KERNEL, interleaving=order)
        return columns_of(self.output if count % 2 else self.spare)


@pytest.mark.parametrize("layout", [IN_BATCHES, AT_ONCE], ids=["in batches", "at once"])
@pytest.mark.parametrize("count", [1, 2, 3, 4, 7])
def test_layers_run_in_order_and_repeat_from_a_given_one(
    layers: list[Weights], layout: PersistentLayout, count: int
) -> None:
    given = Buffers(layout.tiles)
    last = given.run(layers, layout, 0, count, again=1)
    in_turn = [layers[0], *([layers[1], layers[2]] * 4)][:count]
    wanted = expected(columns_of(given.input)[given.places], in_turn)
    np.testing.assert_allclose(last[:COLUMNS], wanted, rtol=1e-5, atol=1e-5)
    assert np.isnan(last[COLUMNS:]).all()
    assert np.array_equal(given.marks[:COLUMNS] != 0, (wanted > 0).any(axis=1))
    assert not given.marks[COLUMNS:].any()


@pytest.mark.parametrize("order", range(3))
@pytest.mark.parametrize(
    "layout",
    [PersistentLayout(16, THREADS, 1, 2), PersistentLayout(16, THREADS, 1, 5), PersistentLayout(8, THREADS, 1, 5)],
)
def test_groups_read_the_outputs_of_others_in_any_order_of_warps(
    layers: list[Weights], layout: PersistentLayout, order: int
) -> None:
    given = Buffers(layout.tiles)
    last = given.run(layers, layout, 0, 7, again=1, order=order)
    wanted = expected(columns_of(given.input)[given.places], [layers[0], *([layers[1], layers[2]] * 3)])
    np.testing.assert_allclose(last[:COLUMNS], wanted, rtol=1e-4, atol=1e-4)


def test_a_kernel_that_does_not_wait_goes_wrong_in_some_order(layers: list[Weights]) -> None:
    def wrong(order: int) -> bool:
        given, layout = Buffers(AT_ONCE.tiles), PersistentLayout(16, THREADS, 1, 5)
        last = given.run(layers, layout, 0, 7, again=1, order=order, without=rb"@%p bra \$poll_\S+;\n")
        right = expected(columns_of(given.input)[given.places], [layers[0], *([layers[1], layers[2]] * 3)])
        return not np.allclose(last[:COLUMNS], right, rtol=1e-4, atol=1e-4)

    assert any(map(wrong, range(10)))


def test_a_tile_counts_the_groups_that_have_done_a_layer_unless_there_is_only_one(layers: list[Weights]) -> None:
    for count, counted in ((1, 0), (4, 4)):
        given = Buffers(AT_ONCE.tiles)
        given.run(layers, AT_ONCE, 0, count)
        assert given.done[:: DONE_BYTES // 4].tolist() == [counted] * 5


def test_batches_reuse_the_memory_between_layers(layers: list[Weights]) -> None:
    given = Buffers(IN_BATCHES.tiles)
    given.run(layers, IN_BATCHES, 0, 2)
    assert np.isnan(columns_of(given.output)[THREADS:]).all()  # the next launch of these columns finds it in L2


def test_a_block_gets_the_group_that_reads_its_outputs() -> None:
    half = np.ones((16, 16), np.float32)
    none = np.zeros_like(half)
    straight, crossed = (np.block(blocks) for blocks in ([[half, none], [none, half]], [[none, half], [half, none]]))
    shape, bias = (NEURONS, NEURONS, 1, 1), np.zeros(NEURONS, np.float32)
    layout = PersistentLayout(16, THREADS, 1, 1)
    alone = [Weights(each.reshape(shape), bias) for each in (straight, crossed, crossed)]
    text = persistent_kernel(SPEC, alone, 0, layout, ARCH).decode()
    assert re.findall(r"ld\.global\.cg\.f32 %x", text) == []  # none for what others made
    mixed = [Weights(np.ones(shape, np.float32), bias)] * 2
    text = persistent_kernel(SPEC, mixed, 0, layout, ARCH).decode()
    assert text.count("ld.global.cg.f32 %own") == text.count("ld.global.cg.f32 %x") == len(mixed) * NEURONS


def test_a_block_uses_its_own_outputs_before_it_waits_for_others() -> None:
    layer = Weights(np.ones((NEURONS, NEURONS, 1, 1), np.float32), np.zeros(NEURONS, np.float32))
    text = persistent_kernel(SPEC, [layer, layer], 0, PersistentLayout(16, THREADS, 2, 1), ARCH).decode()
    begun, waited = text[text.index("$begin_0_1:") :].split("ld.acquire", 1)
    assert begun.count("fma.rn.f32") == 16 * 16
    assert "ld.global" not in begun
    assert waited.index("barrier.sync") < waited.index("ld.global.cg.f32 %x")


@pytest.mark.parametrize("count", [1, 2])
def test_only_the_last_layer_marks_its_columns(layers: list[Weights], count: int) -> None:
    dead = Weights(layers[1].kernel, np.full(NEURONS, -1000, np.float32))
    given = Buffers(1)
    given.run([layers[0], dead], IN_BATCHES, 0, count)
    assert given.marks.any() == (count == 1)


@pytest.mark.parametrize("first", [0, 1, 2])
def test_each_group_of_a_layer_is_computed_for_each_tile_of_columns(layers: list[Weights], first: int) -> None:
    layout = PersistentLayout(16, THREADS, 1, 3)
    given = Buffers(layout.tiles)
    wanted = expected(columns_of(given.input)[given.places], [layers[first]])
    np.testing.assert_allclose(given.run(layers, layout, first, 1)[:COLUMNS], wanted, rtol=1e-5, atol=1e-5)


def test_ptxas_cannot_merge_equal_outputs() -> None:
    equal = Weights(np.full((NEURONS, NEURONS, 1, 1), 1 / 16, np.float32), np.full(NEURONS, -0.3, np.float32))
    text = persistent_kernel(SPEC, [equal], 0, PersistentLayout(16, THREADS, 1, 1), ARCH).decode()
    firsts = re.findall(r"and\.b32 %t,%zero,(\d+);\nxor\.b32 %t,%t,(\d+);", text)
    # ptxas may know that the zero is 0 or -1: what a sum begins with must differ in both.
    assert len({int(mask) ^ int(bias) for mask, bias in firsts}) == 16


@pytest.mark.parametrize("arch", ["sm_80", "sm_100", "sm_120"])
def test_ptxas_accepts_the_kernel_for_other_architectures(layers: list[Weights], arch: str) -> None:
    assert (
        assemble(
            persistent_kernel(SPEC, layers, 0, PersistentLayout(16, 64, 4, 2), arch), arch, find_toolchain()
        ).spill_bytes
        == 0
    )


def test_the_parts_of_a_block_have_barriers_and_tiles_of_their_own(layers: list[Weights]) -> None:
    ptx = persistent_kernel(SPEC, layers, 0, PersistentLayout(16, 64, 4, 2), ARCH)
    made = assemble(ptx, ARCH, find_toolchain())
    assert made.spill_bytes == 0
    text = ptx.decode()
    assert f".maxntid {4 * 64}, 1, 1" in text
    assert "ld.global.nc" not in text  # other blocks write what a layer reads


@pytest.mark.parametrize(
    ("spec", "layout", "reason"),
    [
        (Conv2d(2 * NEURONS, 1, WIDTH, NEURONS, 1, 1), IN_BATCHES, "as many inputs as outputs"),
        (SPEC, PersistentLayout(12, THREADS, 1, 1), "whole groups"),
        (SPEC, PersistentLayout(16, THREADS, 9, 1), "no barriers for 9"),
        (Conv2d(NEURONS, 1, WIDTH, NEURONS, 1, 1, epilogue=(LeakyRelu(0.1),)), IN_BATCHES, "Clips only"),
        (Linear(NEURONS, NEURONS), IN_BATCHES, "1x1 convolutions"),
    ],
)
def test_unsuitable_layers_are_refused(
    spec: LayerSpec, layout: PersistentLayout, reason: str, layers: list[Weights]
) -> None:
    with pytest.raises(TemplateError, match=reason):
        persistent_kernel(spec, layers, 0, layout, ARCH)

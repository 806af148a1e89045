"""The first layers in pipelined batches, in the emulator and through ptxas."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from codegen.emulator.ptx import emulate
from codegen.errors import EmulationError, TemplateError
from codegen.ir.checkpoint import FloatArray, Weights
from codegen.ir.layer_spec import Clip, Conv2d, LayerSpec, LeakyRelu, Linear
from codegen.toolchain.ptxas import assemble
from codegen.toolchain.tools import find_toolchain
from farm.bench.graphchallenge.pipelined_batches import COUNTER_BYTES, KERNEL, PipelinedLayout, pipelined_kernel
from tests.toolchain.square_layers import CLIP, NEURONS, SPEC, WIDTH, columns_of, expected, square_layers

ROWS, ARCH = 110, "sm_90"
ONE_GROUP, TWO_GROUPS, FOUR_GROUPS = (
    PipelinedLayout(NEURONS, 32, 2, 2),
    PipelinedLayout(16, 32, 2, 2),
    PipelinedLayout(8, 32, 2, 2),
)
"""Batches of 128 columns."""
LIMIT = 2_000_000
"""Instruction limit of a run, which waits most of the time."""


@pytest.fixture(scope="module")
def layers() -> list[Weights]:
    return layers_of(3)


def layers_of(depth: int) -> list[Weights]:
    """Layers of which the last zeroes half of the columns."""
    *others, last = square_layers(0.1)[:depth]
    return [*others, Weights(last.kernel, last.bias - np.float32(6))]


class Buffers:
    """Buffers of the kernel."""

    def __init__(self, layout: PipelinedLayout, count: int, layers: int) -> None:
        rng = np.random.default_rng(5)
        shape = count * layout.columns // WIDTH, NEURONS, WIDTH
        self.input = rng.random(shape).astype(np.float32)
        self.output = np.full_like(self.input, np.nan)
        self.between = np.zeros((layers - 1) * layout.columns * NEURONS, np.float32)
        self.marks = np.zeros(count * layout.columns, np.uint8)
        self.counters = np.zeros(layout.counters * COUNTER_BYTES // 4, np.uint32)
        self._layout, self._count = layout, count

    def run(self, layers: list[Weights], columns: int, order: int = 0, without: bytes = b"never") -> FloatArray:
        """Columns of the last layer, with warps in the order of a seed and some text removed from the kernel."""
        layout = self._layout
        ptx = re.sub(without, b"", pipelined_kernel(SPEC, layers, layout, ARCH))
        # The emulator lacks these: cache hints, and the warp barrier, which its lock-step warps do not need.
        ptx = ptx.replace(b"bar.warp.sync -1;\n", b"").replace(b".L2::cache_hint", b"").replace(b",%once;", b";")
        ptx = re.sub(rb"createpolicy[^\n]*\n", b"", ptx)
        given: list[Any] = [self.input, self.output, self.between, self.marks, self.counters]
        given += [columns, layout.turns, self._count]
        grid = layout.group_blocks, 1, NEURONS // layout.group
        emulate.run(
            ptx,
            grid,
            (layout.threads, 1, 1),
            layout.shared_bytes,
            given,
            kernel=KERNEL,
            instruction_limit=LIMIT,
            interleaving=order,
        )
        return columns_of(self.output)


@pytest.mark.slow
@pytest.mark.parametrize("order", range(3))
@pytest.mark.parametrize(("layout", "count"), [(ONE_GROUP, 2), (TWO_GROUPS, 1), (TWO_GROUPS, 4), (FOUR_GROUPS, 4)])
@pytest.mark.parametrize("depth", [2, 3])
def test_all_batches_are_computed_and_marked_in_any_order_of_warps(
    layout: PipelinedLayout, count: int, depth: int, order: int
) -> None:
    given, layers = Buffers(layout, count, depth), layers_of(depth)
    rows = (count - 1) * layout.columns + ROWS
    found = given.run(layers, rows, order)
    wanted = expected(columns_of(given.input), layers)
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)
    live = (wanted[:rows] > 0).any(axis=1)
    assert rows / 4 < live.sum() < rows * 3 / 4
    assert np.array_equal(given.marks[:rows] != 0, live)
    assert not given.marks[rows:].any()
    assert (given.counters[:: COUNTER_BYTES // 4] == count * NEURONS // layout.group).all()


@pytest.mark.slow
@pytest.mark.parametrize(
    "without", [rb"@%p bra \$poll_\S+;\n", rb"@%p bra \$retry_\S+;\n"], ids=["for readers", "for values"]
)
def test_a_kernel_that_does_not_wait_goes_wrong_in_some_order(without: bytes) -> None:
    layers = layers_of(2)  # of three, two groups would keep in step by what they need of one another

    def wrong(order: int) -> bool:
        given = Buffers(TWO_GROUPS, 4, len(layers))
        try:
            found = given.run(layers, 4 * TWO_GROUPS.columns, order, without)
        except EmulationError:  # a value that was overwritten is waited for without end
            return True
        return not np.allclose(found, expected(columns_of(given.input), layers), rtol=1e-5, atol=1e-5)

    assert any(map(wrong, range(10)))


def test_an_even_number_of_batches_leaves_the_initial_tag(layers: list[Weights]) -> None:
    for count, negative in ((1, True), (2, False)):
        given = Buffers(ONE_GROUP, count, 3)
        given.run(layers, ROWS)
        assert np.signbit(given.between).all() == np.signbit(given.between).any() == negative
    assert [ONE_GROUP.batch_count(columns) for columns in (1, 128, 256, 257, 60_000)] == [2, 2, 2, 4, 470]


@pytest.mark.parametrize("arch", ["sm_80", "sm_100", "sm_120"])
def test_ptxas_accepts_the_kernel_for_other_architectures(layers: list[Weights], arch: str) -> None:
    assert assemble(pipelined_kernel(SPEC, layers, TWO_GROUPS, arch), arch, find_toolchain()).spill_bytes == 0


def test_ptxas_does_not_unroll_the_turns(layers: list[Weights]) -> None:
    ptx = pipelined_kernel(SPEC, layers, TWO_GROUPS, ARCH)
    assert ptx == pipelined_kernel(SPEC, layers, PipelinedLayout(16, 32, 2, 2), ARCH)
    assert b"ld.param.u32 %turns,[turns]" in ptx
    assert assemble(ptx, ARCH, find_toolchain()).spill_bytes == 0


@pytest.mark.parametrize(
    ("spec", "layout", "reason"),
    [
        (Conv2d(2 * NEURONS, 1, WIDTH, NEURONS, 1, 1), TWO_GROUPS, "as many inputs as outputs"),
        (SPEC, PipelinedLayout(12, 32, 2, 2), "whole groups"),
        (SPEC, PipelinedLayout(16, 32, 1, 2), "whole tiles"),
        (Conv2d(NEURONS, 1, WIDTH, NEURONS, 1, 1, epilogue=(LeakyRelu(0.1),)), TWO_GROUPS, "a Clip from 0"),
        (Conv2d(NEURONS, 1, WIDTH, NEURONS, 1, 1, epilogue=(Clip(-1.0, CLIP),)), TWO_GROUPS, "a Clip from 0"),
        (Conv2d(NEURONS, 1, WIDTH, NEURONS, 1, 1, epilogue=(Clip(-0.0, CLIP),)), TWO_GROUPS, "a Clip from 0"),
        (Conv2d(NEURONS, 1, WIDTH, NEURONS, 1, 1, epilogue=(Clip(0.0, -1.0),)), TWO_GROUPS, "a Clip from 0"),
        (Conv2d(NEURONS, 1, WIDTH, NEURONS, 1, 1, epilogue=(Clip(0.0), Clip(-2.0, -0.0))), TWO_GROUPS, "a Clip from 0"),
        (Linear(NEURONS, NEURONS), TWO_GROUPS, "1x1 convolutions"),
    ],
)
def test_unsuitable_layers_are_refused(
    spec: LayerSpec, layout: PipelinedLayout, reason: str, layers: list[Weights]
) -> None:
    with pytest.raises(TemplateError, match=reason):
        pipelined_kernel(spec, layers, layout, ARCH)

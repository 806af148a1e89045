"""Warps in an order that is drawn."""

from __future__ import annotations

import numpy as np
import pytest

from codegen.emulator.ptx import emulate
from codegen.errors import EmulationError
from tests.unit.bench import FIRST, INDEX, launch, words

WARP = 32
WAITS = (
    "setp.ne.u32 %p0, %r8, 0; @%p0 bra write;\n"
    "again: ld.relaxed.gpu.global.u32 %r4, [%rd1+128]; setp.eq.u32 %p1, %r4, 0; @%p1 bra again;\n"
    "add.u32 %r4, %r4, 1; st.global.u32 [%rd1], %r4; ret;\n"
    "write: st.relaxed.gpu.global.u32 [%rd1], 5; ret;"
)
"""The first block waits for what the second writes, whose code is behind."""
LAST = "ld.param.u64 %rd2, [a]; st.global.u32 [%rd2], %r8; ret;"
"""Each block writes its number to the same place."""


def last_of(blocks: int, order: int) -> int:
    out = words(1)
    launch(INDEX + LAST, [out], threads=WARP, blocks=blocks, interleaving=order)
    return int(out[0])


@pytest.mark.parametrize("order", range(5))
def test_who_waits_for_code_that_is_behind_gets_what_that_writes(order: int) -> None:
    out = words(2 * WARP)
    launch(INDEX + FIRST + WAITS, [out], threads=WARP, blocks=2, interleaving=order)
    assert out.tolist() == [6] * WARP + [5] * WARP


def test_without_it_the_loop_does_not_end() -> None:
    with pytest.raises(EmulationError, match="the loop around this one does not end"):
        launch(INDEX + FIRST + WAITS, [words(2 * WARP)], threads=WARP, blocks=2)


def test_an_order_is_the_same_each_time_and_others_end_otherwise() -> None:
    ends = [last_of(8, order) for order in range(20)]
    assert ends == [last_of(8, order) for order in range(20)]
    assert len(set(ends)) > 4


def test_a_block_passes_its_barrier_while_another_waits_for_what_it_writes_behind_it() -> None:
    out = words(4 * WARP)
    text = WAITS.replace("+128]", "+256]").replace("write:", "write: bar.sync 0;")
    launch(INDEX + FIRST + text, [out], threads=2 * WARP, blocks=2, interleaving=1)
    assert out.tolist() == [6] * 2 * WARP + [5] * 2 * WARP


def test_the_lanes_of_a_warp_meet_again() -> None:
    out = words(2 * WARP)
    text = "mov.u32 %r4, 0; again: add.u32 %r4, %r4, 1; setp.lt.u32 %p1, %r4, %r0; @%p1 bra again;\n"
    text += "shfl.sync.bfly.b32 %r4, %r4, 1, 31, -1; st.global.u32 [%rd1], %r4; ret;"
    launch(INDEX + FIRST + text, [out], threads=2 * WARP, interleaving=3)
    assert np.array_equal(out, np.maximum(np.arange(2 * WARP) ^ 1, 1))


def test_blocks_of_parts_of_warps_are_refused() -> None:
    with pytest.raises(EmulationError, match="blocks of 48 threads, 1 a cluster: only blocks of whole warps"):
        launch(INDEX + FIRST + "ret;", [words(48)], threads=48, interleaving=0)


def test_blocks_that_do_not_run_at_once_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(emulate, "_MEMORY_BYTES", 1)
    with pytest.raises(EmulationError, match="only 1 of 2 blocks fit in memory"):
        launch(INDEX + FIRST + "ret;", [words(2 * WARP)], threads=WARP, blocks=2, interleaving=0)

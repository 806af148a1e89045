"""Loops, branches and predicates, lane by lane; what the emulator does not know is an error."""

from __future__ import annotations

import numpy as np
import pytest

from codegen.errors import EmulationError, PtxError
from tests.unit.bench import FIRST, INDEX, SHARED, launch, words


def test_a_loop_runs_as_often_as_each_lane_needs() -> None:
    out = words(5)
    trace = launch(
        INDEX + FIRST + "mov.u32 %r4, 0; mov.u32 %r5, 0;\n"
        "again: setp.ge.u32 %p1, %r4, %r0; @%p1 bra done;\n"
        "add.u32 %r4, %r4, 1; add.u32 %r5, %r5, %r4; bra.uni again;\n"
        "done: st.global.u32 [%rd1], %r5; ret;",
        [out],
        threads=5,
    )
    assert out.tolist() == [0, 1, 3, 6, 10]
    assert trace.executed["add.u32"] == 2 * (1 + 2 + 3 + 4)
    assert trace.executed["bra"] == 5
    assert trace.executed["bra"] + trace.executed["bra.uni"] == 5 + 10


def test_a_barrier_after_a_branch_is_for_every_lane() -> None:
    out = words(8)
    launch(
        INDEX + FIRST + SHARED + "and.b32 %r4, %r0, 1; setp.eq.u32 %p1, %r4, 0; @%p1 bra even;\n"
        "mov.u32 %r5, 100; bra join;\neven: mov.u32 %r5, 200;\n"
        "join: st.shared.u32 [%r2], %r5; bar.sync 0;\n"
        "xor.b32 %r6, %r2, 4; ld.shared.u32 %r7, [%r6]; st.global.u32 [%rd1], %r7; ret;",
        [out],
        threads=8,
        shared_bytes=32,
    )
    assert out.tolist() == [100, 200] * 4


def test_nested_branches_reconverge() -> None:
    out = words(8)
    launch(
        INDEX + FIRST + "mov.u32 %r5, 0; setp.lt.u32 %p1, %r0, 4; setp.lt.u32 %p2, %r0, 2; setp.lt.u32 %p3, %r0, 6;\n"
        "@!%p1 bra b; @!%p2 bra a; or.b32 %r5, %r5, 1; bra c; a: or.b32 %r5, %r5, 2; bra c;\n"
        "b: @%p3 bra c; or.b32 %r5, %r5, 4; c: or.b32 %r5, %r5, 8; st.global.u32 [%rd1], %r5; ret;",
        [out],
        threads=8,
    )
    assert out.tolist() == [9, 9, 10, 10, 8, 8, 12, 12]


@pytest.mark.parametrize("guard", ["%p1", "!%p1"])
def test_a_predicate_decides_lane_by_lane(guard: str) -> None:
    out = words(4)
    trace = launch(INDEX + FIRST + f"setp.lt.u32 %p1, %r0, 1; @{guard} st.global.u32 [%rd1], 5; ret;", [out])
    expected = [5, 0, 0, 0] if guard == "%p1" else [0, 5, 5, 5]
    assert out.tolist() == expected
    assert trace.executed["st.global.u32"] == expected.count(5)


def test_an_instruction_may_write_its_own_predicate() -> None:
    out = words(4)
    body = "setp.lt.u32 %p1, %r0, 3; @%p1 setp.lt.u32 %p1, %r0, 1; selp.u32 %r4, 1, 0, %p1;"
    launch(INDEX + FIRST + body + "st.global.u32 [%rd1], %r4; ret;", [out])
    assert out.tolist() == [1, 0, 0, 0]


@pytest.mark.parametrize("opcode", ["ret", "exit"])
def test_a_lane_may_end_early(opcode: str) -> None:
    out = words(4)
    launch(INDEX + FIRST + f"setp.ge.u32 %p1, %r0, 2; @%p1 {opcode}; bar.sync 0; st.global.u32 [%rd1], 5; ret;", [out])
    assert out.tolist() == [5, 5, 0, 0]


def test_a_body_may_end_in_a_label() -> None:
    out = words(4)
    launch(INDEX + FIRST + "setp.ge.u32 %p1, %r0, 2; @%p1 bra end; st.global.u32 [%rd1], 5; end:", [out])
    assert out.tolist() == [5, 5, 0, 0]


def test_a_loop_without_end_is_an_error() -> None:
    with pytest.raises(EmulationError, match=r"line \d+: `bra again`: more than 1000 instructions"):
        launch("again: bra again;", [words(1)], limit=1000)


@pytest.mark.parametrize(
    "instruction",
    [
        "sin.approx.f32 %f1, %f2",
        "add.rn.ftz.f32 %f1, %f1, %f2",
        "fma.rz.f32 %f1, %f1, %f2, %f1",
        "add.sat.s32 %r1, %r1, %r2",
        "atom.global.add.u32 %r1, [%rd1], 1",
        "bar.warp.sync -1",
        "bar.sync 0, 64",
        "ld.f32 %f1, [%rd1]",
        "ld.local.f32 %f1, [%rd1]",
        "ld.acquire.gpu.global.u32 %r1, [%rd1]",
        "add.u32 %r1, %rd1, %r2",
        "add.u32 %r1, %r2",
        "mov.u32 %r1, %clock",
        "mov.u32 %r1, nowhere",
        "add.f32 %f1, %f1, 1",
        "cvt.rn.s32.f32 %r1, %f1",
        "cp.async.bulk.commit_group",
        "bra nowhere",
        "ld.param.u64 %rd1, [b]",
    ],
)
def test_what_the_emulator_does_not_know_is_an_error_that_names_it(instruction: str) -> None:
    with pytest.raises(EmulationError) as error:
        launch(f"\n{instruction}; ret;", [words(1)])
    assert f"line 8: `{instruction}`: " in str(error.value)


def test_code_that_no_lane_reaches_is_not_read() -> None:
    out = words(4)
    body = INDEX + FIRST + "st.global.u32 [%rd1], 5; @!%p1 bra end; warble.f99 %nothing, 5+; end: ret;"
    launch("setp.ne.u32 %p1, 1, 1;" + body, [out])
    assert out.tolist() == [5] * 4
    with pytest.raises(PtxError, match=r"line 7: unknown operand '5\+'"):
        launch("warble.f99 %nothing, 5+; ret;", [out])
    with pytest.raises(PtxError, match="line 8: not an instruction: '<html>'"):
        launch("ret;\n<html>; ret;", [out])


STREAMS = """
    setp.ge.u32 %p1, %r8, 1; @%p1 bra later;
    setp.eq.u32 %p2, %r0, 1; @%p2 bra odd; st.shared.u32 [%r2], 7; odd: @%p2 st.shared.u32 [%r2], 9; bar.sync 0;
    bra neighbour;
later: setp.ge.u32 %p1, %r8, 3; @%p1 bra last;
    add.u32 %r7, %r0, 100; mov.u32 %r5, 0;
again: st.shared.u32 [%r2], %r7; bar.sync 0; xor.b32 %r6, %r2, 4; ld.shared.u32 %r7, [%r6]; bar.sync 0;
    add.u32 %r7, %r7, %r8; add.u32 %r5, %r5, 1; setp.lt.u32 %p2, %r5, %r8; @%p2 bra again; bra store;
last: cp.async.ca.shared.global [%r2], [%rd1], 4; cp.async.commit_group; cp.async.wait_group 0; bar.sync 0;
neighbour: xor.b32 %r6, %r2, 4; ld.shared.u32 %r7, [%r6+{offset}];
store: st.global.u32 [%rd1], %r7; ret;
"""
"""Block 0 swaps constants, blocks 1 and 2 swap and add in loops of one and two rounds, block 3 swaps its input."""


def test_blocks_may_run_different_streams() -> None:
    expected = [[9, 7], [102, 101], [104, 105], [27, 26]]
    for chosen in ([0, 1, 2, 3], [3, 1], [2, 0], [2]):
        out = np.arange(20, 28, dtype=np.uint32)
        body = INDEX + FIRST + SHARED + STREAMS.format(offset=0)
        trace = launch(body, [out], threads=2, blocks=4, shared_bytes=8, chosen=[(x, 0, 0) for x in chosen])
        for x, values in enumerate(out.reshape(4, 2).tolist()):
            assert values == (expected[x] if x in chosen else [20 + 2 * x, 21 + 2 * x]), chosen
        loops = 2 * sum(x for x in chosen if x in (1, 2))
        assert trace.executed.get("setp.lt.u32", 0) == loops
        assert trace.executed["ld.shared.u32"] == loops + 2 * len({0, 3} & set(chosen))


def test_a_fault_names_the_thread_whatever_stream_its_block_runs() -> None:
    body = INDEX + FIRST + SHARED + "setp.lt.u32 %p1, %r8, 3; @%p1 ret;" + STREAMS.format(offset=4)
    with pytest.raises(EmulationError, match=r"thread \(0, 0, 0\) of block \(3, 0, 0\): byte 8 of shared memory"):
        launch(body, [words(8)], threads=2, blocks=4, shared_bytes=8)


def test_hints_and_fences_change_nothing() -> None:
    out = np.arange(4, dtype=np.uint32)
    launch(
        INDEX + FIRST + "prefetch.global.L2 [%rd1]; ld.global.nc.L1::no_allocate.L2::128B.u32 %r4, [%rd1]; membar.gl;"
        "add.u32 %r4, %r4, 1; fence.acq_rel.gpu; st.global.cs.u32 [%rd1], %r4; ret;",
        [out],
    )
    assert out.tolist() == [1, 2, 3, 4]

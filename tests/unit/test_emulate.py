"""Control flow, memory and what no program may do, on small kernels written by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from codegen import emulate
from codegen.emulate import Trace
from codegen.errors import EmulationError

REGISTERS = ".reg .pred %p<9>; .reg .b16 %rs<9>; .reg .f32 %f<9>; .reg .b32 %r<99>; .reg .b64 %rd<9>;"

INDEX = "mov.u32 %r0, %tid.x; mov.u32 %r8, %ctaid.x; mov.u32 %r9, %ntid.x; mad.lo.s32 %r1, %r8, %r9, %r0;"
"""%r0 the thread of the block, %r1 the thread of the grid, %rd1 where its word of the first argument is."""
FIRST = "ld.param.u64 %rd0, [a]; mad.wide.u32 %rd1, %r1, 4, %rd0;"
SHARED = "shl.b32 %r2, %r0, 2; mov.u32 %r3, tile; add.s32 %r2, %r2, %r3;"
"""%r2 the thread's word of the shared tile, %r3 the tile."""


def launch(
    body: str,
    arguments: Sequence[NDArray[Any] | int | float],
    threads: int = 4,
    blocks: int = 1,
    shared_bytes: int = 0,
    parameters: str = ".param .u64 a",
    chosen: Sequence[tuple[int, int, int]] | None = None,
    limit: int = 10_000,
) -> Trace:
    text = f"""
.version 9.0
.target sm_80
.extern .shared .align 16 .b8 tile[];
.visible .entry k({parameters}) {{
{REGISTERS}
{body}
}}"""
    return emulate.run(
        text, (blocks, 1, 1), (threads, 1, 1), shared_bytes, arguments, blocks=chosen, instruction_limit=limit
    )


def words(count: int) -> NDArray[np.uint32]:
    return np.zeros(count, dtype=np.uint32)


# Launch.


def test_every_thread_knows_its_place() -> None:
    registers = [f"%{name}.{axis}" for name in ("tid", "ctaid", "ntid", "nctaid") for axis in "xyz"]
    stores = "\n".join(f"mov.u32 %r20, {r}; st.global.u32 [%rd1+{4 * i}], %r20;" for i, r in enumerate(registers))
    text = f"""
.version 9.0
.target sm_80
.visible .entry k(.param .u64 a) {{ {REGISTERS}
mov.u32 %r1, %ctaid.z; mov.u32 %r2, %nctaid.y; mov.u32 %r3, %ctaid.y; mad.lo.u32 %r1, %r1, %r2, %r3;
mov.u32 %r2, %nctaid.x; mov.u32 %r3, %ctaid.x; mad.lo.u32 %r1, %r1, %r2, %r3;
mov.u32 %r2, %ntid.z; mov.u32 %r3, %tid.z; mad.lo.u32 %r1, %r1, %r2, %r3;
mov.u32 %r2, %ntid.y; mov.u32 %r3, %tid.y; mad.lo.u32 %r1, %r1, %r2, %r3;
mov.u32 %r2, %ntid.x; mov.u32 %r3, %tid.x; mad.lo.u32 %r1, %r1, %r2, %r3;
ld.param.u64 %rd1, [a]; mad.wide.u32 %rd1, %r1, 48, %rd1;
{stores} ret; }}"""
    grid, block = (2, 3, 2), (4, 2, 3)
    places = np.zeros((2, 3, 2, 3, 2, 4, 12), dtype=np.uint32)
    trace = emulate.run(text, grid, block, 0, [places])
    assert trace.threads == 12 * 24
    for cz, cy, cx, tz, ty, tx in np.ndindex(places.shape[:-1]):
        assert places[cz, cy, cx, tz, ty, tx].tolist() == [tx, ty, tz, cx, cy, cz, *block, *grid]


def test_only_the_chosen_blocks_run() -> None:
    out = words(12)
    body = INDEX + FIRST + "st.global.u32 [%rd1], 7; ret;"
    trace = launch(body, [out], threads=3, blocks=4, chosen=[(1, 0, 0), (3, 0, 0)])
    assert out.tolist() == [0, 0, 0, 7, 7, 7, 0, 0, 0, 7, 7, 7]
    assert trace.threads == 6
    with pytest.raises(EmulationError, match=r"block \(4, 0, 0\) is outside of the grid"):
        launch(body, [out], threads=3, blocks=4, chosen=[(4, 0, 0)])


def test_blocks_that_do_not_fit_together_run_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(emulate, "_MEMORY_BYTES", 1)
    out = words(12)
    body = (
        INDEX + FIRST + SHARED + "st.shared.u32 [%r2], %r1; ld.shared.u32 %r4, [%r2]; st.global.u32 [%rd1], %r4; ret;"
    )
    trace = launch(body, [out], threads=3, blocks=4, shared_bytes=12)
    assert out.tolist() == list(range(12))
    assert (trace.threads, trace.executed["ret"]) == (12, 12)


def test_numbers_are_passed_by_value() -> None:
    out = words(4)
    launch(
        "ld.param.u64 %rd0, [a]; ld.param.u32 %r1, [n]; ld.param.f32 %f1, [x]; ld.param.u64 %rd2, [m];"
        "st.global.u32 [%rd0], %r1; st.global.f32 [%rd0+4], %f1; st.global.u64 [%rd0+8], %rd2; ret;",
        [out, -3, 1.5, 2**40],
        threads=1,
        parameters=".param .u64 a, .param .s32 n, .param .f32 x, .param .u64 m",
    )
    assert out.tolist() == [2**32 - 3, 0x3FC00000, 0, 256]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([words(1), words(1)], "takes 1 arguments, 2 were given"),
        ([np.zeros((4, 4), dtype=np.float32)[:, ::2]], "contiguous"),
        ([1.5], "is no integer"),
    ],
)
def test_arguments_that_do_not_fit_are_errors(arguments: list[Any], message: str) -> None:
    with pytest.raises(EmulationError, match=message):
        launch("ret;", arguments)


def test_the_kernel_is_named_if_there_are_several() -> None:
    text = ".version 9.0\n.target sm_80\n.entry one() { ret; }\n.entry two() .maxntid 32 { ret; exit; }"
    with pytest.raises(EmulationError, match="one, two"):
        emulate.run(text, (1, 1, 1), (1, 1, 1), 0, [])
    with pytest.raises(EmulationError, match="three"):
        emulate.run(text, (1, 1, 1), (1, 1, 1), 0, [], kernel="three")
    assert emulate.run(text, (1, 1, 1), (1, 1, 1), 0, [], kernel="one").executed == {"ret": 1}
    with pytest.raises(EmulationError, match="compiled for 32 threads, the launch has 64"):
        emulate.run(text, (1, 1, 1), (64, 1, 1), 0, [], kernel="two")


# Control flow.


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
    assert trace.per_thread("bra") == (5 + 10) / 5


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
    """Also where no lane would reach it: nothing is skipped."""
    with pytest.raises(EmulationError) as error:
        launch(f"ret;\n{instruction};", [words(1)])
    assert f"line 8: `{instruction}`: " in str(error.value)


def test_hints_and_fences_change_nothing() -> None:
    out = np.arange(4, dtype=np.uint32)
    launch(
        INDEX + FIRST + "prefetch.global.L2 [%rd1]; ld.global.nc.L1::no_allocate.L2::128B.u32 %r4, [%rd1]; membar.gl;"
        "add.u32 %r4, %r4, 1; fence.acq_rel.gpu; st.global.cs.u32 [%rd1], %r4; ret;",
        [out],
    )
    assert out.tolist() == [1, 2, 3, 4]


# Global memory.


def test_vectors_are_loaded_and_stored_whole() -> None:
    values = np.arange(16, dtype=np.float32)
    launch(
        "ld.param.u64 %rd0, [a]; mov.u32 %r0, %tid.x; mad.wide.u32 %rd1, %r0, 16, %rd0;"
        "ld.global.v4.f32 {%f1, %f2, %f3, %f4}, [%rd1]; st.global.v2.f32 [%rd1], {%f4, %f3};"
        "st.global.v2.f32 [%rd1+8], {%f2, %f1}; ret;",
        [values],
    )
    assert values.reshape(4, 4).tolist() == np.arange(16).reshape(4, 4)[:, ::-1].tolist()


def test_lanes_may_reach_different_arrays() -> None:
    first, second = words(2), words(4)
    launch(
        INDEX + "ld.param.u64 %rd0, [a]; ld.param.u64 %rd2, [b]; setp.lt.u32 %p1, %r0, 2;"
        "selp.b64 %rd3, %rd0, %rd2, %p1; mad.wide.u32 %rd3, %r0, 4, %rd3; st.global.u32 [%rd3], %r0; ret;",
        [first, second],
        parameters=".param .u64 a, .param .u64 b",
    )
    assert (first.tolist(), second.tolist()) == ([0, 1], [0, 0, 2, 3])


def test_addresses_pass_through_the_generic_space() -> None:
    out = words(4)
    launch(
        INDEX + FIRST + "cvta.to.global.u64 %rd2, %rd1; mov.u64 %rd3, tile; cvta.shared.u64 %rd3, %rd3;"
        "cvta.to.shared.u64 %rd3, %rd3; mad.wide.u32 %rd3, %r0, 4, %rd3; st.shared.u32 [%rd3], 6;"
        "ld.shared.u32 %r4, [%rd3]; cvta.global.u64 %rd2, %rd2; st.global.u32 [%rd2], %r4; ret;",
        [out],
        shared_bytes=16,
    )
    assert out.tolist() == [6] * 4


@pytest.mark.parametrize("access", ["ld.global.f32 %f1, [%rd1+{}]", "st.global.f32 [%rd1+{}], %f1"])
@pytest.mark.parametrize(
    ("offset", "thread", "reason"),
    [
        (4, 3, "byte 16 of buffer 0, which has 16 bytes"),
        (-4, 0, "byte -4 of buffer 0, which has 16 bytes"),
        (2, 0, "is no multiple of 4"),
        (2**20, 0, "byte 1048576 of buffer 0"),
    ],
)
def test_an_access_outside_of_the_arrays_names_thread_and_address(
    access: str, offset: int, thread: int, reason: str
) -> None:
    with pytest.raises(EmulationError) as error:
        launch(
            INDEX + FIRST + "\n" + access.format(offset) + "; ret;",
            [words(4), words(4)],
            parameters=".param .u64 a, .param .u64 b",
        )
    message = str(error.value)
    assert f"line 8: `{access.format(offset)}`: thread ({thread}, 0, 0) of block (0, 0, 0): address 0x" in message
    assert reason in message


def test_an_address_cut_to_32_bits_reaches_nothing() -> None:
    with pytest.raises(EmulationError, match="outside"):
        launch(
            INDEX + FIRST + "cvt.u32.u64 %r4, %rd1; cvt.u64.u32 %rd1, %r4; ld.global.f32 %f1, [%rd1]; ret;", [words(4)]
        )


def test_a_vector_is_aligned_to_its_whole_size() -> None:
    with pytest.raises(EmulationError, match="no multiple of 8"):
        launch(INDEX + FIRST + "ld.global.v2.f32 {%f1, %f2}, [%rd1+4]; ret;", [words(9)], threads=1)


def test_a_lane_that_is_masked_out_may_point_anywhere() -> None:
    out = words(2)
    launch(INDEX + FIRST + "setp.lt.u32 %p1, %r0, 2; @%p1 st.global.u32 [%rd1], 1; ret;", [out], threads=4)
    assert out.tolist() == [1, 1]


def test_an_array_that_is_read_only_stays_so() -> None:
    constant = words(4)
    constant.flags.writeable = False
    launch(INDEX + FIRST + "ld.global.u32 %r4, [%rd1]; ret;", [constant])
    with pytest.raises(EmulationError, match="buffer 0, which is read-only"):
        launch(INDEX + FIRST + "st.global.u32 [%rd1], 1; ret;", [constant])


# Shared memory and barriers.


def test_shared_variables_follow_each_other() -> None:
    """Static ones first, aligned, then the dynamic memory."""
    text = f"""
.version 9.0
.target sm_80
.extern .shared .align 16 .b8 tile[];
.shared .align 4 .b8 five[20];
.visible .entry k(.param .u64 a) {{ {REGISTERS} .shared .align 8 .b8 eight[8];
mov.u32 %r1, five; mov.u32 %r2, eight; mov.u32 %r3, tile; sub.u32 %r4, %r2, %r1; sub.u32 %r5, %r3, %r1;
ld.param.u64 %rd0, [a]; st.global.v2.u32 [%rd0], {{%r4, %r5}}; st.shared.u32 [tile+12], 1; ret; }}"""
    out = words(2)
    emulate.run(text, (1, 1, 1), (1, 1, 1), 16, [out])
    assert out.tolist() == [24, 32]
    with pytest.raises(EmulationError, match="byte 44 of shared memory, which has 40 bytes"):
        emulate.run(text, (1, 1, 1), (1, 1, 1), 8, [out])


def test_each_block_has_its_own_shared_memory() -> None:
    out = words(6)
    body = "st.shared.u32 [%r2], %r1; bar.sync 0; ld.shared.u32 %r4, [tile]; st.global.u32 [%rd1], %r4; ret;"
    launch(INDEX + FIRST + SHARED + body, [out], threads=3, blocks=2, shared_bytes=12)
    assert out.tolist() == [0, 0, 0, 3, 3, 3]


@pytest.mark.parametrize("kind", ["u8", "u16", "u32", "u64"])
def test_shared_memory_holds_every_size(kind: str) -> None:
    size = int(kind[1:]) // 8
    register = {1: "%rs1", 2: "%rs1", 4: "%r9", 8: "%rd3"}[size]
    out = words(4)
    launch(
        INDEX + FIRST + f"mov.u32 %r3, tile; mad.lo.u32 %r2, %r0, {2 * size}, %r3; add.u32 %r4, %r0, 7;"
        f"cvt.{'u16' if size < 2 else kind}.u32 {register}, %r4; st.shared.v2.{kind} [%r2], {{{register}, {register}}};"
        f"ld.shared.{kind} {register}, [%r2+{size}]; cvt.u32.{kind} %r5, {register}; st.global.u32 [%rd1], %r5; ret;",
        [out],
        shared_bytes=8 * size,
    )
    assert out.tolist() == [7, 8, 9, 10]


@pytest.mark.parametrize(
    ("access", "reason"),
    [
        ("ld.shared.f32 %f1, [%r2]", "byte 0 of shared memory was never written"),
        ("ld.shared.u8 %r4, [%r2+3]", "byte 3 of shared memory was never written"),
        ("ld.shared.f32 %f1, [%r2+4]", "byte 16 of shared memory, which has 16 bytes"),
        ("st.shared.f32 [%r2+-4], %f1", "byte -4 of shared memory"),
        ("st.shared.f32 [0], %f1", "byte -1024 of shared memory"),
        ("st.shared.f32 [%r2+1], %f1", "is no multiple of 4"),
    ],
)
def test_a_wrong_access_to_shared_memory_is_an_error(access: str, reason: str) -> None:
    with pytest.raises(EmulationError) as error:
        launch(INDEX + SHARED + access + "; ret;", [words(1)], shared_bytes=16)
    assert access in str(error.value)
    assert reason in str(error.value)


def test_a_value_that_looks_like_junk_may_be_stored() -> None:
    out = words(4)
    body = "st.shared.u32 [%r2], 0xFFFCDCDC; ld.shared.u32 %r4, [%r2]; st.global.u32 [%rd1], %r4; ret;"
    launch(INDEX + FIRST + SHARED + body, [out], shared_bytes=16)
    assert out.tolist() == [0xFFFCDCDC] * 4


def test_a_register_that_was_never_written_is_no_number() -> None:
    out = np.zeros(4, dtype=np.float32)
    launch(INDEX + FIRST + "st.global.f32 [%rd1], %f5; ret;", [out])
    assert np.isnan(out).all()


NEIGHBOUR = "xor.b32 %r6, %r2, 4; ld.shared.u32 %r7, [%r6]; st.global.u32 [%rd1], %r7; ret;"


def test_another_threads_word_needs_a_barrier() -> None:
    out = words(4)
    launch(INDEX + FIRST + SHARED + "st.shared.u32 [%r2], %r0; bar.sync 0;" + NEIGHBOUR, [out], shared_bytes=16)
    assert out.tolist() == [1, 0, 3, 2]
    with pytest.raises(EmulationError, match="was written by another thread since the last barrier"):
        launch(INDEX + FIRST + SHARED + "st.shared.u32 [%r2], %r0;" + NEIGHBOUR, [out], shared_bytes=16)


def test_what_a_barrier_published_stays_readable() -> None:
    out = words(4)
    body = "st.shared.u32 [%r2], %r0; bar.sync 0; st.shared.u32 [%r2+16], %r0;" + NEIGHBOUR
    launch(INDEX + FIRST + SHARED + body, [out], shared_bytes=32)
    assert out.tolist() == [1, 0, 3, 2]


@pytest.mark.parametrize(
    "body",
    [
        "@%p1 bar.sync 0; bar.sync 0; ret;",
        "@%p1 bra a; bar.sync 0; bra b; a: bar.sync 0; b: ret;",
        "mov.u32 %r4, 0; l: bar.sync 0; add.u32 %r4, %r4, 1; setp.lt.u32 %p2, %r4, %r0; @%p2 bra l; bar.sync 0; ret;",
    ],
)
def test_a_barrier_for_a_part_of_the_block_is_an_error(body: str) -> None:
    with pytest.raises(
        EmulationError, match=r"line \d+: `.*barrier|only a part of the block waits at this barrier: thread"
    ):
        launch(INDEX + "setp.lt.u32 %p1, %r0, 2; " + body, [words(1)])


def test_blocks_may_differ_in_their_barriers() -> None:
    body = "setp.eq.u32 %p1, %r8, 0; @%p1 bra end; bar.sync 0; bar.sync 0; end: bar.sync 0; ret;"
    trace = launch(INDEX + body, [words(1)], blocks=2)
    assert trace.executed["bar.sync"] == 4 + 3 * 4


# Asynchronous copies.

COPY = "cp.async.ca.shared.global [%r2], [%rd1], 4;"
COMMIT = "cp.async.commit_group;"
READ = "ld.shared.u32 %r4, [%r2]; add.u32 %r4, %r4, 10; st.global.u32 [%rd1], %r4; ret;"


def copies(body: str) -> list[int]:
    memory = np.arange(4, dtype=np.uint32)
    launch(INDEX + FIRST + SHARED + body, [memory], shared_bytes=16)
    return [int(value) for value in memory]


@pytest.mark.parametrize("wait", [COMMIT + "cp.async.wait_group 0;", "cp.async.wait_all;"])
def test_a_copy_is_there_after_the_wait(wait: str) -> None:
    assert copies(COPY + wait + READ) == [10, 11, 12, 13]
    assert copies(COPY + wait + "bar.sync 0;" + READ.replace("[%r2]", "[tile]")) == [10] * 4


@pytest.mark.parametrize(
    "wait",
    [
        "",
        "bar.sync 0;",
        "cp.async.wait_group 0;",
        COMMIT + "bar.sync 0;",
        COMMIT + "cp.async.wait_group 1; bar.sync 0;",
        COMMIT + COMMIT + "cp.async.wait_group 2; bar.sync 0;",
    ],
)
def test_a_copy_that_was_not_waited_for_is_noticed(wait: str) -> None:
    with pytest.raises(EmulationError, match=r"its cp\.async was not waited for"):
        copies(COPY + wait + READ)
    with pytest.raises(EmulationError, match=r"its cp\.async was not waited for"):
        copies("st.shared.u32 [%r2], 3; bar.sync 0;" + COPY + wait + READ)


def test_a_copy_of_another_thread_needs_a_barrier() -> None:
    with pytest.raises(EmulationError, match="written by another thread since the last barrier"):
        copies(COPY + COMMIT + "cp.async.wait_group 0;" + NEIGHBOUR)


def test_the_latest_groups_may_stay_in_flight() -> None:
    second = "cp.async.ca.shared.global [%r2+16], [%rd1], 4;" + COMMIT
    memory = np.arange(4, dtype=np.uint32)
    body = INDEX + FIRST + SHARED + COPY + COMMIT + second + "cp.async.wait_group 1;"
    launch(body + READ, [memory], shared_bytes=32)
    assert memory.tolist() == [10, 11, 12, 13]
    with pytest.raises(EmulationError, match=r"byte 16 of shared memory .* not waited for"):
        launch(body + READ.replace("[%r2]", "[%r2+16]"), [memory], shared_bytes=32)


def test_lanes_count_their_own_groups() -> None:
    """Lanes 2 and 3 have committed another group since: one group in flight is the first one's end for them only."""
    head = COPY + COMMIT + "setp.ge.u32 %p1, %r0, 2; @!%p1 bra on;" + COMMIT + "on: cp.async.wait_group 1;"
    assert copies(head + "@!%p1 ret; " + READ) == [0, 1, 12, 13]
    with pytest.raises(EmulationError, match=r"thread \(0, 0, 0\).*not waited for"):
        copies(head + READ)


def test_a_lane_waits_for_its_own_copies_only() -> None:
    with pytest.raises(EmulationError, match=r"thread \(2, 0, 0\).*not waited for"):
        copies(COPY + COMMIT + "setp.lt.u32 %p1, %r0, 2; @%p1 cp.async.wait_group 0; bar.sync 0;" + READ)


def test_a_copy_brings_what_was_there_when_it_was_issued() -> None:
    memory = np.array([5], dtype=np.uint32)
    body = COPY + COMMIT + "st.global.u32 [%rd1], 0; cp.async.wait_all;" + READ
    launch(INDEX + FIRST + SHARED + body, [memory], threads=1, shared_bytes=4)
    assert memory.tolist() == [15]


@pytest.mark.parametrize("size", [4, 8, 16])
@pytest.mark.parametrize("wanted", [0, 1, 4, 7, 16])
def test_a_copy_fills_up_with_zeros(size: int, wanted: int) -> None:
    memory = np.arange(1, 17, dtype=np.uint8)
    target = np.full(16, 99, dtype=np.uint8)
    body = (
        "ld.param.u64 %rd0, [a]; ld.param.u64 %rd1, [b]; ld.param.u32 %r1, [n]; mov.u32 %r2, tile;"
        f"cp.async.{'cg' if size == 16 else 'ca'}.shared.global.L2::128B [%r2], [%rd0], {size}, %r1;"
        "cp.async.wait_all;"
    ) + "".join(f"ld.shared.u8 %rs1, [%r2+{i}]; st.global.u8 [%rd1+{i}], %rs1;" for i in range(size))
    parameters = ".param .u64 a, .param .u64 b, .param .u32 n"
    if wanted > size:
        with pytest.raises(EmulationError, match=f"{wanted} of {size} bytes"):
            launch(body + "ret;", [memory, target, wanted], 1, shared_bytes=16, parameters=parameters)
        return
    launch(body + "ret;", [memory, target, wanted], 1, shared_bytes=16, parameters=parameters)
    assert target.tolist() == [*range(1, wanted + 1), *[0] * (size - wanted), *[99] * (16 - size)]


def test_a_copy_of_nothing_reads_nothing() -> None:
    """The halo of an image: source size 0, from an address that may be anywhere."""
    memory = words(1)
    body = "cp.async.ca.shared.global [tile], [%rd0+{}], 4, 0; cp.async.wait_all; ld.shared.u32 %r4, [tile];"
    launch(
        "ld.param.u64 %rd0, [a];" + body.format(4096) + "st.global.u32 [%rd0], %r4; ret;", [memory], 1, shared_bytes=4
    )
    with pytest.raises(EmulationError, match="misaligned"):
        launch("ld.param.u64 %rd0, [a];" + body.format(2) + "ret;", [memory], 1, shared_bytes=4)


@pytest.mark.parametrize(
    ("copy", "reason"),
    [
        ("cp.async.ca.shared.global [%r2+16], [%rd1], 4", "byte 16 of shared memory, which has 16 bytes"),
        ("cp.async.ca.shared.global [%r2], [%rd1+16], 4", "byte 16 of buffer 0, which has 16 bytes"),
        ("cp.async.ca.shared.global [%r2+4], [%rd1], 8", "is no multiple of 8"),
        ("cp.async.ca.shared.global [%r2], [%rd1+4], 8", "misaligned"),
    ],
)
def test_a_copy_out_of_bounds_is_an_error(copy: str, reason: str) -> None:
    with pytest.raises(EmulationError) as error:
        launch(INDEX + FIRST + SHARED + copy + "; ret;", [words(4)], 1, shared_bytes=16)
    assert f"`{copy}`: thread (0, 0, 0)" in str(error.value)
    assert reason in str(error.value)

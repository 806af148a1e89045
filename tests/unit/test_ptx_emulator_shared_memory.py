"""Shared memory and barriers: the reads that are allowed, and when."""

from __future__ import annotations

import numpy as np
import pytest

from codegen.emulator.ptx import emulate
from codegen.errors import EmulationError
from tests.unit.bench import FIRST, INDEX, NEIGHBOUR, REGISTERS, SHARED, launch, words


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
        ("st.shared.f32 [%r2+1], %f1", "is not a multiple of 4"),
    ],
)
def test_a_wrong_access_to_shared_memory_is_an_error(access: str, reason: str) -> None:
    with pytest.raises(EmulationError) as error:
        launch(INDEX + SHARED + access + "; ret;", [words(1)], shared_bytes=16)
    assert access in str(error.value)
    assert reason in str(error.value)


def test_a_value_that_looks_like_junk_may_be_stored() -> None:
    out = words(4)
    body = "st.shared.u32 [%r2], 0xFFDCFFDC; ld.shared.u32 %r4, [%r2]; st.global.u32 [%rd1], %r4; ret;"
    launch(INDEX + FIRST + SHARED + body, [out], shared_bytes=16)
    assert out.tolist() == [0xFFDCFFDC] * 4


@pytest.mark.parametrize(
    ("store", "load", "byte"),
    [
        ("st.shared.u16 [%r2], 1", "ld.shared.b32 %r4, [%r2]", 0),
        ("st.shared.u16 [%r2], 1", "ld.shared.u16 %rs1, [%r2+2]", 2),
        ("st.shared.u8 [%r2], 1", "ld.shared.u16 %rs1, [%r2]", 0),
        ("st.shared.u32 [%r2], 1", "ld.shared.u64 %rd3, [tile+16]", 16),
    ],
)
def test_what_is_written_in_part_is_not_written(store: str, load: str, byte: int) -> None:
    body = f"{store}; st.shared.u32 [tile+16], 1; {load}; ret;"
    with pytest.raises(EmulationError, match=f"byte {byte} of shared memory was never written"):
        launch(INDEX + FIRST + SHARED + body, [words(1)], threads=1, shared_bytes=24)


def test_halves_pass_through_shared_memory() -> None:
    out = words(4)
    body = (
        "shl.b32 %r2, %r0, 3; mov.u32 %r3, tile; add.u32 %r2, %r2, %r3; cvt.u16.u32 %rs1, %r0;"
        "st.shared.v4.b16 [%r2], {%rs1, 0xFFDC, 7, 8}; setp.gt.u32 %p1, %r0, 1; @%p1 st.shared.u16 [%r2+2], %rs1;"
        "ld.shared.v2.u16 {%rs2, %rs3}, [%r2]; @%p1 ld.shared.b16 %rs2, [%r2+4]; ld.shared.v2.b32 {%r4, %r5}, [%r2];"
        "mov.b32 %r6, {%rs2, %rs3}; add.u32 %r6, %r6, %r5; st.global.u16 [%rd1], %rs3;"
        "@%p1 st.global.u32 [%rd1], %r6; ret;"
    )
    launch(INDEX + FIRST + body, [out], shared_bytes=32)
    assert out.tolist() == [0xFFDC, 0xFFDC, (8 << 16 | 7) + (2 << 16 | 7), (8 << 16 | 7) + (3 << 16 | 7)]


def test_a_register_that_was_never_written_is_no_number() -> None:
    out = np.zeros(4, dtype=np.float32)
    launch(INDEX + FIRST + "st.global.f32 [%rd1], %f5; ret;", [out])
    assert np.isnan(out).all()


def test_another_threads_word_needs_a_barrier() -> None:
    out = words(4)
    launch(INDEX + FIRST + SHARED + "st.shared.u32 [%r2], %r0; bar.sync 0;" + NEIGHBOUR, [out], shared_bytes=16)
    assert out.tolist() == [1, 0, 3, 2]
    with pytest.raises(EmulationError, match="was written by another thread since the last barrier"):
        launch(INDEX + FIRST + SHARED + "st.shared.u32 [%r2], %r0;" + NEIGHBOUR, [out], shared_bytes=16)


OTHER_WARP = "xor.b32 %r6, %r2, 128; ld.shared.u32 %r7, [%r6]; "
OVERWRITE = "st.shared.u32 [%r2], %r7; ret;"
COPY_OVER = "cp.async.ca.shared.global [%r2], [%rd1], 4; cp.async.wait_all; ret;"


@pytest.mark.parametrize("overwrite", [OVERWRITE, OVERWRITE.replace("u32", "u8"), COPY_OVER])
def test_what_another_warp_has_read_may_be_overwritten_only_after_a_barrier(overwrite: str) -> None:
    body = INDEX + FIRST + SHARED + "st.shared.u32 [%r2], %r0; bar.sync 0;" + OTHER_WARP
    launch(body + "bar.sync 0;" + overwrite, [words(64)], threads=64, shared_bytes=256)
    with pytest.raises(EmulationError, match="byte 0 of shared memory was read by another warp since the last barrier"):
        launch(body + overwrite, [words(64)], threads=64, shared_bytes=256)


def test_what_the_first_of_several_warps_has_read_is_not_forgotten() -> None:
    """All three warps read the first word in one step, and the last one overwrites it."""
    body = "st.shared.u32 [%r2], %r0; bar.sync 0; ld.shared.u32 %r7, [tile]; setp.eq.u32 %p1, %r0, {}; @%p1 "
    for thread in (0, 32, 64):
        text = INDEX + FIRST + SHARED + body.format(thread) + "st.shared.u32 [tile], 7; ret;"
        with pytest.raises(EmulationError, match="read by another warp"):
            launch(text, [words(96)], threads=96, shared_bytes=384)


def test_a_warp_may_overwrite_what_only_it_has_read_and_halves_beside_what_others_read() -> None:
    body = "st.shared.u32 [%r2], %r0; bar.sync 0; xor.b32 %r6, %r2, 4; ld.shared.u32 %r7, [%r6];"
    launch(INDEX + FIRST + SHARED + body + OVERWRITE, [words(64)], threads=64, shared_bytes=256)
    halves = "st.shared.u32 [%r2], %r0; bar.sync 0; xor.b32 %r6, %r2, 128; ld.shared.u16 %rs1, [%r6];"
    launch(INDEX + FIRST + SHARED + halves + "st.shared.u16 [%r2+2], 1; ret;", [words(64)], 64, shared_bytes=256)


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
def test_a_barrier_for_a_part_of_a_warp_is_an_error(body: str) -> None:
    with pytest.raises(
        EmulationError, match=r"line \d+: `.*barrier|only a part of the warp waits at this barrier: thread"
    ):
        launch(INDEX + "setp.lt.u32 %p1, %r0, 2; " + body, [words(1)])


def test_warps_of_a_block_meet_at_barriers_of_their_own_code() -> None:
    out = words(64)
    apart = "setp.lt.u32 %p1, %r0, 32; @%p1 bra a; bar.sync 0; bra b; a: bar.sync 0; b: "
    body = "st.shared.u32 [%r2], %r0;" + apart + "xor.b32 %r6, %r2, 128; ld.shared.u32 %r7, [%r6];"
    launch(INDEX + FIRST + SHARED + body + "st.global.u32 [%rd1], %r7; ret;", [out], threads=64, shared_bytes=256)
    assert out.tolist() == [*range(32, 64), *range(32)]


def test_blocks_may_differ_in_their_barriers() -> None:
    body = "setp.eq.u32 %p1, %r8, 0; @%p1 bra end; bar.sync 0; bar.sync 0; end: bar.sync 0; ret;"
    trace = launch(INDEX + body, [words(1)], blocks=2)
    assert trace.executed["bar.sync"] == 4 + 3 * 4


HALF = "st.shared.v2.u32 [tile], {%r0, %r0}; bar.sync 0; "
VECTOR = "ld.shared.v4.u32 {%r4, %r5, %r6, %r7}, [tile];"


@pytest.mark.parametrize(
    "body",
    [
        f"{VECTOR} add.u32 %r4, %r4, %r5; ret;",
        f"{VECTOR} mov.u32 %r6, 1; add.u32 %r4, %r6, %r5; ret;",
        f"{VECTOR} bra END; add.u32 %r4, %r6, %r5; END: ret;",
        f"AGAIN: {VECTOR} add.u32 %r4, %r4, %r5; setp.gt.u32 %p1, %r4, 100; @%p1 bra AGAIN; ret;",
    ],
)
def test_what_a_vector_load_finds_unwritten_may_be_left_unused(body: str) -> None:
    launch(INDEX + FIRST + SHARED + HALF + body, [words(4)], shared_bytes=16, threads=1)


@pytest.mark.parametrize(
    "body",
    [
        f"{VECTOR} add.u32 %r4, %r6, %r5; ret;",
        f"{VECTOR} setp.gt.u32 %p1, %r4, 100; @%p1 mov.u32 %r6, 1; add.u32 %r4, %r6, %r5; ret;",
        f"{VECTOR} setp.gt.u32 %p1, %r4, 100; @%p1 bra USE; ret; USE: add.u32 %r4, %r6, %r5; ret;",
        f"{VECTOR} st.global.u32 [%rd1], %r6; ret;",
        f"mov.u32 %r6, 1; AGAIN: add.u32 %r5, %r6, %r4; {VECTOR} add.u32 %r4, %r4, %r5; setp.gt.u32 %p1, %r4, 100; "
        "@%p1 bra AGAIN; ret;",
        "ld.shared.u32 %r4, [tile+8]; ret;",
    ],
)
def test_what_any_path_may_read_must_have_been_written(body: str) -> None:
    with pytest.raises(EmulationError, match="byte 8 of shared memory was never written"):
        launch(INDEX + FIRST + SHARED + HALF + body, [words(4)], shared_bytes=16, threads=1)

"""Global memory: what may be reached, and what is an error that names thread and address."""

from __future__ import annotations

import numpy as np
import pytest

from codegen.errors import EmulationError
from tests.unit.bench import FIRST, INDEX, launch, words


def test_vectors_are_loaded_and_stored_whole() -> None:
    values = np.arange(16, dtype=np.float32)
    launch(
        "ld.param.u64 %rd0, [a]; mov.u32 %r0, %tid.x; mad.wide.u32 %rd1, %r0, 16, %rd0;"
        "ld.global.v4.f32 {%f1, %f2, %f3, %f4}, [%rd1]; st.global.v2.f32 [%rd1], {%f4, %f3};"
        "st.global.v2.f32 [%rd1+8], {%f2, %f1}; ret;",
        [values],
    )
    assert values.reshape(4, 4).tolist() == np.arange(16).reshape(4, 4)[:, ::-1].tolist()


def test_halves_are_loaded_and_stored() -> None:
    values = np.arange(1, 17, dtype=np.uint16)
    launch(
        "ld.param.u64 %rd0, [a]; ld.param.s32 %r5, [n]; mov.u32 %r0, %tid.x; mad.wide.u32 %rd1, %r0, 8, %rd0;"
        "ld.global.nc.b16 %rs1, [%rd1+6]; ld.global.v2.u16 {%rs2, %rs3}, [%rd1]; setp.lt.s32 %p1, %r0, %r5;"
        "@%p1 ld.global.nc.L1::no_allocate.u16 %rs2, [%rd1+4]; st.global.v4.b16 [%rd1], {%rs1, %rs2, %rs3, 0};"
        "@%p1 st.global.u16 [%rd1+6], %rs1; ret;",
        [values, 2],
        parameters=".param .u64 a, .param .s32 n",
    )
    assert values.reshape(4, 4).tolist() == [[4, 3, 2, 4], [8, 7, 6, 8], [12, 9, 10, 0], [16, 13, 14, 0]]


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
        (2, 0, "is not a multiple of 4"),
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
    with pytest.raises(EmulationError, match="not a multiple of 8"):
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

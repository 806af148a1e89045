"""Asynchronous copies: what is there after which wait."""

from __future__ import annotations

import numpy as np
import pytest

from codegen.errors import EmulationError
from tests.unit.bench import FIRST, INDEX, NEIGHBOUR, SHARED, launch, words

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


def test_how_the_cache_treats_a_copy_changes_nothing() -> None:
    policy = "createpolicy.fractional.L2::evict_first.b64 %rd3, 1.0;"
    copy = "cp.async.ca.shared.global.L2::cache_hint [%r2], [%rd1], 4, %rd3;"
    assert copies(policy + copy + "cp.async.wait_all;" + READ) == [10, 11, 12, 13]


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
        ("cp.async.ca.shared.global [%r2+4], [%rd1], 8", "is not a multiple of 8"),
        ("cp.async.ca.shared.global [%r2], [%rd1+4], 8", "misaligned"),
    ],
)
def test_a_copy_out_of_bounds_is_an_error(copy: str, reason: str) -> None:
    with pytest.raises(EmulationError) as error:
        launch(INDEX + FIRST + SHARED + copy + "; ret;", [words(4)], 1, shared_bytes=16)
    assert f"`{copy}`: thread (0, 0, 0)" in str(error.value)
    assert reason in str(error.value)

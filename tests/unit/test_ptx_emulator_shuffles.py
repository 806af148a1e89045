"""Values that the lanes of a warp exchange."""

from __future__ import annotations

import pytest

from codegen.errors import EmulationError
from tests.unit.bench import FIRST, INDEX, launch, words


def exchanged(text: str, threads: int = 64) -> list[int]:
    """The value of %r4 in each thread after this text; %r0 is the thread's number."""
    values = words(threads)
    launch(f"{INDEX}{FIRST}{text} st.global.u32 [%rd1], %r4; ret;", [values], threads)
    return [int(value) for value in values]


@pytest.mark.parametrize("bits", [1, 5, 16])
def test_each_lane_has_the_value_of_the_one_whose_number_differs_by_the_bits(bits: int) -> None:
    assert exchanged(f"shfl.sync.bfly.b32 %r4, %r0, {bits}, 31, -1;") == [lane ^ bits for lane in range(64)]


def test_a_sum_over_the_lanes_is_the_same_in_all() -> None:
    steps = [f"shfl.sync.bfly.b32 %r5, %r4, {bits}, 31, -1; add.u32 %r4, %r4, %r5;" for bits in (16, 8, 4, 2, 1)]
    sums = exchanged("mov.u32 %r4, %r0;" + " ".join(steps))
    assert sums == [sum(range(32))] * 32 + [sum(range(32, 64))] * 32


def test_a_lane_that_is_elsewhere_has_nothing_to_give() -> None:
    text = "setp.lt.u32 %p1, %r0, 40; @%p1 shfl.sync.bfly.b32 %r4, %r0, 16, 31, -1;"
    with pytest.raises(EmulationError, match=r"thread \(32, 0, 0\).*an inactive lane"):
        exchanged(text)


@pytest.mark.parametrize(("last", "members"), [(15, -1), (31, 3)])
def test_parts_of_warps_are_unknown(last: int, members: int) -> None:
    with pytest.raises(EmulationError, match="only whole warps can exchange values"):
        exchanged(f"shfl.sync.bfly.b32 %r4, %r0, 1, {last}, {members};")
    with pytest.raises(EmulationError, match="only whole warps can exchange values"):
        exchanged("shfl.sync.bfly.b32 %r4, %r0, 1, 31, -1;", threads=48)

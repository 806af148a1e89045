"""Prefetches of code start early enough to be in time, and late enough not to be evicted."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from codegen.ir.launch import GridSize, Launch
from farm.cuda.prefetch import (
    BLOCKS,
    CACHE_SHARE,
    FETCH_BYTES_PER_MICROSECOND,
    MIN_CODE_BYTES,
    MIN_MOVED_BYTES,
    WAIT_SHARE,
    GpuLimits,
    LayerEstimate,
    Prefetches,
    estimate_layer,
    plan_prefetches,
)

H200 = GpuLimits(132, 60_000_000)
IMAGES = 64
LAUNCH = Launch("conv2d", (GridSize(), GridSize(images=8), GridSize(8)), (448, 1, 1), 40_000)
SMALL = LayerEstimate(50.0, 0.0, 50_000, 100_000_000)
ROOM = 10_000_000
L2_BYTES = round(ROOM / CACHE_SHARE)


def large(fetch_microseconds: float, code_bytes: int = 1_000_000) -> LayerEstimate:
    return LayerEstimate(50.0, fetch_microseconds, code_bytes, 1_000_000)


def numbers(layers: list[LayerEstimate]) -> tuple[tuple[int, ...], ...]:
    """Numbers of the layers that are fetched beside each layer."""
    return tuple(each.layers for each in plan_prefetches(layers, L2_BYTES))


def test_a_prefetch_starts_with_the_last_layer_that_leaves_enough_time() -> None:
    layers = [SMALL, SMALL, SMALL, SMALL, large(99.0), SMALL]
    assert numbers(layers) == ((), (), (4,), (), (), ())
    assert numbers([*layers[:4], large(101.0)]) == ((), (4,), (), (), ())
    assert numbers([*layers[:4], large(49.0)]) == ((), (), (), (4,), ())


def test_prefetches_of_several_layers_may_start_with_one_layer() -> None:
    layers = [SMALL, SMALL, replace(SMALL, microseconds=10.0), large(30.0), large(80.0)]
    assert numbers(layers) == ((), (3, 4), (), (), ())


def test_code_is_not_prefetched_so_early_that_it_is_evicted() -> None:
    others = large(0.0, code_bytes=4_000_000)
    assert numbers([others] * 4 + [large(190.0, 1_000_000)])[2] == (4,)
    assert numbers([others] * 4 + [large(190.0, 7_000_000)])[3] == (4,)


def test_a_network_that_fits_into_the_cache_has_no_prefetches() -> None:
    layers = [LayerEstimate(50.0, 99.0, 1_000_000, 1_000_000)] * 5
    assert numbers(layers) == ((),) * 5
    assert numbers([*layers, large(99.0)]) != ((),) * 6


LAYERS = st.lists(
    st.builds(
        LayerEstimate,
        st.floats(1.0, 300.0),
        st.one_of(st.just(0.0), st.floats(1.0, 500.0)),
        st.integers(1_000, 8_000_000),
        st.integers(0, 100_000_000),
    ),
    max_size=30,
)


@given(LAYERS)
def test_each_layer_is_prefetched_once_neither_late_nor_early(layers: list[LayerEstimate]) -> None:
    plan = plan_prefetches(layers, L2_BYTES)
    assert len(plan) == len(layers)
    begun = [(start, number) for start, fetches in enumerate(plan) for number in fetches.layers]
    stays = sum(each.code_bytes + each.moved_bytes for each in layers) <= ROOM
    wanted = [number for number, each in enumerate(layers) if number and each.fetch_microseconds and not stays]
    assert sorted(number for _, number in begun) == wanted
    for start, number in begun:
        assert start < number

        def time(first: int, end: int = number) -> float:
            return sum(each.microseconds for each in layers[first:end])

        def code(first: int, end: int = number) -> int:
            return sum(each.code_bytes for each in layers[first : end + 1])

        needed = layers[number].fetch_microseconds
        assert start == number - 1 or time(start + 1) < needed, "it could begin later"
        assert start == number - 1 or code(start) <= ROOM, "it is gone before its turn"
        assert start == 0 or time(start) >= needed or code(start - 1) > ROOM, "it could begin earlier, and is late"
        wait = plan[start].wait_nanoseconds / 1000
        assert wait == 0 or wait + needed <= WAIT_SHARE * time(start), "it waits for too long"


def test_a_prefetch_waits_a_share_of_the_predicted_time() -> None:
    layers = [SMALL, SMALL, SMALL, large(10.0)]
    assert plan_prefetches(layers, L2_BYTES)[2] == Prefetches((3,), round(1000 * (WAIT_SHARE * 50.0 - 10.0)))
    assert plan_prefetches([*layers[:3], large(45.0)], L2_BYTES)[2] == Prefetches((3,), 0)


def test_a_prefetch_with_a_layer_of_little_traffic_does_not_wait() -> None:
    layers = [SMALL, SMALL, replace(SMALL, moved_bytes=MIN_MOVED_BYTES - 1), large(10.0)]
    assert plan_prefetches(layers, L2_BYTES)[2] == Prefetches((3,), 0)
    layers[2] = replace(SMALL, moved_bytes=MIN_MOVED_BYTES)
    assert plan_prefetches(layers, L2_BYTES)[2].wait_nanoseconds > 0


def test_several_prefetches_wait_no_longer_than_the_most_urgent_can() -> None:
    layers = [SMALL, SMALL, replace(SMALL, microseconds=10.0), large(11.0), large(61.0)]
    assert plan_prefetches(layers, L2_BYTES)[1] == Prefetches((3, 4), round(1000 * (WAIT_SHARE * 110.0 - 61.0)))
    alone = [*layers[:4], large(50.0)]
    assert plan_prefetches(alone, L2_BYTES)[1] == Prefetches((3,), round(1000 * (WAIT_SHARE * 60.0 - 11.0)))


def test_a_layer_takes_its_issue_time_or_its_streaming_time() -> None:
    short = estimate_layer([(LAUNCH, 800_000)], 0, IMAGES, H200)
    long = estimate_layer([(LAUNCH, 800_000)], 0, 100 * IMAGES, H200)
    assert short.microseconds == pytest.approx(22.8, abs=0.1)  # 6,250 instructions, one after another
    assert long.microseconds == pytest.approx(904.6, abs=0.1)  # of 800 x 8 blocks of 14 warps


def test_the_time_of_a_prefetch_grows_with_the_code_of_all_parts() -> None:
    one = estimate_layer([(LAUNCH, 800_000)], 0, IMAGES, H200)
    both = estimate_layer([(LAUNCH, 800_000), (LAUNCH, 400_000)], 0, 100 * IMAGES, H200)
    assert both.fetch_microseconds - one.fetch_microseconds == pytest.approx(400_000 / FETCH_BYTES_PER_MICROSECOND)
    assert both.code_bytes == 1_200_000


def test_small_code_is_not_prefetched() -> None:
    assert estimate_layer([(LAUNCH, MIN_CODE_BYTES)], 0, IMAGES, H200).fetch_microseconds
    assert not estimate_layer([(LAUNCH, MIN_CODE_BYTES - 1)], 0, IMAGES, H200).fetch_microseconds


def test_images_beyond_the_limit_of_a_launch_do_not_count() -> None:
    most = LAUNCH.images_limit
    assert estimate_layer([(LAUNCH, 800_000)], 0, 2 * most, H200).microseconds == pytest.approx(
        estimate_layer([(LAUNCH, 800_000)], 0, most, H200).microseconds
    )


def test_the_prefetch_kernel_leaves_a_multiprocessor_to_each_of_128_blocks() -> None:
    assert H200.multiprocessors >= 128 + BLOCKS

"""Timing of launches, as far as it needs no GPU: the number of launches, and the order of a layer's parts."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from farm.cuda.device import LoadedLayer
from farm.cuda.graph import (
    COOL_DOWN_RATIO,
    LEAST_REPLAYS,
    MOST_LAUNCHES,
    REPLAY_MICROSECONDS,
    REPLAYS,
    launches_of,
    replays_within,
)


@pytest.mark.parametrize("microseconds", [1.0, 99.0, 1000.0, 1e6])
@pytest.mark.parametrize("sets", [1, 2, 7, 4096])
def test_each_data_set_is_used_equally_often_and_a_replay_is_neither_short_nor_endless(
    microseconds: float, sets: int
) -> None:
    launches = launches_of(microseconds, sets)
    assert launches % sets == 0
    assert launches >= min(MOST_LAUNCHES, REPLAY_MICROSECONDS / microseconds)
    assert launches < min(MOST_LAUNCHES, REPLAY_MICROSECONDS / microseconds) + sets


class PlayedEvent:
    def __init__(self) -> None:
        self.seen: set[str] = set()

    def record(self, stream: PlayedStream) -> None:
        self.seen = set(stream.past)


class PlayedStream:
    def __init__(self) -> None:
        self.past: set[str] = set()

    def wait_for_event(self, event: PlayedEvent) -> None:
        self.past |= event.seen


@pytest.mark.parametrize(("parts", "others"), [(1, 0), (2, 1), (3, 2), (5, 2)])
def test_parts_of_a_layer_wait_for_what_came_before_and_not_for_each_other(parts: int, others: int) -> None:
    before: dict[str, set[str]] = {}

    def part(name: str) -> Callable[..., None]:
        def run(source: int, target: int, batch: int, stream: PlayedStream, residual: int | None) -> None:
            before[f"{name}, {source}"] = set(stream.past)
            stream.past.add(f"{name}, {source}")

        return run

    stream = PlayedStream()
    names = [f"part {i}" for i in range(parts)]
    layer = LoadedLayer(
        [part(name) for name in names],
        stream,
        [PlayedStream() for _ in range(others)],
        [PlayedEvent() for _ in range(others + 1)],
    )
    layer(1, 0, 8)
    layer(2, 0, 8)
    first, second = ({f"{name}, {source}" for name in names} for source in (1, 2))
    assert all(before[each] >= first for each in second)
    assert stream.past == first | second
    assert sum(not before[each] for each in first) == min(parts, others + 1)


def test_long_graphs_are_replayed_less_often_but_have_a_median() -> None:
    assert replays_within(0.5, 0.001) == REPLAYS
    assert replays_within(0.5, 0.5 / (1 + COOL_DOWN_RATIO) / 5) == 5
    assert replays_within(0.5, 10.0) == LEAST_REPLAYS >= 3

"""Code of layers to come is fetched on the side while a CUDA graph is captured, and only then."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install torch")

from codegen.launch import GridSize, Launch
from farm.torch import ahead
from farm.torch.ahead import LEAST_BLOCKS, LEAST_BYTES, CodeAhead, code_fetched_ahead, is_run_through

IMAGES = 64
GROUPS = 8
LAUNCH = Launch("conv2d", (GridSize(), GridSize(images=8), GridSize(GROUPS)), (448, 1, 1), 40_000)


@dataclass
class PlayedStream:
    """Says what it is asked to wait for."""

    name: str
    said: list[str]
    cuda_stream: int = 0

    def record_event(self) -> str:
        return self.name

    def wait_event(self, event: str) -> None:
        self.said.append(f"{self.name} waits for {event}")


@dataclass
class PlayedPart:
    """A kernel of a layer."""

    name: str
    said: list[str]
    code_bytes: int = LEAST_BYTES
    launch: Launch = field(default=LAUNCH)

    def run_through(self, scratch: int, stream: int) -> None:
        self.said.append(f"{self.name} on {stream}")


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    found: list[str] = []
    numbers = iter(range(1, 100))

    def side(*_: Any) -> PlayedStream:
        number = next(numbers)
        return PlayedStream(f"side {number}", found, number)

    monkeypatch.setattr(ahead.torch.cuda, "Stream", side)
    monkeypatch.setattr(ahead.torch.cuda, "current_stream", lambda: PlayedStream("main", found))
    return found


def run(parts: list[PlayedPart], images: int = IMAGES) -> None:
    code = CodeAhead([[part] for part in parts], 16, torch.device("cpu"))  # type: ignore[list-item]
    for number in range(len(parts)):
        code.before(number, images)


def test_a_layer_begins_to_fetch_the_code_of_the_next_one_and_the_graph_ends_once_all_is_fetched(
    said: list[str],
) -> None:
    with code_fetched_ahead():
        run([PlayedPart(name, said) for name in ("first", "second", "third")])
        assert said == ["side 1 waits for main", "second on 1", "side 2 waits for main", "third on 2"]
        said.clear()
    assert said == ["main waits for side 1", "main waits for side 2"]


def test_nothing_is_fetched_outside_of_a_capture(said: list[str]) -> None:
    run([PlayedPart(name, said) for name in ("first", "second")])
    assert said == []


def test_small_code_and_streams_that_few_blocks_follow_are_not_fetched_ahead(said: list[str]) -> None:
    first = PlayedPart("first", said)
    others = [
        PlayedPart("small", said, code_bytes=LEAST_BYTES - 1),
        PlayedPart("other", said, launch=replace(LAUNCH, kernel="stationary")),
    ]
    with code_fetched_ahead():
        for other in others:
            run([first, other])
        run([first, first], images=8 * (LEAST_BLOCKS - 1))
        assert said == []
        run([first, first], images=8 * LEAST_BLOCKS)
        assert said


def test_traces_tell_launches_that_fetch_code_from_those_that_compute() -> None:
    assert is_run_through("conv2d", [1, 1, GROUPS], [32, 1, 1])
    assert not is_run_through("conv2d", [1, 8, GROUPS], [32, 1, 1])
    assert not is_run_through("conv2d", [1, 1, GROUPS], [64, 1, 1])
    assert not is_run_through("linear", [1, 1, GROUPS], [32, 1, 1])

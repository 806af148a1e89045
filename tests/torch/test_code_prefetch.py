"""Code of later layers is prefetched on a side stream in a captured CUDA graph, and nowhere else."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install torch")

from codegen.ir.launch import MOST_IMAGES, GridSize, Launch
from farm.cuda.module import CodeRange
from farm.cuda.prefetch import CodePrefetcher
from farm.torch import code_prefetch
from farm.torch.code_prefetch import NetworkPrefetch, prefetch_during_capture

IMAGES = 64
LAUNCH = Launch("conv2d", (GridSize(), GridSize(images=8), GridSize(8)), (448, 1, 1), 40_000)
CODE_BYTES = 800_000
"""A layer of it takes longer than its code does to come."""


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
class PlayedFetcher(CodePrefetcher):
    """Says what it fetches."""

    said: list[str]
    waits: list[int]

    def fetch(self, code: CodeRange, stream: int, wait_nanoseconds: int = 0) -> None:
        self.waits.append(wait_nanoseconds)
        self.said.append(f"{code.address} on {stream}")


@pytest.fixture
def waits() -> list[int]:
    """Waits of the prefetches, in nanoseconds."""
    return []


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch, waits: list[int]) -> list[str]:
    found: list[str] = []
    monkeypatch.setattr(torch.cuda, "Stream", lambda *_, **__: PlayedStream("side", found, 1))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: PlayedStream("main", found))
    gpu = SimpleNamespace(multi_processor_count=132, L2_cache_size=60_000_000)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: gpu)
    monkeypatch.setattr(code_prefetch, "prefetcher_for", lambda parts: PlayedFetcher(found, waits))
    return found


def layer(*addresses: int | None) -> list[Any]:
    """A layer whose parts have code at these addresses, for any number of images."""
    return [group(*addresses)]


def group(*addresses: int | None, most_rows: int = MOST_IMAGES) -> list[Any]:
    codes = [address and CodeRange(address, CODE_BYTES) for address in addresses]
    return [SimpleNamespace(launch=LAUNCH, image_bytes=CODE_BYTES, code=code, most_rows=most_rows) for code in codes]


def run(*layers: list[Any], images: int = IMAGES) -> None:
    code = NetworkPrefetch(layers, [10_000_000] * len(layers), torch.device("cpu"))
    for number in range(len(layers)):
        code.before(number, images)


def test_code_is_fetched_in_time_and_the_graph_ends_once_all_is_fetched(said: list[str]) -> None:
    with prefetch_during_capture():
        run(layer(1), layer(2), layer(3))
        assert said == ["side waits for main", "2 on 1", "side waits for main", "3 on 1"]
        said.clear()
    assert said == ["main waits for side"]


def test_all_parts_of_a_layer_are_fetched_and_what_is_not_known_is_left_alone(said: list[str]) -> None:
    with prefetch_during_capture():
        run(layer(1), layer(2, None, 4), layer(None))
    assert said == ["side waits for main", "2 on 1", "4 on 1", "main waits for side"]


def test_the_code_for_the_number_of_images_is_fetched(said: list[str]) -> None:
    several = [group(2, most_rows=IMAGES - 1), group(3, most_rows=IMAGES), group(4)]
    with prefetch_during_capture():
        run(layer(1), several)
        assert said == ["side waits for main", "3 on 1"]


def test_the_first_part_waits_and_the_others_come_behind_it(said: list[str], waits: list[int]) -> None:
    with prefetch_during_capture():
        run(layer(1), layer(2, None, 4), layer(None))
    first, second = waits
    assert first > 0
    assert second == 0


def test_each_number_of_images_has_a_plan_of_its_own(said: list[str]) -> None:
    layers = [layer(1), *[layer(None)] * 4, layer(2)]
    code = NetworkPrefetch(layers, [20_000_000] * 6, torch.device("cpu"))
    with prefetch_during_capture():
        for images in (1, 1_000, 1):
            for number in range(6):
                code.before(number, images)
                said.append(f"layer {number}")
    begun = [said[i + 1] for i, each in enumerate(said) if " on " in each]
    assert begun == ["layer 4", "layer 4", "layer 4"]
    assert len(code._plans) == 2


def test_nothing_is_fetched_outside_of_a_capture(said: list[str]) -> None:
    run(layer(1), layer(2))
    with prefetch_during_capture():
        pass
    run(layer(1), layer(2))
    assert said == []


def test_nothing_is_fetched_where_it_is_not_known_how(said: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code_prefetch, "prefetcher_for", lambda parts: None)
    with prefetch_during_capture():
        run(layer(1), layer(2))
    assert said == []

"""Work between two launches that `farm tune` times, on a played device."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from farm.cuda.module import CodeRange
from farm.cuda.prefetch import MIN_CODE_BYTES
from farm.tuning.search import rig
from farm.tuning.search.rig import GpuBench

STAGE: Any = SimpleNamespace(
    inputs=(100, 200),
    outputs=(300, 400),
    sets=2,
    x=SimpleNamespace(nbytes=5_000_000),
    residual=None,
    residual_address=None,
    output_shape=(1,),
    shape=SimpleNamespace(images=8, spec=SimpleNamespace(data_type="float32")),
)


def between(code_bytes: int, monkeypatch: pytest.MonkeyPatch, *, fetches: bool = True) -> list[tuple[Any, ...]]:
    """The work enqueued before a launch, and the launch."""
    seen: list[tuple[Any, ...]] = []

    def cold(device: Any, launch: Any, others: Any, stream: Any, repeats: int) -> float:
        others()
        launch()
        return 5.0

    class Layer:
        codes = (CodeRange(1000, code_bytes),)

        def __call__(self, source: int, target: int, batch: int, residual: int | None = None) -> None:
            seen.append(("layer", source))

    device: Any = SimpleNamespace(
        host_array=lambda *_: None,
        load_layer=lambda kernels, stream, *, addressed: Layer(),
        microseconds=lambda *_, **__: 4.0,
    )
    others: Any = SimpleNamespace(
        enqueue=lambda moved, source, target, size, stream: seen.append(("others", moved, size))
    )
    fetcher: Any = SimpleNamespace(fetch=lambda code, stream: seen.append(("fetch", code, stream)))
    monkeypatch.setattr(rig, "cold_microseconds", cold)
    stream = SimpleNamespace(handle=7)
    bench = GpuBench(device, stream, STAGE, others, fetcher if fetches else None, 30_000_000)
    assert bench.cold_microseconds([]) == 5.0
    return seen


def test_a_layers_code_is_in_the_l2_cache_when_its_turn_comes_as_in_a_networks_graph(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    moving, fetching, meanwhile, layer = between(MIN_CODE_BYTES, monkeypatch)
    assert moving == ("others", 30_000_000, STAGE.x.nbytes)
    assert fetching == ("fetch", CodeRange(1000, MIN_CODE_BYTES), 7)
    assert meanwhile[:2] == ("others", 0)
    assert meanwhile[2] < 1000
    assert layer == ("layer", 100)


def test_little_code_is_not_fetched_ahead_nor_any_where_the_gpu_cannot(monkeypatch: pytest.MonkeyPatch) -> None:
    for seen in (between(MIN_CODE_BYTES - 1, monkeypatch), between(MIN_CODE_BYTES, monkeypatch, fetches=False)):
        assert [each[0] for each in seen] == ["others", "layer"]

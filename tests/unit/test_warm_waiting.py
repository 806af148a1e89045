"""Templates ahead of time, where no worker has room yet."""

from __future__ import annotations

from dataclasses import replace

import pytest

from codegen.ir.tiling import Tiling
from farm.executors.auto import AutomaticExecutor
from farm.maintenance import warm
from farm.store.memory import MemoryStore
from farm.worker.messages import TemplateRequest
from tests.samples import SMALLER
from tests.unit.farmyard import PlayedExecutor

TEMPLATE = TemplateRequest(SMALLER, Tiling("conv2d", 8, 8, 1, 4, 3, 2), "compute_80", "11" * 32, 100)
MISSING = [replace(TEMPLATE, key=f"{i:02}" * 32) for i in range(5)]


class LateExecutor(PlayedExecutor):
    """Executor whose first machine comes after three pauses."""

    def __init__(self) -> None:
        super().__init__(MemoryStore())
        self.pauses = 0
        self.asked = 0

    def pause(self, _seconds: float) -> None:
        self.pauses += 1

    @property
    def capacity(self) -> int:
        self.asked += 1
        assert self.asked < 100, "it asks again and again without a pause"
        return super().capacity if self.pauses >= 3 else 0


def test_it_pauses_while_no_worker_has_room(monkeypatch: pytest.MonkeyPatch) -> None:
    executor = LateExecutor()
    monkeypatch.setattr("time.sleep", executor.pause)
    results = warm.make_templates(MISSING, executor)
    assert {each.key for each in results} == {each.key for each in MISSING}
    assert executor.pauses == 3


def test_templates_of_few_shapes_are_made_without_ray() -> None:
    here, ray = (PlayedExecutor(MemoryStore()) for _ in range(2))
    results = warm.make_templates(MISSING, AutomaticExecutor(here, lambda: ray, 2))
    assert len(results) == len(here.submitted) == len(MISSING)
    assert not ray.submitted

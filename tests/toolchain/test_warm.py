"""`farm cache warm`: templates without a job, found by the compile that follows."""

from __future__ import annotations

from dataclasses import replace

import pytest

from farm.api import Farm
from farm.config.settings import Settings
from farm.errors import StoreError
from farm.jobs.model import Outcome, Status
from farm.maintenance.warm import Warmed
from farm.store import open_store
from tests.samples import SMALLER, checkpoint, layer
from tests.toolchain.tools import NET, OPTIONS, Tools

OTHER_WEIGHTS = checkpoint(layer("conv1", seed=7), layer("conv2", spec=SMALLER, seed=8))


def test_a_compile_of_other_weights_finds_the_templates(farm: Farm, tools: Tools) -> None:
    told: list[tuple[str, int]] = []
    first = farm.warm([NET], OPTIONS, lambda noun, count: told.append((noun, count)))
    assert (first.hits, first.made, first.failures, told[-1]) == (0, 2, (), ("of 2 templates", 2))
    assert tools.calls() == ["nvcc", "nvcc"]
    assert farm.warm([NET], OPTIONS) == Warmed(2, 0, 0.0, ())
    assert tools.calls() == []
    assert farm.jobs() == []
    [job] = farm.compile([OTHER_WEIGHTS], OPTIONS)
    assert job.status is Status.SUCCEEDED
    assert "nvcc" not in tools.calls()
    assert {each.outcome for each in farm.inspect(job.id).results} == {Outcome.BUILT}


def test_warming_stores_templates_and_no_weights(farm: Farm, settings: Settings) -> None:
    farm.warm([NET], OPTIONS)
    store = open_store(settings)
    templates = [each for each in store.records() if each.stage == "template"]
    assert len(list(store.blobs())) == len(templates) == 2


def test_a_read_only_store_is_not_warmed_and_nvcc_does_not_run(settings: Settings, tools: Tools) -> None:
    with (
        Farm.open(replace(settings, read_only=True)) as farm,
        pytest.raises(StoreError, match="read-only here: unset FARM_READ_ONLY to make templates"),
    ):
        farm.warm([NET], OPTIONS)
    assert tools.calls() == []

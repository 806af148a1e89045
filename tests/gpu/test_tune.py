"""`farm tune` on a real GPU, briefly: the record's kernels are right, timed, and what a compile then uses."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from codegen.selection.choose import ranked_tilings
from codegen.toolchain.tools import Toolchain
from farm.api import Farm
from farm.cuda.device import Device, LoadedLayer
from farm.cuda.measure.kernels import KernelPool
from farm.cuda.measure.other_layers import OtherLayers
from farm.cuda.measure.workload import Choice, model_cases
from farm.jobs.model import BuildOptions
from farm.ledger import open_ledger
from farm.store import open_store
from farm.testing import laptop_settings
from farm.tuning.search.building import Building
from farm.tuning.search.layer_kinds import Effort
from farm.tuning.search.layer_search import search
from farm.tuning.search.rig import GpuRig, Kernels
from farm.tuning.search.tune import TunePlan, TuneProgress
from tests.samples import checkpoint, layer
from tests.tuning_samples import ended, whole_tuning
from tests.verifications import assert_right

NET = checkpoint(layer("conv1"))
CASES = list(model_cases(NET, [], Choice((8,))))
EFFORT = Effort(budget_seconds=120, candidates=6)


def test_the_winner_is_right_no_slower_than_the_models_choice_and_used_by_a_compile(
    device: Device, toolchain: Toolchain, tmp_path: Path
) -> None:
    settings = replace(laptop_settings(tmp_path), nvcc=toolchain.nvcc, ptxas=toolchain.ptxas)
    ledger = open_ledger(settings)
    plan = TunePlan(EFFORT)
    with KernelPool(settings, open_store(settings), toolchain, device.arch) as pool:
        rig = GpuRig(device)
        [outcome] = whole_tuning(rig, pool, ledger.tuning, CASES, plan, TuneProgress())
        [again] = whole_tuning(rig, pool, ledger.tuning, CASES, plan, TuneProgress())
    record = outcome.record
    assert record is not None
    assert (outcome.wrong, outcome.not_built, record.tried) == ((), 0, 6)
    assert record.cold_microseconds is not None
    assert record.model_cold_microseconds is not None
    assert 0 < record.cold_microseconds <= record.model_cold_microseconds < 1000
    assert 0 < record.microseconds < 1000
    assert again.known
    assert ledger.tuning.records() == [record]
    ledger.close()
    with Farm.open(settings) as farm:
        [job] = farm.compile([NET], BuildOptions((device.arch,), batches=(8,)))
        detail = farm.inspect(job.id)
        assert detail.builds[0].tiling == record.tiling
        assert tuple(str(each.cubin) for each in detail.results) == record.cubins
        assert job.hits == job.total
        assert_right(farm.verify(job.id, gpu=True))


def test_kernels_that_leave_outputs_unwritten_never_win(
    device: Device, toolchain: Toolchain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = laptop_settings(tmp_path)
    rig = GpuRig(device)
    real = device.load_layer
    spoiled: list[Kernels] = []

    class OneImageLess(LoadedLayer):
        def __call__(self, source: int, target: int, batch: int, residual: int | None = None) -> None:
            super().__call__(source, target, batch - 1, residual)

    def load(kernels: Kernels, stream: Any, *, addressed: bool = False) -> LoadedLayer:
        loaded = real(kernels, stream, addressed=addressed)
        if not spoiled:
            spoiled.append(kernels)
        if spoiled[0] is kernels:  # the first one, whenever it is loaded
            loaded.__class__ = OneImageLess
        return loaded

    monkeypatch.setattr(device, "load_layer", load)
    with KernelPool(settings, open_store(settings), toolchain, device.arch) as pool:
        tilings = ranked_tilings(CASES[0].spec, 8, CASES[0].weights.nonzeros_per_output)
        building = Building(CASES[0], pool, tilings, "float32", EFFORT.candidates)
        found = ended(search(building, rig, lambda: False))
    [wrong] = found.wrong
    assert "were not written" in wrong
    assert found.best is not None
    assert found.best.built.kernels != spoiled[0]


def test_what_stands_for_the_other_layers_writes_the_input_anew(device: Device) -> None:
    others, stream = OtherLayers(device), device.new_stream()
    size = 100_000
    memory = device.allocate(4 * size)
    source, target = int(memory), int(memory) + 2 * size
    device.upload(source, np.arange(size // 2, dtype=np.float32))
    device.poison(target, 2 * size)
    for moved_bytes in (None, 0, 1_000_000):
        others.enqueue(moved_bytes, source, target, 2 * size, stream)
    found = np.empty(size // 2, dtype=np.float32)
    device.download(target, found)
    memory.free()
    assert np.array_equal(found, np.arange(size // 2, dtype=np.float32))

"""Tuning records in a compile with the real tools: architectures of one layer with tilings of their own."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jsonschema import Draft202012Validator
from numpy.typing import NDArray

from codegen.selection.choose import choose_tiling
from codegen.toolchain.tools import find_toolchain
from codegen.verification.compare import random_input
from codegen.verification.reference import layer_output
from farm.api import Farm
from farm.cuda.measure.kernels import KernelPool
from farm.cuda.measure.workload import Case, Choice, model_cases
from farm.jobs.model import Status, TilingChoice
from farm.ledger import open_ledger
from farm.store.memory import MemoryStore
from farm.testing import laptop_settings
from farm.tuning.search.layer_kinds import Effort
from farm.tuning.search.tune import TunePlan, TuneProgress
from tests.samples import SMALL, layer
from tests.toolchain.tools import NET, OPTIONS
from tests.tuning_samples import GPU, KeptRecords, other_tiling, record, whole_tuning
from tests.verifications import assert_right

BY_MODEL = choose_tiling(SMALL, 64, layer().weights.nonzeros_per_output)
TUNED = other_tiling(BY_MODEL)


@pytest.fixture
def tuned(farm: Farm, tmp_path: Path) -> Farm:
    """A farm with a record for the first layer on sm_90."""
    ledger = open_ledger(laptop_settings(tmp_path))
    ledger.tuning.put(record(TUNED))
    ledger.close()
    return farm


def test_a_record_for_one_architecture_of_two_gives_each_its_own_tiling(tuned: Farm, tmp_path: Path) -> None:
    [job] = tuned.compile([NET], OPTIONS)
    assert (job.status, job.done, job.total) == (Status.SUCCEEDED, 4, 4)
    detail = tuned.inspect(job.id)
    assert [(build.layer, build.tiling, build.choices) for build in detail.builds[:2]] == [
        ("conv1", BY_MODEL, (TilingChoice("sm_80"),)),
        ("conv1", TUNED, (TilingChoice("sm_90", GPU),)),
    ]
    assert [(build.layer, build.choices) for build in detail.builds[2:]] == [("conv2", ())]
    assert [[result.arch for result in detail.results_of(build)] for build in detail.builds] == [
        ["sm_80"],
        ["sm_90"],
        ["sm_80", "sm_90"],
    ]
    found = list(tuned.verify(job.id))
    assert_right(found)
    assert [(each.layer, each.archs) for each in found] == [
        ("conv1", ("sm_80",)),
        ("conv1", ("sm_90",)),
        ("conv2", ("sm_80",)),
        ("conv2", ("sm_90",)),
    ]
    [again] = tuned.compile([NET], OPTIONS)
    assert again.hits == again.total


def test_a_manifest_with_several_tilings_says_which_launches_an_architecture_takes(tuned: Farm, tmp_path: Path) -> None:
    [job] = tuned.compile([NET], OPTIONS)
    path = tuned.fetch(job.id, tmp_path / "out")
    manifest = json.loads(path.read_text())
    Draft202012Validator(json.loads(files("farm.bundle").joinpath("manifest.schema.json").read_text())).validate(
        manifest
    )
    first, second = manifest["layers"]
    assert [(each["archs"], each["tiling"]) for each in first["tilings"]] == [
        (["sm_80"], BY_MODEL.to_json()),
        (["sm_90"], TUNED.to_json()),
    ]
    assert [set(launch["cubins"]) for launch in first["launches"]] == [{"sm_80"}, {"sm_90"}]
    assert [set(launch["cubins"]) for launch in second["launches"]] == [{"sm_80", "sm_90"}]
    for each in (*first["launches"], *second["launches"]):
        assert all((path.parent / cubin["path"]).is_file() for cubin in each["cubins"].values())


def test_without_tuning_everything_is_as_if_there_were_no_records(tuned: Farm, tmp_path: Path) -> None:
    [with_records] = tuned.compile([NET], OPTIONS)
    [job] = tuned.compile([NET], replace(OPTIONS, tuning=False))
    detail = tuned.inspect(job.id)
    assert [(build.tiling, build.choices) for build in detail.builds[:1]] == [(BY_MODEL, ())]
    assert job.hits == 3  # all but conv1 for sm_90
    by_arch = {result.arch: result.cubin_key for result in detail.results_of(detail.builds[0])}
    before = tuned.inspect(with_records.id)
    assert before.results_of(before.builds[0])[0].cubin_key == by_arch["sm_80"]


@dataclass
class SizingRig:
    """Plays a GPU on which the smallest code is the fastest."""

    gpu: str = GPU
    arch: str = "sm_90"

    @contextmanager
    def bench(self, case: Case, seed: int) -> Iterator[SizingRig]:
        self.x: NDArray[Any] = random_input(case.spec, case.images, seed)
        self.residual = None
        self._right = layer_output(case.spec, case.weights, self.x).astype(np.float32)
        yield self

    def output(self, kernels: Sequence[tuple[bytes, Any]]) -> NDArray[Any]:
        return self._right.copy()

    def cold_microseconds(self, kernels: Sequence[tuple[bytes, Any]]) -> float:
        return float(sum(len(cubin) for cubin, _ in kernels))

    def warm_microseconds(self, kernels: Sequence[tuple[bytes, Any]]) -> float:
        return self.cold_microseconds(kernels)


def test_candidates_are_built_with_the_real_tools_and_the_winner_is_what_was_measured(tmp_path: Path) -> None:
    settings, store, table = laptop_settings(tmp_path), MemoryStore(), KeptRecords()
    cases = list(model_cases(NET, ["conv1"], Choice((64,))))
    plan = TunePlan(Effort(budget_seconds=600, candidates=3))
    with KernelPool(settings, store, find_toolchain(), "sm_90") as pool:
        [outcome] = whole_tuning(SizingRig(), pool, table, cases, plan, TuneProgress())
    [kept] = table.records()
    assert outcome.record == kept
    assert (kept.tried, outcome.not_built, outcome.wrong) == (3, 0, ())
    sizes = [len(store.get(digest) or b"") for digest in kept.cubins]
    assert sum(sizes) == kept.cold_microseconds == kept.microseconds <= kept.model_microseconds

"""A cubin is launched by the launch recorded with it, not by the one that this program would compute."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from codegen.ir.launch import GridSize, Launch
from codegen.ir.tiling import Part
from codegen.kernels import conv2d
from farm.api import Farm
from farm.config.settings import Settings
from farm.cuda.measure.kernels import KernelPool
from farm.cuda.measure.workload import Case, CaseKey
from farm.errors import UsageError
from farm.jobs.model import Job, Status
from farm.store import open_store
from farm.store.contract import Record
from farm.worker.cache_lookup import CUBIN_STAGE
from tests.toolchain.idle_device import IdleDevice
from tests.toolchain.tools import NET, OPTIONS, Tools


@pytest.fixture
def compiled(farm: Farm) -> Job:
    [job] = farm.compile([NET], OPTIONS)
    assert job.status is Status.SUCCEEDED, job.reason
    return job


@pytest.fixture
def newer_program(compiled: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on convolutions are launched with twice the threads and more shared memory, in the same blocks."""
    today = conv2d.launch_of

    def launch_of(layer: conv2d.TiledConvolution, part: Part | None = None) -> Launch:
        launch = today(layer, part)
        return replace(launch, block=(2 * launch.block[0], 1, 1), shared_bytes=launch.shared_bytes + 3640)

    monkeypatch.setattr(conv2d, "launch_of", launch_of)


def launches_of(manifest: Path) -> list[dict[str, Any]]:
    """The launches with their cubins, but not whether ptxas ran or the store had the code of the mask."""
    layers = json.loads(manifest.read_text())["layers"]
    launches = [launch for layer in layers for launch in layer["launches"]]
    for launch in launches:
        for cubin in launch["cubins"].values():
            del cubin["assembler"]
            cubin.pop("ptx_sha256", None)
    return launches


def cubin_records(settings: Settings) -> dict[str, Record]:
    store = open_store(settings)
    keys = [each.key for each in store.records() if each.stage == CUBIN_STAGE]
    return {key: record for key in keys if (record := store.get_record(CUBIN_STAGE, key)) is not None}


def forget_launches(settings: Settings) -> None:
    """Leaves the store as a program wrote it that did not keep them."""
    store = open_store(settings)
    for key, record in cubin_records(settings).items():
        store.put_record(CUBIN_STAGE, key, {name: value for name, value in record.items() if name != "launch"})


def test_a_bundle_keeps_the_launches_its_cubins_were_compiled_for(
    farm: Farm, compiled: Job, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    before = launches_of(farm.fetch(compiled.id, tmp_path / "before"))
    request.getfixturevalue("newer_program")
    assert launches_of(farm.fetch(compiled.id, tmp_path / "after")) == before


def test_a_hit_is_launched_as_when_it_was_built(
    farm: Farm, compiled: Job, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    before = launches_of(farm.fetch(compiled.id, tmp_path / "before"))
    request.getfixturevalue("newer_program")
    [again] = farm.compile([NET], OPTIONS)
    assert (again.id != compiled.id, again.hits) == (True, again.total)
    assert launches_of(farm.fetch(again.id, tmp_path / "after")) == before


@pytest.mark.usefixtures("newer_program")
def test_the_emulator_verifies_a_cubins_own_launch(farm: Farm, compiled: Job) -> None:
    found = list(farm.verify(compiled.id))
    assert [each.verification.message for each in found] == [""] * 4


def test_the_emulator_does_not_guess_what_the_blocks_of_another_program_compute(
    farm: Farm, compiled: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    today = conv2d.launch_of

    def launch_of(layer: conv2d.TiledConvolution, part: Part | None = None) -> Launch:
        launch = today(layer, part)
        return replace(launch, grid=(GridSize(launch.grid[0].fixed + 1), *launch.grid[1:]))

    monkeypatch.setattr(conv2d, "launch_of", launch_of)
    assert all("divided this layer into other blocks" in each.verification.message for each in farm.verify(compiled.id))


def test_a_gpu_is_given_a_cubins_own_launch(
    farm: Farm, compiled: Job, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = [result.launch for result in farm.inspect(compiled.id).results if result.arch == "sm_90"]
    request.getfixturevalue("newer_program")
    device = IdleDevice()
    monkeypatch.setattr("farm.verify.layers.Device", lambda: device)
    list(farm.verify(compiled.id, gpu=True))
    assert [launch for kernels in device.ran for _, launch in kernels] == before


def test_tuner_and_bench_launch_what_the_store_has_as_it_was_built(
    farm: Farm, compiled: Job, settings: Settings, request: pytest.FixtureRequest
) -> None:
    detail = farm.inspect(compiled.id)
    build, layer = detail.builds[0], NET.layers[0]
    before = [result.launch for result in detail.results_of(build) if result.arch == "sm_90"]
    request.getfixturevalue("newer_program")
    case = Case(CaseKey("conv1", OPTIONS.batches[0], 0.9, "float32"), layer.spec, layer.weights)
    with KernelPool(settings, open_store(settings), farm.toolchain, "sm_90") as pool:
        built = pool.submit(case, tiling=build.tiling).result()
    assert [launch for _, launch in built.kernels] == before


def test_a_cubin_whose_record_has_no_launch_is_built_again_and_nothing_else_is(
    farm: Farm, compiled: Job, settings: Settings, tools: Tools, tmp_path: Path
) -> None:
    before, records = launches_of(farm.fetch(compiled.id, tmp_path / "before")), cubin_records(settings)
    forget_launches(settings)
    tools.calls()
    [again] = farm.compile([NET], OPTIONS)
    assert (again.status, again.hits) == (Status.SUCCEEDED, 0)
    assert tools.calls() == []  # the store has the code of their masks
    assert launches_of(farm.fetch(again.id, tmp_path / "after")) == before
    assert {key: record["cubin"] for key, record in cubin_records(settings).items()} == {
        key: record["cubin"] for key, record in records.items()
    }


@pytest.mark.parametrize("gpu", [False, True])
def test_verification_of_more_images_than_a_kernel_takes_is_refused_with_the_number_it_takes(
    farm: Farm, compiled: Job, gpu: bool
) -> None:
    limit = min(result.known_launch.images_limit for result in farm.inspect(compiled.id).results)
    with pytest.raises(UsageError, match=f"{limit + 1:,} images are more than a launch .* give at most {limit:,}"):
        farm.verify(compiled.id, gpu=gpu, batch=limit + 1)


def test_the_manifest_says_how_many_images_a_launch_takes(farm: Farm, compiled: Job, tmp_path: Path) -> None:
    for launch in launches_of(farm.fetch(compiled.id, tmp_path / "out")):
        assert launch["images_limit"] == Launch.from_json(launch).images_limit >= 65_535

"""Layers in parts: several kernels of one template, through the farm with the real tools."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from codegen.ir.checkpoint import Weights
from codegen.ir.tiling import Part
from codegen.ptx.rewrite import Kernel, rewrite
from codegen.ptx.template import Template
from farm.api import Farm
from farm.errors import BlobLostError
from farm.jobs.model import Status
from tests.samples import cut_in_two
from tests.toolchain.idle_device import IdleDevice
from tests.toolchain.tools import NET, OPTIONS, Tools


@pytest.fixture(autouse=True)
def halved(monkeypatch: pytest.MonkeyPatch) -> None:
    cut_in_two(monkeypatch)


def test_the_parts_of_a_layer_are_cubins_of_one_template_and_a_second_run_makes_nothing(
    farm: Farm, tools: Tools
) -> None:
    [job] = farm.compile([NET], OPTIONS)
    assert (job.status, job.hits, job.done, job.total) == (Status.SUCCEEDED, 0, 8, 8)
    assert tools.calls() == ["nvcc"] * 2 + ["ptxas"] * 8
    detail = farm.inspect(job.id)
    for build in detail.builds:
        for arch in OPTIONS.archs:
            parts = [result for result in detail.results_of(build) if result.arch == arch]
            assert [result.part for result in parts] == [0, 1]
            assert len({result.cubin for result in parts}) == 2
            assert sum(result.fmas_kept for result in parts) == build.nonzeros * build.tiling.rows
    [again] = farm.compile([NET], OPTIONS)
    assert (again.status, again.hits) == (Status.SUCCEEDED, 8)
    assert tools.calls() == []


def test_a_part_that_was_lost_is_made_again_without_the_others(farm: Farm, tools: Tools, tmp_path: Path) -> None:
    [job] = farm.compile([NET], OPTIONS)
    tools.calls()
    detail = farm.inspect(job.id)
    lost = detail.results_of(detail.builds[1])[-1]
    (tmp_path / "store" / "v1" / "cas" / str(lost.cubin)[:2] / str(lost.cubin)).unlink()
    with pytest.raises(BlobLostError, match="conv2 sm_90 part 2 of 2"):
        farm.fetch(job.id, tmp_path / "out")
    [job] = farm.compile([NET], OPTIONS)
    assert (job.status, job.hits) == (Status.SUCCEEDED, 7)
    assert tools.calls() == []  # the store has the code of its mask


def test_a_part_is_rewritten_once_for_all_architectures(farm: Farm, monkeypatch: pytest.MonkeyPatch) -> None:
    rewritten: list[tuple[str, Part | None]] = []

    def count(template: Template, weights: Weights, part: Part | None) -> Kernel:
        rewritten.append((weights.digest, part))
        return rewrite(template, weights, part)

    monkeypatch.setattr("farm.worker.build.rewrite", count)
    farm.compile([NET], OPTIONS)
    assert len(rewritten) == len(set(rewritten)) == 4


def test_a_layer_in_parts_is_verified_as_one_and_each_part_must_be_the_one_assembled(farm: Farm) -> None:
    [job] = farm.compile([NET], OPTIONS)
    assert [(each.layer, each.parts, each.archs, each.verification.ok) for each in farm.verify(job.id)] == [
        ("conv1", 2, ("sm_80",), True),
        ("conv1", 2, ("sm_90",), True),
        ("conv2", 2, ("sm_80",), True),
        ("conv2", 2, ("sm_90",), True),
    ]
    detail = farm.inspect(job.id)
    second = [result for result in detail.results_of(detail.builds[0]) if result.part == 1]
    farm._ledger.record_results([replace(result, ptx="00" * 32) for result in second])
    found = [(each.layer, "run farm compile again" in each.verification.message) for each in farm.verify(job.id)]
    assert found == [("conv1", True), ("conv1", True), ("conv2", False), ("conv2", False)]


def test_on_a_gpu_all_parts_of_a_layer_are_launched_and_what_none_wrote_is_wrong(
    farm: Farm, monkeypatch: pytest.MonkeyPatch
) -> None:
    [job] = farm.compile([NET], OPTIONS)
    device = IdleDevice()
    monkeypatch.setattr("farm.verify.layers.Device", lambda: device)
    found = list(farm.verify(job.id, gpu=True))
    assert [(each.layer, each.parts, each.archs, each.where) for each in found] == [
        ("conv1", 2, ("sm_90",), "idle"),
        ("conv2", 2, ("sm_90",), "idle"),
    ]
    assert all("not written" in each.verification.message for each in found)
    kernels = [layer.spec.output_channels for layer in NET.layers]
    # The K groups of all parts together are the layer's, one kernel each here.
    grids = [[launch.grid_at(2)[2] for _, launch in launched] for launched in device.ran]
    assert grids == [[1, count - 1] for count in kernels]
    assert len({cubin for launched in device.ran for cubin, _ in launched}) == 4


def test_a_bundle_of_layers_in_parts_keeps_to_the_schema(farm: Farm, tmp_path: Path) -> None:
    [job] = farm.compile([NET], OPTIONS)
    manifest = json.loads(farm.fetch(job.id, tmp_path / "out").read_text())
    Draft202012Validator(json.loads(files("farm.bundle").joinpath("manifest.schema.json").read_text())).validate(
        manifest
    )
    for described in manifest["layers"]:
        first, second = described["launches"]
        # Every part takes the whole tensors: which K groups it computes is in its cubin.
        assert first["arguments"] == second["arguments"]
        assert [argument["name"] for argument in first["arguments"]] == ["input", "output", "images", "output_step"]
        assert first["grid"][2]["fixed"] + second["grid"][2]["fixed"] == described["tensors"]["output"]["shape"][1]
        for launch in described["launches"]:
            assert len(launch["cubins"]) == len(OPTIONS.archs)
            for entry in launch["cubins"].values():
                assert (tmp_path / "out" / entry["path"]).read_bytes().startswith(b"\x7fELF")

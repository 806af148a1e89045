"""A layer split over clusters, through the farm with the real tools."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from codegen.ir.layer_spec import AddResidual, Clip, Conv2d
from codegen.toolchain.ptxas import ptxas_options, skeleton_options
from farm.api import Farm
from farm.jobs.model import BuildOptions, Status
from tests.samples import checkpoint, layer

DEEP = Conv2d(512, 7, 7, 16, 3, 3, padding=(1, 1, 1, 1), epilogue=(AddResidual(), Clip(low=0.0)))
NET = checkpoint(layer("deep", spec=DEEP, sparsity=0.95))
OPTIONS = BuildOptions(("sm_80", "sm_90", "sm_120"), batches=(1,))


@pytest.mark.slow
def test_a_deep_layer_at_batch_one_has_clusters_on_every_architecture_that_has_them(farm: Farm, tmp_path: Path) -> None:
    [job] = farm.compile([NET], OPTIONS)
    assert job.status is Status.SUCCEEDED
    older, newer = farm.inspect(job.id).builds
    assert older.tiling.cluster == 1
    assert newer.tiling.cluster > 1
    assert newer.tiling.waits
    assert [(each.archs, each.where, each.verification.ok) for each in farm.verify(job.id)] == [
        (("sm_80",), "machine code", True),
        (("sm_90",), "machine code", True),
        (("sm_120",), "machine code", True),
    ]
    path = farm.fetch(job.id, tmp_path / "out", ptx=True)
    manifest = json.loads(path.read_text())
    Draft202012Validator(json.loads(files("farm.bundle").joinpath("manifest.schema.json").read_text())).validate(
        manifest
    )
    split = [each["archs"] for each in manifest["layers"][0]["tilings"] if "cluster" in each["tiling"]]
    assert split == [["sm_90", "sm_120"]]
    [again] = farm.compile([NET], OPTIONS)
    assert again.hits == again.total


def test_a_layer_with_clusters_is_made_without_ptxas_but_for_its_skeleton(farm: Farm) -> None:
    [job] = farm.compile([NET], replace(OPTIONS, archs=("sm_90",), assembler="direct"))
    assert job.status is Status.SUCCEEDED
    detail = farm.inspect(job.id)
    assert all(build.tiling.cluster > 1 for build in detail.builds)
    assert [(each.assembler, each.fallback, each.part) for each in detail.results] == [("direct", "", 0)]
    found = list(farm.verify(job.id))
    assert [(each.where, each.verification.ok) for each in found] == [("machine code", True)]


def test_the_skeleton_of_a_kernel_with_clusters_is_made_at_the_highest_level_unless_ptxas_was_too_slow() -> None:
    kernels = ptxas_options(3, clusters=True)
    assert skeleton_options(kernels, clusters=True) == ("-O3",)
    assert skeleton_options(("-O0",), clusters=True) == ("-O0",)
    assert skeleton_options(("-O1",)) == ("-O1",)

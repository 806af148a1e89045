"""A compile for several batch sizes: tilings for each, shared where they are equal, chosen by the number of images."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from codegen.frontend.onnx.reader import read_checkpoint
from codegen.ir.checkpoint import Checkpoint
from codegen.ir.layer_spec import Conv2d
from codegen.model_zoo import lenet5, write_network
from codegen.selection.choose import choose_tiling
from farm.bundle.manifest import ManifestError, read_manifest
from farm.bundle.model import compiled_model
from farm.bundle.reader import Bundle
from farm.bundle.row_groups import group_for, row_groups
from farm.bundle.writer import write_bundle
from farm.errors import UsageError
from farm.jobs.completeness import whole_part
from farm.jobs.model import Build, BuildOptions, JobDetail, NewJob, TilingChoice
from farm.jobs.submission import new_job
from tests.bundle_samples import JOB, TILING, TOOLS, build, result, stored_cubins, validator, write
from tests.samples import checkpoint, layer

ARCHS = ("sm_80", "sm_90")
BATCHES = (1, 8, 64)
OPTIONS = BuildOptions(ARCHS, BATCHES)


@pytest.fixture(scope="module")
def lenet(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    path = tmp_path_factory.mktemp("lenet") / "net.onnx"
    write_network(path, lenet5(0.9, 0))
    return read_checkpoint(path)


def submitted(net: Checkpoint, options: BuildOptions) -> NewJob:
    return new_job(net, options, namespace="", name="net", store=None)


def test_a_number_of_images_has_the_batch_size_that_is_nearest_by_ratio() -> None:
    for batches in ((64,), BATCHES, (2, 3, 5, 7), (10, 1000)):
        options = BuildOptions(("sm_90",), batches)
        for images in range(1, 201):
            nearest = min(batches, key=lambda batch: (max(batch / images, images / batch), batch))
            assert options.batch_for(images) == nearest
    assert [OPTIONS.most_images(batch) for batch in BATCHES] == [2, 22, None]


def test_batch_sizes_are_sorted_and_positive() -> None:
    assert BuildOptions(("sm_90",), (64, 1, 8, 1)).batches == BATCHES
    for wrong in ((), (0, 1), (1, 2**30 + 1)):
        with pytest.raises(UsageError, match=r"batch sizes '.*': expected one or more from 1 to 1,073,741,824"):
            BuildOptions(("sm_90",), wrong)


def served(builds: Sequence[Build], options: BuildOptions, arch: str, batch: int) -> list[tuple[str, Any]]:
    return [(each.layer, (each.tiling, each.parts)) for each in builds if each.serves(arch, batch, options)]


def test_each_batch_size_has_the_tilings_of_a_job_for_it_alone_and_equal_ones_are_one_build(lenet: Checkpoint) -> None:
    together = submitted(lenet, OPTIONS).builds
    for batch in BATCHES:
        alone = submitted(lenet, BuildOptions(ARCHS, (batch,)))
        for arch in ARCHS:
            assert served(together, OPTIONS, arch, batch) == served(alone.builds, alone.options, arch, batch)
    of_fc2 = [(each.choices[0].arch, each.choices[0].batches) for each in together if each.layer == "fc2"]
    assert of_fc2 == [("sm_80", (1, 8)), ("sm_80", (64,)), ("sm_90", (1,)), ("sm_90", (8, 64))]


def test_a_tiling_that_is_best_again_at_a_larger_batch_size_is_a_build_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    other = choose_tiling(layer().spec, 8, layer().weights.nonzeros_per_output)
    first = replace(other, stages=other.stages % 3 + 2)
    monkeypatch.setattr("farm.tuning.book.choose_tiling", lambda _, batch, *__, **___: other if batch == 8 else first)
    builds = submitted(checkpoint(layer()), BuildOptions(("sm_90",), (2, 8, 64))).builds
    assert [(each.tiling, each.choices[0].batches) for each in builds] == [(first, (2,)), (other, (8,)), (first, (64,))]
    assert builds[1].cubin_name("sm_90", 0) == "conv1 sm_90 batch 8"


def test_a_layer_is_left_dense_only_if_that_is_faster_at_each_batch_size() -> None:
    spec = Conv2d(64, 28, 28, 64, 3, 3, padding=(1, 1, 1, 1))
    net = checkpoint(layer("dense", spec=spec, sparsity=0.1), layer("sparse", spec=spec, sparsity=0.99))
    compiled = {
        batches: [each.layer for each in submitted(net, BuildOptions(("sm_90",), batches, allow_tf32=True)).builds]
        for batches in ((1,), (64,), (1, 64), (32, 64))
    }
    assert "dense" in compiled[(1,)]
    assert "dense" not in compiled[(64,)]
    assert "dense" in compiled[(1, 64)]
    left = next(each for each in submitted(net, BuildOptions(("sm_90",), (32, 64), allow_tf32=True)).skipped)
    assert "us compiled (TF32, H200, batch " in left.reason


def of_batches() -> tuple[list[Build], list[Any]]:
    """A layer with a tiling for one image, and one for more on sm_90; sm_80 has one for all."""
    first = replace(build(0, "conv1"), choices=(TilingChoice("sm_80"), TilingChoice("sm_90", batches=(1,))))
    second = replace(first, id=1, tiling=replace(TILING, stages=3), choices=(TilingChoice("sm_90", batches=(8, 64)),))
    return [first, second], [result(0, "sm_80"), result(0, "sm_90"), result(1, "sm_90")]


def test_a_bundle_says_which_launch_is_for_how_many_images(tmp_path: Path) -> None:
    builds, results = of_batches()
    job = replace(JOB, options=BuildOptions(("sm_90", "sm_80"), BATCHES))
    write_bundle(tmp_path / "out", job, builds, results, TOOLS, stored_cubins())
    bundle = Bundle(tmp_path / "out")
    validator().validate(json.loads((tmp_path / "out" / "manifest.json").read_text()))
    assert bundle.manifest.batches == BATCHES
    conv = bundle.layers["conv1"]
    for images in range(1, 201):
        paths = {arch: [each.path for each in group_for(row_groups(conv.cubins_for(arch)), images)] for arch in ARCHS}
        batch = 1 if job.options.batch_for(images) == 1 else 8
        assert paths == {"sm_80": ["conv1/sm_80.cubin"], "sm_90": [f"conv1/sm_90.batch{batch}.cubin"]}
    again = compiled_model(JobDetail(job, tuple(builds), tuple(results)), stored_cubins())["conv1"]["sm_90"]
    assert [again.parts_for(images) == again.parts[:1] for images in (1, 2, 3, 100)] == [True, True, False, False]


def test_the_rows_of_an_image_count_in_the_limit_of_a_launch() -> None:
    builds, _ = of_batches()
    options = BuildOptions(ARCHS, BATCHES)
    assert [replace(builds[0], rows=rows).most_rows("sm_90", options) for rows in (1, 197, None)] == [2, 394, 256]
    assert builds[0].most_rows("sm_80", options) is None
    assert builds[1].most_rows("sm_90", options) is None


def test_a_layer_that_lacks_a_batch_size_is_missing_for_its_architecture() -> None:
    builds, results = of_batches()
    job = replace(JOB, options=BuildOptions(("sm_90", "sm_80"), BATCHES))
    whole, missing = whole_part(JobDetail(job, tuple(builds), tuple(results[:2])))
    assert [(each.name, each.archs) for each in missing] == [("conv1", ("sm_90",))]
    assert [(each.build, each.arch) for each in whole.results] == [(0, "sm_80")]
    assert [each.id for each in whole.builds] == [0]


def test_a_manifest_without_a_launch_for_any_number_of_images_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "out", stored_cubins())
    text = (tmp_path / "out" / "manifest.json").read_text()
    assert read_manifest(text.encode())
    limited = text.replace('"images_limit":', '"most_rows": 2,\n "images_limit":', 1)
    with pytest.raises(ManifestError, match="no launch is for any number of images"):
        read_manifest(limited.encode())
    for wrong in ("[]", "[8, 1]", "[1, 1]", "[0]"):
        changed = text.replace('"batches": [\n    64\n  ]', f'"batches": {wrong}', 1)
        assert changed != text
        with pytest.raises(ManifestError, match="batches"):
            read_manifest(changed.encode())

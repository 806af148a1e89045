"""Value patches, `--assembler patch` or by `auto`: ptxas once for a mask, its other checkpoints into the same code."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from itertools import count
from pathlib import Path

import numpy as np
import pytest

from cli.main import run
from codegen.ir.checkpoint import Layer, Weights
from codegen.sass.cubin import CubinFile
from farm.api import Farm
from farm.config.settings import Settings
from farm.jobs.model import BuildOptions, Status
from farm.store.contract import blob_digest
from farm.store.disk import DiskStore
from farm.worker.patch import is_sampled
from tests.bundle_samples import manifest_of, validator
from tests.samples import SMALLER, checkpoint, layer
from tests.toolchain.tools import Tools
from tests.verifications import assert_right

PATCH = BuildOptions(("sm_80", "sm_90"), assembler="patch")
AUTO = BuildOptions(("sm_80",))
LAYERS = layer("conv1", sparsity=0.5), layer("conv2", spec=SMALLER, sparsity=0.5)


@pytest.fixture(autouse=True)
def surroundings(settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FARM_STORE", settings.store_url)
    monkeypatch.setenv("FARM_DATABASE_URL", settings.database_url)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))


def refit(one: Layer, seed: int) -> Layer:
    """The layer with other values where it has any."""
    rng = np.random.default_rng(seed)
    kernel, bias = (
        np.where(old != 0, rng.standard_normal(old.shape, dtype=np.float32), np.float32(0))
        for old in (one.weights.kernel, one.weights.bias)
    )
    return replace(one, weights=Weights(kernel, bias))


def sampled(one: Layer, *, wanted: bool = True, first: int = 1) -> Layer:
    """The layer with the first values, from that seed on, that are, or are not, compared with ptxas's cubin."""
    for seed in count(first):  # the layer itself was drawn with 0
        refitted = refit(one, seed)
        if is_sampled(blob_digest(refitted.weights.to_bytes())) is wanted:
            return refitted
    raise AssertionError("count() does not end")


def digests(farm: Farm, job: str) -> list[tuple[str, str, str | None]]:
    found = farm.inspect(job)
    names = {build.id: build.layer for build in found.builds}
    return sorted((names[result.build], result.arch, result.cubin) for result in found.results)


def test_a_checkpoint_of_a_known_mask_needs_no_ptxas_and_has_the_very_cubins_that_ptxas_makes(
    farm: Farm, tools: Tools
) -> None:
    [first] = farm.compile([checkpoint(*LAYERS)], PATCH)
    assert first.status is Status.SUCCEEDED, first.reason
    assert tools.calls() == ["nvcc"] * 2 + ["ptxas"] * 4
    net = checkpoint(*(sampled(one, wanted=False) for one in LAYERS))
    [patched] = farm.compile([net], PATCH)
    assert patched.status is Status.SUCCEEDED, patched.reason
    assert tools.calls() == []
    assert {result.assembler for result in farm.inspect(patched.id).results} == {"patch"}
    [by_ptxas] = farm.compile([net], replace(PATCH, assembler="ptxas"))
    assert tools.calls() == ["ptxas"] * 4
    assert digests(farm, patched.id) == digests(farm, by_ptxas.id)


def test_auto_patches_a_checkpoint_of_a_known_mask_where_it_would_run_ptxas(
    farm: Farm, tools: Tools, capsys: pytest.CaptureFixture[str]
) -> None:
    [first] = farm.compile([checkpoint(*(sampled(one, wanted=False) for one in LAYERS))], AUTO)
    assert {result.assembler for result in farm.inspect(first.id).results} == {"ptxas"}
    assert tools.calls() == ["nvcc"] * 2 + ["ptxas"] * 2
    net = checkpoint(*(sampled(one, wanted=False, first=100) for one in LAYERS))
    [second] = farm.compile([net], AUTO)
    assert tools.calls() == []
    assert {(each.assembler, each.fallback) for each in farm.inspect(second.id).results} == {("patch", "")}
    assert run(["inspect", second.id]) == 0
    assert "2 of 2 cubins patched into code of the same mask" in capsys.readouterr().out
    [by_ptxas] = farm.compile([net], replace(AUTO, assembler="ptxas"))
    assert digests(farm, second.id) == digests(farm, by_ptxas.id)


def test_cubins_do_not_depend_on_what_the_store_knew_of_their_mask(farm: Farm, tmp_path: Path) -> None:
    net = checkpoint(*LAYERS)
    [alone] = farm.compile([net], AUTO)
    farm.compile([checkpoint(*(refit(one, 1) for one in LAYERS))], AUTO)
    for record in (tmp_path / "store" / "v1" / "ac" / "cubin").rglob("*.json"):
        record.unlink()
    [patched] = farm.compile([net], AUTO)
    assert {each.assembler for each in farm.inspect(patched.id).results} == {"patch"}
    assert digests(farm, alone.id) == digests(farm, patched.id)
    keys = [{each.cubin_key for each in farm.inspect(job.id).results} for job in (alone, patched)]
    assert keys[0] == keys[1]


def test_checkpoints_of_one_submission_that_share_a_mask_need_ptxas_once(settings: Settings, tools: Tools) -> None:
    nets = [checkpoint(sampled(LAYERS[0], wanted=False, first=seed)) for seed in (100, 200, 300)]
    with Farm.open(replace(settings, executor="processes", jobs=3)) as farm:
        jobs = farm.compile(nets, AUTO)
        assert [job.status for job in jobs] == [Status.SUCCEEDED] * 3
        assert tools.calls() == ["nvcc", "ptxas"]
        found = [result.assembler for job in jobs for result in farm.inspect(job.id).results]
    assert sorted(found) == ["patch", "patch", "ptxas"]


def test_auto_does_not_patch_a_mask_that_differs_by_one_weight(farm: Farm, tools: Tools) -> None:
    one = sampled(LAYERS[0], wanted=False)
    farm.compile([checkpoint(one)], AUTO)
    tools.calls()
    kernel = one.weights.kernel.copy()
    kernel[tuple(np.argwhere(kernel != 0)[7])] = 0
    other = replace(one, weights=Weights(kernel, one.weights.bias))
    [job] = farm.compile([checkpoint(sampled(other, wanted=False))], AUTO)
    assert tools.calls() == ["ptxas"]
    assert [each.assembler for each in farm.inspect(job.id).results] == ["ptxas"]


def test_a_patch_that_fails_falls_back_to_ptxas_and_says_so(farm: Farm, tools: Tools, tmp_path: Path) -> None:
    one = sampled(LAYERS[0], wanted=False)
    farm.compile([checkpoint(one)], AUTO)
    [path] = (tmp_path / "store" / "v1" / "ac" / "patch").rglob("*.json")
    record, store = json.loads(path.read_text()), DiskStore(tmp_path / "store")
    cubin = CubinFile.read(store.get(record["cubin"]) or b"")
    without_a_tag = cubin.words
    [place, *_] = np.flatnonzero((without_a_tag[:, 0] & np.uint64(0xFFF)) == np.uint64(0x823))
    without_a_tag[place] = 0
    path.write_text(json.dumps({**record, "cubin": store.put(cubin.with_words(without_a_tag))}))
    tools.calls()
    net = checkpoint(sampled(one, wanted=False, first=100))
    [job] = farm.compile([net], AUTO)
    assert tools.calls() == ["ptxas"]
    [result] = farm.inspect(job.id).results
    assert result.assembler == "ptxas"
    assert "the patch template does not have every weight" in result.fallback
    [by_ptxas] = farm.compile([net], replace(AUTO, assembler="ptxas"))
    assert digests(farm, job.id) == digests(farm, by_ptxas.id)


def test_another_mask_is_another_patch_template(farm: Farm, tools: Tools) -> None:
    farm.compile([checkpoint(*LAYERS)], PATCH)
    tools.calls()
    farm.compile([checkpoint(layer("conv1", sparsity=0.5, seed=5), LAYERS[1])], PATCH)
    assert tools.calls() == ["ptxas"] * 2


def test_a_lost_patch_template_is_made_again(farm: Farm, tools: Tools, tmp_path: Path) -> None:
    farm.compile([checkpoint(*LAYERS)], PATCH)
    for record in (tmp_path / "store" / "v1" / "ac" / "patch").rglob("*.json"):
        record.unlink()
    tools.calls()
    [job] = farm.compile([checkpoint(*(sampled(one, wanted=False) for one in LAYERS))], PATCH)
    assert job.status is Status.SUCCEEDED, job.reason
    assert tools.calls() == ["ptxas"] * 4


def test_values_that_ptxas_has_other_code_for_are_left_to_it_and_the_job_says_why(
    farm: Farm, capsys: pytest.CaptureFixture[str]
) -> None:
    one = layer("half", spec=replace(SMALLER, data_type="float16"), sparsity=0.5)
    kernel = np.where(one.weights.kernel != 0, np.float32(1), np.float32(0))
    farm.compile([checkpoint(refit(LAYERS[0], 1))], PATCH)
    [job] = farm.compile([checkpoint(replace(one, weights=Weights(kernel, one.weights.bias)), LAYERS[0])], PATCH)
    assert job.status is Status.SUCCEEDED, job.reason
    assert run(["inspect", job.id]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "2 of 4 cubins patched into code of the same mask, the others by ptxas" in shown
    assert "2 by ptxas: float16 weight of 1.0" in shown


def test_a_sampled_layer_is_assembled_by_ptxas_too_and_log_and_record_say_so(
    farm: Farm, tools: Tools, tmp_path: Path
) -> None:
    farm.compile([checkpoint(*LAYERS)], PATCH)
    tools.calls()
    [job] = farm.compile([checkpoint(sampled(LAYERS[0]), sampled(LAYERS[1], wanted=False))], PATCH)
    assert job.status is Status.SUCCEEDED, job.reason
    assert tools.calls() == ["ptxas"] * 2
    assert [each.text.count("equal to ptxas's cubin") for each in farm.logs(job.id)].count(1) == 2
    records = [json.loads(each.read_text()) for each in (tmp_path / "store" / "v1" / "ac" / "cubin").rglob("*.json")]
    assert [(each["assembler"], each["sampled"]) for each in records if each["sampled"]] == [("patch", True)] * 2


def test_a_patch_template_that_a_sample_shows_to_be_wrong_is_replaced_by_ptxas_for_its_whole_mask(
    farm: Farm, tools: Tools, tmp_path: Path
) -> None:
    one, patch = LAYERS[0], replace(PATCH, archs=("sm_90",))
    farm.compile([checkpoint(one)], patch)
    [path] = (tmp_path / "store" / "v1" / "ac" / "patch").rglob("*.json")
    record, store = json.loads(path.read_text()), DiskStore(tmp_path / "store")
    cubin = CubinFile.read(store.get(record["cubin"]) or b"")
    words = cubin.words
    words[7, 1] ^= np.uint64(1 << 41)  # its stall count
    path.write_text(json.dumps({**record, "cubin": store.put(cubin.with_words(words))}))

    [unseen] = farm.compile([checkpoint(sampled(one, wanted=False))], patch)
    assert [each.assembler for each in farm.inspect(unseen.id).results] == ["patch"]
    wrong = sampled(one)
    [found] = farm.compile([checkpoint(wrong)], patch)
    assert found.status is Status.SUCCEEDED, found.reason
    [warning] = [each.text for each in farm.logs(found.id) if each.level == "warning"]
    assert re.search(r"differs from ptxas \(1 of \d+ words, from word 7 on\)", warning)
    [by_ptxas] = farm.compile([checkpoint(wrong)], replace(patch, assembler="ptxas"))
    assert digests(farm, found.id) == digests(farm, by_ptxas.id)
    tools.calls()
    [later] = farm.compile([checkpoint(refit(one, 1000))], patch)
    assert [each.assembler for each in farm.inspect(later.id).results] == ["ptxas"]


def test_bundle_inspect_and_store_say_who_made_the_code(
    farm: Farm, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    farm.compile([checkpoint(*(refit(one, 1) for one in LAYERS))], PATCH)
    [job] = farm.compile([checkpoint(*LAYERS)], PATCH)
    farm.fetch(job.id, tmp_path / "out")
    manifest = manifest_of(tmp_path / "out")
    validator().validate(manifest)
    cubins = [each["cubins"]["sm_90"] for one in manifest["layers"] for each in one["launches"]]
    assert [cubin["assembler"] for cubin in cubins] == ["patch", "patch"]
    assert run(["cache", "ls"]) == 0
    assert re.search(r"^patch +4 ", capsys.readouterr().out, re.MULTILINE)
    assert_right(farm.verify(job.id))

"""`farm fetch --ptx`: the PTX that the cubins were made from, for GPUs that came later."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from cli.main import run
from codegen.target.device_model import typical_device
from codegen.toolchain.ptxas import assemble
from farm.api import Farm
from farm.bundle import ptx
from farm.bundle.ptx import newest_ptx
from farm.bundle.reader import Bundle
from farm.config.settings import Settings
from farm.errors import UsageError
from farm.jobs.model import BuildOptions, Job, Status
from farm.store import open_store
from tests.bundle_samples import manifest_of, validator
from tests.toolchain.tools import NET


@pytest.fixture
def job(farm: Farm, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    """For a GPU with PTX of its own and one with the newest."""
    monkeypatch.setenv("FARM_STORE", settings.store_url)
    monkeypatch.setenv("FARM_DATABASE_URL", settings.database_url)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    [job] = farm.compile([NET], BuildOptions(("sm_75", "sm_80")))
    assert job.status is Status.SUCCEEDED, job.reason
    return job


def test_the_newest_ptx_is_in_the_bundle_and_becomes_code_for_a_later_gpu(
    farm: Farm, job: Job, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "out"
    assert run(["fetch", job.id, "-o", str(folder), "--ptx", "--verify"]) == 0
    assert capsys.readouterr().out == f"{folder / 'manifest.json'}: 4 cubins\n"
    bundle = Bundle(folder)
    manifest = manifest_of(folder)
    validator().validate(manifest)
    for layer in manifest["layers"]:
        for launch in layer["launches"]:
            assert ("ptx" in launch) == ("sm_80" in launch["cubins"])
            if "ptx" in launch:
                assert launch["ptx"]["sha256"] == launch["cubins"]["sm_80"]["ptx_sha256"]
    for layer in bundle.layers.values():
        [later] = layer.cubins_for("sm_120")
        assert later.arch == "compute_80"
        cubin = assemble(bundle.cubin(later), "sm_120", farm.toolchain)
        assert cubin.data[:4] == b"\x7fELF"


def test_ptx_asks_for_no_more_shared_memory_than_a_block_of_any_later_gpu_may_have(farm: Farm, tmp_path: Path) -> None:
    [job] = farm.compile([NET], BuildOptions(("sm_90",), batches=(1,)))
    farm.fetch(job.id, tmp_path / "out", ptx=True)
    most = typical_device("sm_120").multiprocessor.block_shared_bytes
    for layer in Bundle(tmp_path / "out").layers.values():
        [later] = layer.cubins_for("sm_120")
        assert later.launch.shared_bytes <= most


def test_without_being_asked_for_there_is_none(farm: Farm, job: Job, tmp_path: Path) -> None:
    farm.fetch(job.id, tmp_path / "out")
    assert not any(layer.ptx for layer in Bundle(tmp_path / "out").layers.values())


def test_ptx_that_the_rewriter_no_longer_makes_is_refused(farm: Farm, job: Job, settings: Settings) -> None:
    detail = farm.inspect(job.id)
    others = tuple(replace(each, ptx="ab" * 32) for each in detail.results)
    with pytest.raises(UsageError, match="conv1: the rewriter has changed and gives other PTX"):
        newest_ptx(replace(detail, results=others), open_store(settings))


def test_cubins_made_without_ptx_have_no_digest_of_it_and_ptxas_ones_of_the_same_job_do(
    farm: Farm, tmp_path: Path
) -> None:
    [job] = farm.compile([NET], BuildOptions(("sm_88", "sm_90"), assembler="direct"))  # sm_88 is left to ptxas
    detail = farm.inspect(job.id)
    assert {(result.assembler, result.ptx is None) for result in detail.results} == {("direct", True), ("ptxas", False)}
    assert all((result.rewrite_seconds == 0) == (result.ptx is None) for result in detail.results)
    for build in detail.builds:
        made = {(result.fmas_kept, result.fmas_deleted) for result in detail.results_of(build)}
        kept = build.nonzeros * build.tiling.rows
        assert made == {(kept, build.spec.weights_count * build.tiling.rows - kept)}
    farm.fetch(job.id, tmp_path / "out")
    manifest = manifest_of(tmp_path / "out")
    validator().validate(manifest)
    cubins = [
        made for layer in manifest["layers"] for launch in layer["launches"] for made in launch["cubins"].values()
    ]
    assert {(each["assembler"], "ptx_sha256" in each) for each in cubins} == {("direct", False), ("ptxas", True)}
    assert Bundle(tmp_path / "out").layers.keys() == {build.layer for build in detail.builds}


def test_ptx_of_cubins_made_without_it_is_what_ptxas_assembles_of_the_same_layers(
    farm: Farm, settings: Settings
) -> None:
    store = open_store(settings)
    texts = []
    for assembler in ("direct", "ptxas"):
        [job] = farm.compile([NET], BuildOptions(("sm_90",), assembler=assembler))
        texts.append([kernel.text for kernel in newest_ptx(farm.inspect(job.id), store)])
    assert texts[0] == texts[1]
    assert texts[0]


def test_ptx_of_cubins_made_without_it_is_refused_once_the_rewriter_has_changed(
    farm: Farm, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    [job] = farm.compile([NET], BuildOptions(("sm_90",), assembler="direct"))
    monkeypatch.setattr(ptx, "code_digest", lambda sources: "ab" * 32)
    with pytest.raises(UsageError, match="conv1: the rewriter has changed and gives other PTX"):
        newest_ptx(farm.inspect(job.id), open_store(settings))

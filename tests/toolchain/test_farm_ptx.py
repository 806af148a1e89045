"""`farm fetch --ptx`: the PTX that the cubins were made from, for GPUs that came later."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from cli.main import run
from codegen.toolchain.ptxas import assemble
from farm.api import Farm
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


def test_without_being_asked_for_there_is_none(farm: Farm, job: Job, tmp_path: Path) -> None:
    farm.fetch(job.id, tmp_path / "out")
    assert not any(layer.ptx for layer in Bundle(tmp_path / "out").layers.values())


def test_ptx_that_the_rewriter_no_longer_makes_is_refused(farm: Farm, job: Job, settings: Settings) -> None:
    detail = farm.inspect(job.id)
    others = tuple(replace(each, ptx="ab" * 32) for each in detail.results)
    with pytest.raises(UsageError, match="conv1: the rewriter has changed and gives other PTX"):
        newest_ptx(replace(detail, results=others), open_store(settings))

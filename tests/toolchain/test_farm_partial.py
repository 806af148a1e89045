"""One failed layer does not cost the bundle of the others: it is fetched on request, and says what it lacks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cli.main import run
from farm.api import Farm
from farm.bundle.reader import Bundle
from farm.config.settings import Settings
from farm.errors import JobFailedError, UsageError
from farm.jobs.model import Job, Status
from tests.bundle_samples import contents, manifest_of, validator
from tests.samples import SMALLER
from tests.toolchain.tools import NET, OPTIONS, Tools

REFUSAL = "ptxas error   : too much shared data"


@pytest.fixture(autouse=True)
def environment(settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FARM_STORE", settings.store_url)
    monkeypatch.setenv("FARM_DATABASE_URL", settings.database_url)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))


def refused(farm: Farm, tools: Tools, condition: str) -> Job:
    """A job of which ptxas refuses some kernels, by a shell's condition on its arguments."""
    tools.say("ptxas", f"if {condition}; then echo '{REFUSAL}' >&2; exit 255; fi\n{tools.command('ptxas')}")
    [job] = farm.compile([NET], OPTIONS)
    assert job.status is Status.FAILED
    return job


_MADE_OF = f"""grep -q '"height": {SMALLER.height},' "$a" && found=1"""
CONV2 = f"""found=; for a; do case "$a" in *.ptx) {_MADE_OF};; esac; done; [ "$found" ]"""
"""Whether it is conv2's kernel: PTX says in its first line what it was made of."""


def test_a_failed_layer_is_left_out_and_the_others_are_in_the_bundle(
    farm: Farm, tools: Tools, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = refused(farm, tools, CONV2)
    folder = tmp_path / "out"
    assert run(["fetch", job.id, "-o", str(folder), "--partial"]) == 104
    out, err = capsys.readouterr()
    assert out == f"{folder / 'manifest.json'}: 2 cubins\n"
    assert f"warning: the bundle of {job.name} is incomplete, without 1 layer" in err
    assert f"  conv2 for sm_80, sm_90: ptxas failed: {REFUSAL}" in err
    manifest = json.loads((folder / "manifest.json").read_text())
    validator().validate(manifest)
    assert [layer["name"] for layer in manifest["layers"]] == ["conv1"]
    [missing] = manifest["missing"]
    assert (missing["name"], missing["operator"], missing["archs"]) == ("conv2", "conv2d", ["sm_80", "sm_90"])
    assert REFUSAL in missing["reason"]
    assert set(contents(folder)) == {"manifest.json", "provenance.json", "conv1/sm_80.cubin", "conv1/sm_90.cubin"}


def test_an_architecture_that_failed_is_left_out_of_every_layer(farm: Farm, tools: Tools, tmp_path: Path) -> None:
    job = refused(farm, tools, 'case "$*" in *sm_90*) true;; *) false;; esac')
    path = farm.fetch(job.id, tmp_path / "net.farm", partial=True)
    bundle = Bundle(path)
    validator().validate(manifest_of(path))
    assert list(bundle.layers) == ["conv1", "conv2"]
    assert {each.name: list(each.archs) for each in bundle.missing} == {"conv1": ["sm_90"], "conv2": ["sm_90"]}
    assert all(layer.cubins_for("sm_80") for layer in bundle.layers.values())
    assert not bundle.damage()
    with pytest.raises(UsageError, match=r"without a network: conv1 was not compiled .*: run farm retry"):
        _ = bundle.network


def test_without_the_option_nothing_is_written_and_the_error_names_it(
    farm: Farm, tools: Tools, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = refused(farm, tools, CONV2)
    assert run(["fetch", job.id, "-o", str(tmp_path / "out")]) == 100
    assert "farm fetch --partial writes what there is: 1 of 2 layers" in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "out").exists()


def test_a_job_of_which_nothing_is_whole_has_no_bundle(farm: Farm, tools: Tools, tmp_path: Path) -> None:
    job = refused(farm, tools, "true")
    with pytest.raises(JobFailedError, match="4 of 4 cubins failed"):
        farm.fetch(job.id, tmp_path / "out", partial=True)


def test_of_a_job_that_succeeded_the_option_changes_nothing(farm: Farm, tmp_path: Path) -> None:
    [job] = farm.compile([NET], OPTIONS)
    assert run(["fetch", job.id, "-o", str(tmp_path / "one"), "--partial"]) == 0
    assert run(["fetch", job.id, "-o", str(tmp_path / "two")]) == 0
    assert contents(tmp_path / "one") == contents(tmp_path / "two")
    assert farm.missing_layers(job.id) == ()

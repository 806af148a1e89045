"""A store and a ledger that an older commit wrote: today's program fetches from them what that one made."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from codegen.ir.launch import Launch
from codegen.kernels import conv2d
from farm.api import Farm
from farm.bundle.reader import Bundle
from farm.testing import laptop_settings

OLDER_STORE = Path(__file__).parent.parent / "golden" / "older_store.tar.xz"
"""Of 4686a3e (manifest version 7): a convolution and a linear layer for sm_80 and sm_90, with the manifest of then."""
JOB = "d47ab2185503"


@pytest.fixture
def older(tmp_path: Path) -> Path:
    with tarfile.open(OLDER_STORE) as archive:
        for member in archive:
            if data := archive.extractfile(member):  # a file
                (tmp_path / member.name).parent.mkdir(parents=True, exist_ok=True)
                (tmp_path / member.name).write_bytes(data.read())
    return tmp_path


def manifest(path: Path) -> dict[str, Any]:
    read: dict[str, Any] = json.loads(path.read_text())
    return read


@pytest.fixture
def newer_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """Were it asked, it would launch convolutions otherwise."""

    def launch_of(*_: object) -> Launch:
        raise AssertionError("a launch is the cubin's record's to say")

    monkeypatch.setattr(conv2d, "launch_of", launch_of)


@pytest.mark.usefixtures("newer_program")
def test_the_layers_of_an_older_commits_job_are_fetched_with_its_cubins_and_launches(older: Path) -> None:
    with Farm.open(laptop_settings(older)) as farm:
        fetched = manifest(farm.fetch(JOB, older / "bundle"))
    then = manifest(older / "manifest.json")
    assert [layer["launches"] for layer in fetched["layers"]] == [layer["launches"] for layer in then["layers"]]
    assert {cubin for layer in then["layers"] for launch in layer["launches"] for cubin in launch["cubins"]} == {
        "sm_80",
        "sm_90",
    }
    assert not Bundle(older / "bundle").damage()

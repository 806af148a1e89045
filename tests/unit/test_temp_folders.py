"""Temporary folders are removed with their process, or later by another process."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from codegen.toolchain.temp_folders import TempFolder, remove_abandoned
from tests.house.tree import ROOT

OWNER = """
import sys
from codegen.toolchain.temp_folders import TempFolder

folder = TempFolder("assemble")
print(folder.path, flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def _temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


@contextmanager
def owner(temporary: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """Another process and its temporary folder."""
    environment = {"TMPDIR": str(temporary), "PYTHONPATH": str(ROOT)}
    start = [sys.executable, "-c", OWNER]
    with subprocess.Popen(start, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process, Path(process.stdout.readline().strip())


def test_it_is_there_in_the_block_and_nothing_of_it_after(tmp_path: Path) -> None:
    with TempFolder("assemble") as folder:
        (folder / "deep" / "er").mkdir(parents=True)
        assert folder.name.startswith("farm-assemble-")
    assert list(tmp_path.iterdir()) == []


def test_folders_of_killed_processes_are_removed_but_not_those_in_use(tmp_path: Path) -> None:
    with owner(tmp_path) as (killed, left), owner(tmp_path) as (_, used), TempFolder("template") as mine:
        (left / "session" / "logs").mkdir(parents=True)
        killed.kill()
        killed.wait()
        assert left.exists()
        remove_abandoned()
        assert not left.exists()
        assert used.exists()
        assert mine.exists()
    remove_abandoned()
    assert list(tmp_path.iterdir()) == []


def test_a_process_killed_before_it_made_its_folder_leaves_nothing_either(tmp_path: Path) -> None:
    with owner(tmp_path) as (killed, left):
        killed.kill()
        killed.wait()
        left.rmdir()
        remove_abandoned()
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_removed_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr("shutil.rmtree", lambda *_, **__: None)
        with TempFolder("assemble") as folder:
            pass
        assert folder.exists()
    remove_abandoned()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_of_somebody_else_with_a_like_name_stays(tmp_path: Path) -> None:
    other = tmp_path / "farm-ray-notes"
    other.mkdir()
    remove_abandoned()
    assert other.exists()

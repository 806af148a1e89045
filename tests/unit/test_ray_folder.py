"""The folder of a local Ray goes with its process, at the latest with the next start."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from farm.executors.folder import RayFolder
from tests.house.tree import ROOT

OWNER = """
import sys
from farm.executors.folder import RayFolder

folder = RayFolder()
print(folder.path, flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def _temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def test_the_folder_of_a_killed_process_goes_with_the_next_start_and_one_in_use_stays(tmp_path: Path) -> None:
    environment = {"TMPDIR": str(tmp_path), "PYTHONPATH": str(ROOT)}
    start = [sys.executable, "-c", OWNER]
    with (
        subprocess.Popen(start, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as killed,
        subprocess.Popen(start, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as living,
    ):
        assert killed.stdout is not None
        assert living.stdout is not None
        left, used = Path(killed.stdout.readline().strip()), Path(living.stdout.readline().strip())
        (left / "session" / "logs").mkdir(parents=True)
        killed.kill()
        killed.wait()
        mine = RayFolder()
        assert not left.exists()
        assert used.exists()
        assert mine.path.exists()
        mine.remove()
        assert not mine.path.exists()


def test_a_folder_of_somebody_else_with_a_like_name_stays(tmp_path: Path) -> None:
    other = tmp_path / "farm-ray-notes"
    other.mkdir()
    RayFolder().remove()
    assert other.exists()

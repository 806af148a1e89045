"""The project's own files."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("cli", "codegen", "farm", "migrations")


def modules(*folders: str) -> list[str]:
    """The Python files below some folders, as paths from the root."""
    return sorted(str(path.relative_to(ROOT)) for folder in folders for path in (ROOT / folder).rglob("*.py"))


def own_files() -> list[Path]:
    """Every file that belongs to the project: what git tracks, or would if it were added."""
    if not (ROOT / ".git").exists():
        pytest.skip("needs a git checkout: here nothing tells the project's files from others")
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return [ROOT / name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()]

"""What no file of the project may say: where its writer worked, where packages come from, what is put off."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.house.tree import ROOT, own_files

FORBIDDEN = {
    "a path of one machine": r"(?<![\w.])/(work|root|home/\w+|tmp/w)/",
    "a registry's address": r"(pypi|pythonhosted|npmjs|(deb|ftp)\.debian)\.org|--(extra-)?index-url",
    "a file to download": r"https?://\S+\.(whl|tar\.gz|deb)\b",
    "something put off": r"\b(TODO|FIXME|XXX)\b",
}


@pytest.mark.parametrize("what", FORBIDDEN)
def test_no_file_holds(what: str) -> None:
    pattern = re.compile(FORBIDDEN[what])
    this_file = Path(__file__).resolve()
    found = []
    for path in own_files():
        if path == this_file:
            continue
        try:
            text = path.read_text()
        except UnicodeDecodeError:
            continue
        for number, line in enumerate(text.splitlines(), 1):
            if pattern.search(line):
                found.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()[:100]}")
    assert not found


def test_constraints_pin_exact_versions_of_everything_the_project_needs() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert pins == sorted(pins, key=str.lower)
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+==[\w.]+( ; .+)?", line) for line in pins)

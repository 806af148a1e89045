"""What no file of the project may say: where its writer worked, where packages come from, what is put off."""

from __future__ import annotations

import re
import tomllib

import pytest

from tests.house.tree import ROOT, own_files

FORBIDDEN = {
    "a path of one machine": r"(?<![\w.])/(work|root|tmp/w)/",
    "a registry's address": r"(pypi|pythonhosted|npmjs|(deb|ftp)\.debian)\.org|--(extra-)?index-url",
    "a file to download": r"https?://\S+\.(whl|tar\.gz|deb)\b",
    "something put off": r"\b(TO-?DO|FIX-?ME)\b",
}


@pytest.mark.parametrize("what", FORBIDDEN)
def test_no_file_holds(what: str) -> None:
    pattern = re.compile(FORBIDDEN[what])
    found = []
    for path in own_files():
        try:
            text = path.read_text()
        except UnicodeDecodeError:
            continue
        for number, line in enumerate(text.splitlines(), 1):
            if pattern.search(line):
                found.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()[:100]}")
    assert not found


def test_constraints_pin_an_exact_version_of_everything_the_project_asks_for() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert not [line for line in pins if not re.fullmatch(r"[\w.-]+==[\w.]+( ; .+)?", line)]
    pinned = {_normal(line.partition("==")[0]) for line in pins}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = [*project["dependencies"], *project["optional-dependencies"]["dev"]]
    assert {_normal(re.split(r"[^\w.-]", requirement)[0]) for requirement in named} <= pinned


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()

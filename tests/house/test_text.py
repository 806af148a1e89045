"""Rules for the text of all files: no path of one machine, no registry, no postponed work; numbered decisions."""

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


def test_a_document_that_is_named_is_there() -> None:
    there = {path.name for path in own_files() if path.suffix == ".md"}
    wrong = []
    for path in own_files():
        if path.suffix in (".py", ".md", ".cu", ".cuh", ".toml", ".yaml"):
            named = set(re.findall(r"\b([\w-]+\.md)\b", path.read_text()))
            wrong += [f"{path.relative_to(ROOT)} names {name}" for name in sorted(named - there)]
    assert not wrong


def test_decisions_are_numbered_without_a_gap_and_dated() -> None:
    headings = [line for line in _decisions() if line.startswith("### ")]
    matches = [re.fullmatch(r"### (\d+)\. .+ \(20\d\d-\d\d-\d\d\)", line) for line in headings]
    assert [int(match[1]) for match in matches if match] == list(range(1, len(headings) + 1))


def test_the_index_of_decisions_has_each_group_with_its_numbers() -> None:
    groups: dict[str, list[int]] = {}
    for line in _decisions():
        if line.startswith("## "):
            groups[line.removeprefix("## ")] = []
        elif line.startswith("### "):
            groups[list(groups)[-1]].append(int(line.split()[1].removesuffix(".")))
    expected = [f"- {name}: {numbers[0]}-{numbers[-1]}" for name, numbers in groups.items() if numbers]
    assert [line for line in _decisions() if re.fullmatch(r"- .+: \d+-\d+", line)] == expected


def _decisions() -> list[str]:
    return (ROOT / "DECISIONS.md").read_text().splitlines()

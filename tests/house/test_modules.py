"""Modules are named for what they hold, and the wheel holds all of them."""

from __future__ import annotations

import ast
import tomllib
from pathlib import Path

from tests.house.tree import PACKAGES, ROOT, modules

EMPTY_NAMES = {"base", "common", "handler", "helper", "helpers", "manager", "misc", "util", "utils"}

FOLDERS = sorted({str(Path(file).parent) for file in modules(*PACKAGES)})


def test_a_module_is_named_for_what_it_holds() -> None:
    named = [file for file in modules(*PACKAGES, "tests") if EMPTY_NAMES & set(Path(file).stem.split("_"))]
    assert not named


def test_a_module_says_what_it_is_and_reads_its_annotations_late() -> None:
    wrong = []
    for file in modules(*PACKAGES):
        tree = ast.parse((ROOT / file).read_text())
        late = len(tree.body) == 1 or ast.unparse(tree.body[1]) == "from __future__ import annotations"
        if not (ast.get_docstring(tree) and late):
            wrong.append(file)
    assert not wrong


def test_the_wheel_holds_every_package_and_every_file_that_is_not_python() -> None:
    setuptools = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    assert sorted(setuptools["packages"]) == [folder.replace("/", ".") for folder in FOLDERS]
    for folder in FOLDERS:
        patterns = setuptools["package-data"].get(folder.replace("/", "."), [])
        packed = {path for pattern in patterns for path in (ROOT / folder).glob(pattern)}
        plain = [path for path in (ROOT / folder).iterdir() if path.is_dir() and not any(path.rglob("*.py"))]
        inside = [path for each in (ROOT / folder, *plain) for path in each.iterdir() if path.is_file()]
        data = {path for path in inside if path.suffix not in (".py", ".pyc", ".md")}
        assert packed == data, folder

"""Every extra that is named exists, and no command installs this program from a package index."""

from __future__ import annotations

import re
import sys
import tomllib
from typing import get_args

from farm.extras import Extra, way_out
from tests.house.tree import ROOT, own_files

EXTRAS = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])
BY_NAME = "sparse-compile-farm" + "["
"""Start of an extra's name as on a package index."""


def texts() -> dict[str, str]:
    files = [path for path in own_files() if path.suffix in ("", ".md", ".py", ".toml", ".yaml")]
    return {str(path.relative_to(ROOT)): path.read_text(errors="replace") for path in files}


def test_nobody_is_told_to_install_it_from_an_index() -> None:
    assert not [name for name, text in texts().items() if BY_NAME in text]


def test_every_extra_that_is_named_exists() -> None:
    named = {
        extra
        for text in texts().values()
        for group in re.findall(r"'\.\[([a-z,]+)\]'", text)
        for extra in group.split(",")
    }
    assert named <= EXTRAS
    assert {"metrics", "postgres"} <= named


def test_messages_know_the_extras_that_users_need() -> None:
    assert set(get_args(Extra)) == EXTRAS - {"dev"}
    assert way_out("postgres") == f"in a checkout of this program, {sys.executable} -m pip install '.[postgres]'"
    makefile = (ROOT / "Makefile").read_text()
    for extra in ("gpu", "torch"):
        assert way_out(extra).endswith(f"make {extra}")
        assert re.search(rf"^{extra}:", makefile, re.M)

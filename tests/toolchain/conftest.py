"""A farm on one machine, with the real tools."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from farm.api import Farm
from farm.settings import Settings
from farm.testing import laptop_settings
from tests.toolchain.tools import Tools


@pytest.fixture
def tools(tmp_path: Path) -> Tools:
    folder = tmp_path / "tools"
    folder.mkdir()
    return Tools(folder)


@pytest.fixture
def settings(tmp_path: Path, tools: Tools) -> Settings:
    return replace(laptop_settings(tmp_path), nvcc=tools.nvcc, ptxas=tools.ptxas)


@pytest.fixture
def farm(settings: Settings) -> Iterator[Farm]:
    with Farm.open(settings) as farm:
        yield farm

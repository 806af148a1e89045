"""A farm on one machine, with the real tools."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from farm.api import Farm
from farm.config.settings import Settings
from farm.testing import laptop_settings
from tests.toolchain.played_runtimes import Played, build_driver
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


@pytest.fixture
def farm_of_commands(farm: Farm, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Farm:
    """The farm; the `farm` command works with its ledger and store, in a process of its own."""
    monkeypatch.setenv("FARM_STORE", settings.store_url)
    monkeypatch.setenv("FARM_DATABASE_URL", settings.database_url)
    monkeypatch.setenv("FARM_EXECUTOR", "inline")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    return farm


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the driver that is played, and the programs that run bundles."""
    folder = tmp_path_factory.mktemp("driver")
    build_driver(folder)
    return folder


@pytest.fixture
def played(driver: Path, tmp_path: Path) -> Played:
    return Played(driver, tmp_path)

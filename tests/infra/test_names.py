"""Settings, commands, options and versions that the files name exist."""

from __future__ import annotations

import importlib
import re
from typing import Any

import pytest
import typer.main

from cli.main import app
from farm.config.settings import load_settings
from farm.config.settings_table import SETTINGS
from tests.house.tree import ROOT
from tests.infra.documents import IMAGE, INFRA, commands, documents, kubernetes

OF_THE_COMPOSE_FILE = {"FARM_IMAGE", "FARM_WORKER_CPUS", "FARM_WORKER_MEMORY"}
"""Variables that only it reads."""
OF_RAY = {
    "RAY_ADDRESS",
    "RAY_AUTH_MODE",
    "RAY_AUTH_TOKEN",
    "RAY_AUTH_TOKEN_PATH",
    "RAY_HEAD_IP",
    "RAY_USAGE_STATS_ENABLED",
}

FILES = sorted(path for path in INFRA.rglob("*") if path.is_file() and "secrets" not in path.parent.name)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(INFRA)))
def test_every_variable_is_one_that_somebody_reads(path: Any) -> None:
    known = {setting.variable for setting in SETTINGS} | {"FARM_CONFIG"} | OF_THE_COMPOSE_FILE | OF_RAY
    named = set(re.findall(r"\b(?:FARM|RAY)_[A-Z0-9_]+\b", path.read_text()))
    assert not named - known


def test_the_variables_of_the_compose_file_are_explained() -> None:
    readme = (INFRA / "README.md").read_text()
    assert not [name for name in OF_THE_COMPOSE_FILE if name not in readme]


def test_every_value_of_a_setting_is_one_that_the_program_takes() -> None:
    [compose] = documents("compose.yaml")
    [configuration] = kubernetes("ConfigMap")
    [cluster] = documents("ray-cluster.yaml")
    options = [option.removeprefix("--env=").partition("=") for option in cluster["docker"]["run_options"]]
    for values in (
        _filled(compose["services"]["coordinator"]["environment"]),
        configuration["data"],
        {name: re.sub(r"<[^>]*>", "example", value) for name, _, value in options if name.startswith("FARM_")},
    ):
        settings = load_settings({name: value for name, value in values.items() if name.startswith("FARM_")})
        assert settings.store_url.startswith("s3://")
        assert settings.database_url.startswith("postgresql+psycopg://")


def _filled(values: dict[str, str]) -> dict[str, str]:
    """Values with the defaults of ${NAME:-default}."""
    return {name: re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", value) for name, value in values.items()}


@pytest.mark.parametrize("call", sorted(commands("farm")), ids=" ".join)
def test_every_command_and_option_of_farm_is_there(call: tuple[str, ...]) -> None:
    command: Any = typer.main.get_command(app)
    words = list(call[1:])
    while words and hasattr(command, "commands") and not words[0].startswith("-"):
        command = command.commands[words.pop(0)]
    known = {option for parameter in command.params for option in parameter.opts}
    assert not {word.partition("=")[0] for word in words if word.startswith("--")} - known


@pytest.mark.parametrize("call", sorted(commands("ray")), ids=" ".join)
def test_every_command_and_option_of_ray_is_there(call: tuple[str, ...]) -> None:
    scripts = importlib.import_module("ray.scripts.scripts")
    command = scripts.cli.commands[call[1]]
    known = {option for parameter in command.params for option in parameter.opts}
    assert not {word.partition("=")[0] for word in call[2:] if word.startswith("--")} - known


def test_there_are_such_commands() -> None:
    assert ("farm", "db", "upgrade") in commands("farm")
    assert ("farm", "serve", "--metrics-port", "9400") in commands("farm")
    assert len(commands("ray")) > 5


def test_the_versions_are_this_project_s() -> None:
    pins = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line)
    [cluster] = kubernetes("RayCluster")
    assert cluster["spec"]["rayVersion"] == pins["ray"]
    for path in FILES:
        for image in re.findall(r"sparse-compile-farm:[\w.]+", path.read_text()):
            assert image == IMAGE, path.name

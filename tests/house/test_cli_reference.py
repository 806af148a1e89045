"""cli/README.md says of every command what its --help says, option by option."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import typer.main

from cli import exit_codes
from cli.main import app
from farm.bench.layers.contenders import PEERS
from tests.house.tree import ROOT

REFERENCE = (ROOT / "cli" / "README.md").read_text()


def commands(group: Any = None, path: str = "farm") -> Iterator[tuple[str, Any]]:
    """Every command that can be run, with what is typed to run it."""
    group = group or typer.main.get_command(app)
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, f"{path} {name}")
        else:
            yield f"{path} {name}", command


COMMANDS = dict(commands())


def section(path: str) -> str:
    found = re.search(rf"^### `{re.escape(path)}\b.*?(?=^##|\Z)", REFERENCE, re.M | re.S)
    assert found, f"cli/README.md has no section for {path}"
    return found[0]


def row(parameter: Any) -> str:
    """A parameter as the reference has it."""
    shown = f"`{parameter.metavar}`" if parameter.param_type_name == "argument" else _option(parameter)
    shown = shown.replace("|", r"\|")
    default = parameter.default
    said = "" if parameter.required or default is None or default is False else f" Default: `{default}`."
    return f"| {shown} | {parameter.help}{said} |"


def _option(parameter: Any) -> str:
    value = "" if parameter.is_flag else f" {parameter.metavar}"
    return ", ".join(f"`{name}{value}`" for name in parameter.opts)


@pytest.mark.parametrize("path", COMMANDS)
def test_the_reference_has_the_help_of_each_command(path: str) -> None:
    assert COMMANDS[path].help.strip() in section(path)


@pytest.mark.parametrize("path", COMMANDS)
def test_the_reference_has_every_option_and_no_other(path: str) -> None:
    expected = [row(parameter) for parameter in COMMANDS[path].params if parameter.name != "help"]
    listed = [line for line in section(path).splitlines() if line.startswith("| `")]
    assert listed == expected


def test_the_reference_has_no_command_that_is_gone() -> None:
    assert set(re.findall(r"^### `(farm [a-z]+(?: [a-z]+)?)", REFERENCE, re.M)) == set(COMMANDS)


def test_the_reference_has_every_exit_code() -> None:
    codes = {value for name, value in vars(exit_codes).items() if name.isupper() and isinstance(value, int)}
    assert {int(code) for code in re.findall(r"^\| (\d+) \|", REFERENCE, re.M)} == codes


def test_the_reference_says_what_each_peer_of_a_benchmark_is() -> None:
    named = re.findall(r"^- `([\w-]+)`: ", section("farm bench run"), re.M)
    assert named == list(PEERS)

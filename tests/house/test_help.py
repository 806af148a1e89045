"""`farm --help` groups the commands, and every example in it can be typed."""

from __future__ import annotations

import shlex
from typing import Any

import pytest
import typer.main

from cli.examples import EXAMPLES
from cli.main import app, run


def test_without_arguments_the_help_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    run([])
    assert "Usage: farm [OPTIONS] COMMAND" in capsys.readouterr().out


def test_every_command_is_in_a_group() -> None:
    group: Any = typer.main.get_command(app)
    assert not [name for name, command in group.commands.items() if not command.rich_help_panel]


@pytest.mark.parametrize("name", [name for name in EXAMPLES if name != "farm"])
def test_examples_end_the_help_of_the_main_commands(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([name, "--help"]) == 0
    help_text = " ".join(capsys.readouterr().out.split())
    assert all(example in help_text for example in EXAMPLES[name])


@pytest.mark.parametrize("line", sorted({line for lines in EXAMPLES.values() for line in lines}))
def test_every_example_can_be_typed(line: str) -> None:
    words = [word for word in shlex.split(line) if not word.startswith("FARM_")]
    assert words.pop(0) == "farm"
    group: Any = typer.main.get_command(app)
    name = words.pop(0)
    context = group.commands[name].make_context(name, words, resilient_parsing=False)
    assert context.params is not None

"""`farm config`: the settings in effect, and the origin of each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer
from rich.table import Table
from rich.text import Text

from cli.options.output import AsJson
from cli.output.console import print_json, stdout
from cli.output.table import plain_table

if TYPE_CHECKING:
    from farm.config.settings import Settings
    from farm.reports.tools import Tool

WITH_SENTENCES = 180
"""Width of a terminal that has room for a column of explanations."""

app = typer.Typer(help="The settings in effect.", no_args_is_help=True)


@app.callback()
def config() -> None:
    """The settings in effect."""


@app.command("show")
def show(as_json: AsJson = False) -> None:
    """Show each setting, its value and its origin, then the tools in use."""
    from farm.config.settings import config_path, load_settings
    from farm.reports.tools import effective_tools

    settings = load_settings()
    tools = effective_tools(settings)
    if as_json:
        print_json(
            {"config_file": str(config_path()), "settings": _settings_json(settings), "tools": _tools_json(tools)}
        )
        return
    console = stdout()
    console.print(f"configuration file: {config_path()}", soft_wrap=True)
    console.print(_settings_table(settings, console.width))
    console.print()
    console.print(_tools_table(tools, console.width))


def _settings_table(settings: Settings, width: int) -> Table:
    from farm.config.settings import redacted
    from farm.config.settings_table import SETTINGS

    table = plain_table(width)
    columns = ("SETTING", "VARIABLE", "VALUE", "ORIGIN", *(("WHAT IT IS",) * (width >= WITH_SENTENCES)))
    for column in columns:
        table.add_column(column, overflow="fold")
    for each in SETTINGS:
        value = redacted(each.shown(getattr(settings, each.name))) or f"- ({each.default_text.replace('`', '')})"
        origin = settings.origins[each.name].removesuffix(f" {each.variable}").removesuffix(f" {each.place}")
        cells = (each.place, each.variable, value, origin, each.sentence.replace("`", ""))
        table.add_row(*(Text(cell) for cell in cells[: len(columns)]))
    return table


def _settings_json(settings: Settings) -> dict[str, Any]:
    from farm.config.settings_table import SETTINGS

    return {
        each.name: {
            "value": _raw(getattr(settings, each.name)),
            "origin": settings.origins[each.name],
            "variable": each.variable,
            "place": each.place,
            "description": each.sentence,
        }
        for each in SETTINGS
    }


def _raw(value: object) -> object:
    """A value as JSON: bytes and seconds as numbers, null if unset."""
    from farm.config.settings import redacted

    return value if value is None or isinstance(value, int | float) else redacted(str(value))


def _tools_table(tools: tuple[Tool, ...], width: int) -> Table:
    table = plain_table(width)
    for column in ("TOOL", "VERSION", "PATH"):
        table.add_column(column, overflow="fold")
    for each in tools:
        where = Text(each.problem, style="red") if each.problem else Text(str(each.path))
        table.add_row(each.name, each.version or "-", where)
    return table


def _tools_json(tools: tuple[Tool, ...]) -> dict[str, Any]:
    return {
        each.name: {
            "path": str(each.path) if each.path else None,
            "version": each.version,
            "problem": each.problem or None,
        }
        for each in tools
    }

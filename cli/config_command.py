"""`farm config`: which settings are in force, and why."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.table import Table

from cli.render import print_json, stdout

app = typer.Typer(help="The settings in force.", no_args_is_help=True)


@app.callback()
def config() -> None:
    """The settings in force."""


@app.command("show")
def show(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")] = False,
) -> None:
    """Show each setting, its value and where it came from."""
    from farm.settings import config_path, load_settings, setting_names

    settings = load_settings()
    names = setting_names()
    if as_json:
        values = {name: {"value": _text(getattr(settings, name)), "origin": settings.origins[name]} for name in names}
        print_json({"config_file": str(config_path()), "settings": values})
        return
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    for column in ("SETTING", "VARIABLE", "VALUE", "ORIGIN"):
        table.add_column(column, overflow="fold")
    for name, (variable, place) in names.items():
        table.add_row(place, variable, _text(getattr(settings, name)), settings.origins[name], style=None)
    console = stdout()
    console.print(f"configuration file: {config_path()}", soft_wrap=True)
    console.print(table, markup=False)


def _text(value: object) -> str:
    from farm.settings import redacted

    return "" if value is None else redacted(str(value))

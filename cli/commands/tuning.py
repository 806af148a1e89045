"""`farm tuning`: list, export and import tuning records."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from cli.options.output import AsJson
from cli.output.atomic_file import write_output
from cli.output.console import print_json, print_text, stderr, stdout
from farm.config.units import counted
from farm.errors import UsageError

if TYPE_CHECKING:
    from farm.tuning.record import TuningRecord

app = typer.Typer(help="List, export and import the records of farm tune.", no_args_is_help=True)


@app.callback()
def tuning() -> None:
    """List, export and import the records of farm tune."""


@app.command("list")
def show(as_json: AsJson = False) -> None:
    """Show the records in the ledger, and those that ship with farm."""
    from cli.output.tuning import record_table
    from farm.config.settings import load_settings
    from farm.ledger import open_ledger
    from farm.tuning.files import shipped_records

    ledger = open_ledger(load_settings())
    try:
        own = sorted(ledger.tuning.records(), key=_order)
    finally:
        ledger.close()
    shipped = sorted(shipped_records(), key=_order)
    if as_json:
        listed = [("ledger", own), ("farm", shipped)]
        print_json({"records": [{"from": where, **each.to_json()} for where, some in listed for each in some]})
        return
    console = stdout()
    if own or shipped:
        table = record_table([*own, *shipped], frozenset(shipped) - frozenset(own), console.width)
        console.print(table, soft_wrap=True)
    else:
        console.print("no records: farm tune MODEL.onnx makes them, on a machine with a GPU")


def _order(record: TuningRecord) -> tuple[str | int | float, ...]:
    key = record.key
    return record.gpu, key.arch, str(key.spec), key.spec.data_type, key.batch_band, key.density_band


@app.command("export")
def export(
    file: Annotated[
        str, typer.Argument(metavar="FILE|-", help="The file to write, one JSON line for each record; - for stdout.")
    ],
) -> None:
    """Write the ledger's records to a file for farm tuning import (schema: farm/tuning/tuning.schema.json)."""
    from farm.config.settings import load_settings
    from farm.ledger import open_ledger
    from farm.tuning.files import text_of

    ledger = open_ledger(load_settings())
    try:
        records = ledger.tuning.records()
    finally:
        ledger.close()
    text = text_of(records)
    if file == "-":
        print_text(text)
        return
    write_output(Path(file), text.encode(), file)
    stderr().print(Text(f"wrote {counted(len(records), 'record')} to {file}"), soft_wrap=True)


@app.command("import")
def import_file(
    file: Annotated[str, typer.Argument(metavar="FILE|-", help="A file that farm tuning export wrote; - for stdin.")],
) -> None:
    """Add a file's records to the ledger, none if one is invalid; the better of two for a layer stays."""
    from farm.config.settings import load_settings
    from farm.ledger import open_ledger
    from farm.tuning.files import read_records

    try:
        text = sys.stdin.read() if file == "-" else Path(file).read_text()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise UsageError(f"cannot read {file}: {why}. Give a file that farm tuning export wrote.") from None
    records = read_records(text, file)
    ledger = open_ledger(load_settings())
    try:
        changed = ledger.tuning.merge(records)
    finally:
        ledger.close()
    stdout().print(Text(f"{counted(len(records), 'record')} read, {changed} new or better"), soft_wrap=True)

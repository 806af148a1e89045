"""`farm doctor`: check everything that a compile needs."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from cli.exit_codes import OK, UNREACHABLE
from cli.options.output import AsJson
from cli.output.console import print_json, stdout
from cli.output.format import archs_text
from cli.output.table import plain_table

if TYPE_CHECKING:
    from farm.config.settings import Settings
    from farm.reports.architectures import Architecture


def doctor(
    archs: Annotated[
        bool, typer.Option("--archs", help="Only list the architectures, with their GPUs and minimum drivers.")
    ] = False,
    as_json: AsJson = False,
) -> int:
    """Test the toolchain, the store, the database, Ray and the GPU.

    Prints a fix for each failure.

    --archs runs only `ptxas --help`. `yes` means that --arch takes the architecture and its GPUs, in any spelling:
    sm_89, 8.9, rtx4090, "NVIDIA GeForce RTX 4090". The first GPU is the typical one, whose kernel times are predicted
    where --gpu names no other. DRIVER is the oldest branch that runs this ptxas's code.
    """
    from farm.config.settings import load_settings

    settings = load_settings()
    if archs:
        _print_architectures(settings, as_json=as_json)
        return OK
    return _check(settings, as_json=as_json)


def _check(settings: Settings, *, as_json: bool) -> int:
    from farm.reports.doctor import checks

    console = stdout()
    found: list[dict[str, Any]] = []
    for check in checks(settings):
        found.append({"name": check.name, "ok": check.ok, "text": check.text, "way_out": check.way_out})
        if not as_json:
            mark = Text("ok    ", style="green") if check.ok else Text("failed", style="red")
            console.print(Text(f"{check.name:<10} ").append_text(mark).append(f"  {check.text}"), soft_wrap=True)
            if not check.ok and check.way_out:
                console.print(Text(f"{'':<19}fix: {check.way_out}", style="yellow"), soft_wrap=True)
    if as_json:
        print_json({"checks": found})
    return OK if all(check["ok"] for check in found) else UNREACHABLE


def _print_architectures(settings: Settings, *, as_json: bool) -> None:
    from codegen.toolchain.tools import find_toolchain
    from farm.reports.architectures import architectures

    toolchain = find_toolchain(settings.nvcc, settings.ptxas)
    found = architectures(toolchain)
    if as_json:
        print_json({"ptxas": toolchain.ptxas_version, "architectures": [asdict(each) for each in found]})
        return
    console = stdout()
    console.print(f"ptxas {toolchain.ptxas_version}, {toolchain.ptxas}", soft_wrap=True)
    console.print(_architecture_table(found, console.width))


def _architecture_table(found: tuple[Architecture, ...], width: int) -> Table:
    table = plain_table(width)
    for column in ("ARCH", "COMPILES", "DRIVER", "ALSO", "GPUS"):
        table.add_column(column, overflow="fold", no_wrap=column != "GPUS")
    for each in found:
        table.add_row(
            each.name,
            Text("yes", style="green") if each.supported else Text("no", style="red"),
            f">= {each.minimum_driver}" if each.minimum_driver else "-",
            archs_text(each.variants) or "-",
            ", ".join(each.gpus) or "-",
        )
    return table

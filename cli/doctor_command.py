"""`farm doctor`: does everything that a compile needs work here?"""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.text import Text

from cli.exit_codes import OK, UNREACHABLE
from cli.render import print_json, stdout


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")] = False,
) -> int:
    """Try the toolchain, the store, the database, Ray and the GPU, and say what to do about what fails."""
    from farm.reports.doctor import checks
    from farm.settings import load_settings

    console = stdout()
    found: list[dict[str, Any]] = []
    for check in checks(load_settings()):
        found.append({"name": check.name, "ok": check.ok, "text": check.text, "way_out": check.way_out})
        if not as_json:
            mark = Text("ok    ", style="green") if check.ok else Text("failed", style="red")
            console.print(Text(f"{check.name:<10} ").append_text(mark).append(f"  {check.text}"), soft_wrap=True)
            if not check.ok and check.way_out:
                console.print(Text(f"{'':<19}way out: {check.way_out}", style="yellow"), soft_wrap=True)
    if as_json:
        print_json({"checks": found})
    return OK if all(check["ok"] for check in found) else UNREACHABLE

"""`farm verify`: are the numbers right?"""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from cli.exit_codes import JOB_FAILED, OK
from cli.render import print_json, stderr, stdout


def verify(
    job: Annotated[str, typer.Argument(metavar="JOB", help="A job's id, the beginning of one, or latest.")] = "latest",
    gpu: Annotated[bool, typer.Option("--gpu", help="Run the cubins on the GPU here instead of the emulator.")] = False,
    batch: Annotated[int, typer.Option("--batch", metavar="N", min=1, help="Images of the input.")] = 2,
    seed: Annotated[int, typer.Option("--seed", metavar="N", help="Of the random input.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")] = False,
) -> int:
    """Run every layer's kernel against a float64 reference: the PTX in an emulator, or the cubins on a GPU."""
    from farm.api import Farm
    from farm.settings import load_settings

    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    table.add_column("LAYER", overflow="ellipsis", no_wrap=True)
    table.add_column("ARCHS")
    table.add_column("ON")
    for name in ("BLOCKS", "OUTPUTS", "REL. ERROR", "OF BOUND"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("RESULT", overflow="fold")
    rows: list[dict[str, Any]] = []
    with Farm.open(load_settings()) as farm, stderr().status("verifying") as spinner:
        for layer in farm.verify(job, gpu=gpu, batch=batch, seed=seed):
            found = layer.verification
            spinner.update(f"verified {layer.layer}")
            rows.append(
                {
                    "layer": layer.layer,
                    "archs": list(layer.archs),
                    "on": layer.where,
                    "blocks": found.blocks_run,
                    "blocks_total": found.blocks_total,
                    "outputs": found.outputs_checked,
                    "relative_error": found.relative_error,
                    "bound_share": found.bound_share,
                    "ok": found.ok,
                    "message": found.message,
                }
            )
            table.add_row(
                layer.layer,
                ",".join(arch.removeprefix("sm_") for arch in layer.archs),
                layer.where,
                f"{found.blocks_run:,} of {found.blocks_total:,}",
                f"{found.outputs_checked:,}",
                f"{found.relative_error:.1e}",
                f"{found.bound_share:.1%}",
                Text("right", style="green") if found.ok else Text(found.message, style="red"),
            )
    wrong = sum(not row["ok"] for row in rows)
    if as_json:
        print_json({"ok": not wrong, "layers": rows})
    else:
        console = stdout()
        console.print(table)
        outputs = sum(row["outputs"] for row in rows)
        verdict = f"{wrong} of {len(rows)} layers are wrong" if wrong else f"all {len(rows)} layers are right"
        console.print(Text(f"{verdict}: {outputs:,} outputs compared", style="red" if wrong else "green"))
    return JOB_FAILED if wrong else OK

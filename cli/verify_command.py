"""`farm verify`: do the kernels compute what the layers do?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from cli.exit_codes import JOB_FAILED, OK
from cli.render import counted, plain_table, print_json, stderr, stdout
from cli.workload import Local
from farm.errors import UsageError


def verify(
    job: Annotated[str, typer.Argument(metavar="JOB", help="A job id, a unique prefix of one, or latest.")] = "latest",
    gpu: Annotated[bool, typer.Option("--gpu", help="Run the cubins on a GPU instead of the emulator.")] = False,
    machine: Annotated[
        bool, typer.Option("--machine", help="Run the machine code of cubins for sm_90 in the emulator, not their PTX.")
    ] = False,
    batch: Annotated[int, typer.Option("--batch", metavar="N", min=1, help="Number of input images.")] = 2,
    seed: Annotated[int, typer.Option("--seed", metavar="N", help="Seed of the random input.")] = 0,
    local: Local = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")] = False,
) -> int:
    """Check every layer's kernel against a float64 reference: its PTX in an emulator, or its cubins on a GPU."""
    from farm.api import Farm
    from farm.settings import load_settings

    if local and not gpu:
        raise UsageError("--local chooses a GPU: give --gpu too")
    if machine and gpu:
        raise UsageError("--gpu runs the cubins on a GPU, --machine in the emulator: give one of them")
    rows: list[dict[str, Any]] = []
    with Farm.open(load_settings()) as farm, stderr().status("verifying") as spinner:
        for layer in farm.verify(
            job, gpu=gpu, machine=machine, batch=batch, seed=seed, local=local, notice=spinner.update
        ):
            found = layer.verification
            spinner.update(f"verified {layer.layer}")
            rows.append(
                {
                    "layer": layer.layer,
                    "parts": layer.parts,
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
    wrong = sum(not row["ok"] for row in rows)
    if as_json:
        print_json({"ok": not wrong, "layers": rows})
    else:
        console = stdout()
        console.print(_table(rows, console.width))
        outputs = sum(row["outputs"] for row in rows)
        layers = len({row["layer"] for row in rows})  # one with several tilings has several rows
        within = "the layer is within tolerance" if layers == 1 else f"all {layers} layers are within tolerance"
        verdict = f"FAIL: {wrong} of {counted(len(rows), 'check')} failed" if wrong else f"PASS: {within}"
        console.print(Text(f"{verdict}: {outputs:,} outputs compared", style="red" if wrong else "green"))
    return JOB_FAILED if wrong else OK


def _table(rows: Sequence[Mapping[str, Any]], width: int) -> Table:
    """One row per layer and set of kernels, however many parts it has."""
    several = any(row["parts"] > 1 for row in rows)
    table = plain_table(width)
    table.add_column("LAYER", overflow="ellipsis", no_wrap=True)
    table.add_column("ARCHS")
    table.add_column("ON")
    for name in (*(["PARTS"] if several else []), "BLOCKS", "OUTPUTS", "REL. ERROR", "% OF TOLERANCE"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("RESULT", overflow="fold")
    for row in rows:
        table.add_row(
            row["layer"],
            ",".join(arch.removeprefix("sm_") for arch in row["archs"]),
            row["on"],
            *([str(row["parts"])] if several else []),
            f"{row['blocks']:,} of {row['blocks_total']:,}",
            f"{row['outputs']:,}",
            f"{row['relative_error']:.1e}",
            f"{row['bound_share']:.1%}",
            Text("PASS", style="green") if row["ok"] else Text(f"FAIL: {row['message']}", style="red"),
        )
    return table

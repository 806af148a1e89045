"""`farm qualify`: compare directly assembled code with ptxas code on a GPU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from cli.exit_codes import JOB_FAILED, OK, UNFINISHED
from cli.options.gpu import Compilers, Local
from cli.options.output import AsJson, Quiet
from cli.options.parse import data_types_of, seconds_of
from cli.output.atomic_file import write_output
from cli.output.console import print_json, stderr, stdout
from cli.output.table import plain_table
from farm.config.units import counted
from farm.errors import UsageError

if TYPE_CHECKING:
    from rich.table import Table

    from farm.qualification.qualify import QualificationOutcome

MAX_REASONS = 5
"""Reasons shown for layers left to ptxas, most frequent first."""
MAX_WRONG = 20


def qualify(
    layers: Annotated[int, typer.Option("--layers", metavar="N", min=1, help="Layers to draw per data type.")] = 2000,
    budget: Annotated[
        str, typer.Option("--budget", metavar="DURATION", help="Stop after this long, as in 90s.")
    ] = "5min",
    first: Annotated[
        int, typer.Option("--first", metavar="N", min=0, help="Number of the first layer: another range has others.")
    ] = 0,
    data_type: Annotated[
        str, typer.Option("--data-type", metavar="TYPE,...", help="Data types to compare: float32, float16, bfloat16.")
    ] = "float32,float16,bfloat16",
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE", help="Write the records to a JSON file too.")
    ] = None,
    keep: Annotated[
        Path | None, typer.Option("--keep", metavar="DIR", help="Keep both cubins of layers that differ here.")
    ] = None,
    jobs: Compilers = None,
    local: Local = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> int:
    """Compare directly assembled code with ptxas code on a GPU, bit for bit.

    If at least 1,000 drawn layers of a data type have no different output, farm compile --assembler auto assembles
    that data type directly on this architecture, for this version of ptxas and of the assembler. Layers that the
    assembler does not support are counted and left to ptxas. farm doctor lists what is qualified.

    The exit code is 100 after a difference, 101 with too few layers.
    """
    from cli.progress.gpu_bar import WorkBar
    from cli.progress.qualify import ShownQualification
    from farm.api import Farm
    from farm.config.settings import load_settings
    from farm.qualification.qualify import QualificationPlan

    seconds = seconds_of("--budget", budget, least=1)
    settings = load_settings(overrides={"jobs": jobs})
    plan = QualificationPlan(layers, first, seconds, data_types_of(data_type))
    _check_places(output, keep)
    with Farm.open(settings) as farm, WorkBar(stderr(), "building the first layers", quiet=quiet or as_json) as bar:
        try:
            outcome = farm.qualify(plan, ShownQualification(bar, keep), local=local)
        except KeyboardInterrupt:
            bar.line("interrupted: nothing is recorded. --budget 1min stops in time and records the result.")
            raise
    if as_json:
        print_json(_json(outcome))
    else:
        _print(outcome, output)
    if output is not None:
        _write(output, outcome)
    if any(tally.wrong for tally in outcome.tallies.values()):
        return JOB_FAILED
    return OK if all(_qualifies(outcome, data_type) for data_type in outcome.tallies) else UNFINISHED


def _qualifies(outcome: QualificationOutcome, data_type: str) -> bool:
    return any(record.passed for record in outcome.records if record.data_type == data_type)


def _check_places(output: Path | None, keep: Path | None) -> None:
    """Raise UsageError for an unwritable place before minutes are spent on the GPU."""
    if output is not None and (output.is_dir() or not output.parent.is_dir()):
        raise UsageError(f"--output {output}: cannot write it: name a file in an existing folder")
    if keep is not None and keep.exists() and not keep.is_dir():
        raise UsageError(f"--keep {keep} is a file: name a folder")


def _write(path: Path, outcome: QualificationOutcome) -> None:
    write_output(path, _document(outcome).encode(), f"--output {path}")


def _document(outcome: QualificationOutcome) -> str:
    from farm.qualification.files import document_of

    return json.dumps(document_of(outcome.records), indent=2) + "\n"


def _print(outcome: QualificationOutcome, output: Path | None) -> None:
    console, started = stdout(), outcome.started
    console.print(_table(outcome, console.width))
    for tally in outcome.tallies.values():
        for reason, count in tally.refused.most_common(MAX_REASONS):
            console.print(Text(f"  {counted(count, 'layer')} left to ptxas: {reason}"), soft_wrap=True)
        for line in tally.wrong[:MAX_WRONG]:
            console.print(Text(f"  {line}", style="red"), soft_wrap=True)
        if len(tally.wrong) > MAX_WRONG:
            console.print(Text(f"  and {len(tally.wrong) - MAX_WRONG:,} more", style="red"))
    if all(_qualifies(outcome, data_type) for data_type in outcome.tallies):
        text = f"qualified: farm compile now assembles {started.arch} directly, without ptxas {started.ptxas}"
        console.print(Text(text, style="green"), soft_wrap=True)
        records = "these records:" if output is None else f"{output}"
        console.print(Text(f"to qualify {started.arch} for everyone, send the project {records}"), soft_wrap=True)
        if output is None:
            console.print(Text(_document(outcome)), soft_wrap=True)


def _table(outcome: QualificationOutcome, width: int) -> Table:
    from farm.qualification.record import MIN_LAYERS

    table = plain_table(width)
    for name in ("DATA TYPE", "SHAPES", "LAYERS", "OUTPUTS", "LEFT TO PTXAS", "NOT BUILT", "WRONG", "RESULT"):
        table.add_column(name, justify="left" if name in ("DATA TYPE", "RESULT") else "right")
    for data_type, tally in outcome.tallies.items():
        if tally.wrong:
            result = Text("FAIL: stays with ptxas", style="red")
        elif _qualifies(outcome, data_type):
            result = Text("PASS", style="green")
        else:
            result = Text(f"no difference, but {MIN_LAYERS:,} layers are needed: raise --budget", style="yellow")
        numbers = (
            tally.shapes,
            tally.layers,
            tally.outputs,
            tally.refused.total(),
            len(tally.not_built),
            len(tally.wrong),
        )
        table.add_row(data_type, *(f"{number:,}" for number in numbers), result)
    return table


def _json(outcome: QualificationOutcome) -> dict[str, Any]:
    started = outcome.started
    return {
        "gpu": started.gpu,
        "arch": started.arch,
        "driver": started.driver,
        "ptxas": started.ptxas,
        "data_types": [
            {
                "data_type": data_type,
                "qualified": _qualifies(outcome, data_type),
                "shapes": tally.shapes,
                "layers": tally.layers,
                "outputs": tally.outputs,
                "left_to_ptxas": dict(tally.refused.most_common()),
                "not_built": list(tally.not_built),
                "wrong": list(tally.wrong),
                "ptxas_seconds": tally.ptxas_seconds,
                "direct_seconds": tally.direct_seconds,
            }
            for data_type, tally in outcome.tallies.items()
        ],
        "records": [record.to_json() for record in outcome.records],
    }

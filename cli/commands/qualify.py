"""`farm admit`: is code that is assembled without ptxas the same as ptxas's on a GPU?"""

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
from cli.output.render import counted, plain_table, print_json, stderr, stdout
from farm.errors import UsageError

if TYPE_CHECKING:
    from rich.table import Table

    from farm.qualification.qualify import Outcome

MOST_REASONS = 5
"""Why layers were left to ptxas, the commonest first."""
MOST_WRONG = 20


def admit(
    layers: Annotated[
        int, typer.Option("--layers", metavar="N", min=1, help="Layers to draw of each data type.")
    ] = 2000,
    budget: Annotated[
        str | None, typer.Option("--budget", metavar="DURATION", help="Stop after this long, as in 90s.")
    ] = None,
    first: Annotated[
        int, typer.Option("--first", metavar="N", min=0, help="Number of the first layer: another range has others.")
    ] = 0,
    data_type: Annotated[
        str, typer.Option("--data-type", metavar="TYPE,...", help="Data types to try: float32, float16, bfloat16.")
    ] = "float32,float16,bfloat16",
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE", help="Write the records to a JSON file too.")
    ] = None,
    keep: Annotated[
        Path | None, typer.Option("--keep", metavar="DIR", help="Where both cubins of layers that differ are put.")
    ] = None,
    jobs: Compilers = None,
    local: Local = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> int:
    """Compare code assembled without ptxas with ptxas's on a GPU, bit for bit, and admit it if it is the same."""
    from cli.progress.gpu_bar import WorkBar
    from cli.progress.qualify import ShownTrial
    from farm.config.settings import load_settings
    from farm.qualification.qualify import admit as admit_gpu
    from farm.qualification.run import TrialPlan

    seconds = None if budget is None else seconds_of("--budget", budget, least=1)
    settings = load_settings(overrides={"jobs": jobs})
    plan = TrialPlan(layers, first, seconds, data_types_of(data_type))
    _check_places(output, keep)
    with WorkBar(stderr(), "making the first layers", quiet=quiet or as_json) as bar:
        try:
            outcome = admit_gpu(settings, plan, ShownTrial(bar, keep), local=local)
        except KeyboardInterrupt:
            bar.line("interrupted: nothing is recorded; --budget 10min ends a trial and records what it found")
            raise
    if as_json:
        print_json(_json(outcome))
    else:
        _print(outcome)
    if output is not None:
        _write(output, outcome)
    if any(tried.wrong for tried in outcome.tried.values()):
        return JOB_FAILED
    return OK if all(_admits(outcome, data_type) for data_type in outcome.tried) else UNFINISHED


def _admits(outcome: Outcome, data_type: str) -> bool:
    return any(record.passed for record in outcome.records if record.data_type == data_type)


def _check_places(output: Path | None, keep: Path | None) -> None:
    """Before minutes are spent. Raises UsageError."""
    if output is not None and (output.is_dir() or not output.parent.is_dir()):
        raise UsageError(f"--output {output}: it cannot be written: name a file, in a folder that exists")
    if keep is not None and keep.exists() and not keep.is_dir():
        raise UsageError(f"--keep {keep}: it is a file: name a folder")


def _write(path: Path, outcome: Outcome) -> None:
    from farm.qualification.files import document_of

    write_output(path, (json.dumps(document_of(outcome.records), indent=2) + "\n").encode(), f"--output {path}")


def _print(outcome: Outcome) -> None:
    console, started = stdout(), outcome.started
    console.print(_table(outcome, console.width))
    for tried in outcome.tried.values():
        for reason, count in tried.refused.most_common(MOST_REASONS):
            console.print(Text(f"  {counted(count, 'layer')} left to ptxas: {reason}"), soft_wrap=True)
        for line in tried.wrong[:MOST_WRONG]:
            console.print(Text(f"  {line}", style="red"), soft_wrap=True)
        if len(tried.wrong) > MOST_WRONG:
            console.print(Text(f"  and {len(tried.wrong) - MOST_WRONG:,} more", style="red"))
    if all(_admits(outcome, data_type) for data_type in outcome.tried):
        text = f"admitted: farm compile assembles {started.arch} without ptxas {started.ptxas} from now on"
        console.print(Text(text, style="green"), soft_wrap=True)


def _table(outcome: Outcome, width: int) -> Table:
    from farm.qualification.record import LEAST_LAYERS

    table = plain_table(width)
    for name in ("DATA TYPE", "SHAPES", "LAYERS", "OUTPUTS", "LEFT TO PTXAS", "NOT BUILT", "WRONG", "RESULT"):
        table.add_column(name, justify="left" if name in ("DATA TYPE", "RESULT") else "right")
    for data_type, tried in outcome.tried.items():
        if tried.wrong:
            result = Text("FAIL: ptxas goes on doing it", style="red")
        elif _admits(outcome, data_type):
            result = Text("PASS", style="green")
        else:
            result = Text(f"no difference, but {LEAST_LAYERS:,} layers are needed", style="yellow")
        numbers = tried.shapes, tried.layers, tried.outputs, tried.refused.total(), len(tried.failed), len(tried.wrong)
        table.add_row(data_type, *(f"{number:,}" for number in numbers), result)
    return table


def _json(outcome: Outcome) -> dict[str, Any]:
    started = outcome.started
    return {
        "gpu": started.gpu,
        "arch": started.arch,
        "driver": started.driver,
        "ptxas": started.ptxas,
        "data_types": [
            {
                "data_type": data_type,
                "admitted": _admits(outcome, data_type),
                "shapes": tried.shapes,
                "layers": tried.layers,
                "outputs": tried.outputs,
                "left_to_ptxas": dict(tried.refused.most_common()),
                "not_built": list(tried.failed),
                "wrong": list(tried.wrong),
                "ptxas_seconds": tried.ptxas_seconds,
                "direct_seconds": tried.direct_seconds,
            }
            for data_type, tried in outcome.tried.items()
        ],
        "records": [record.to_json() for record in outcome.records],
    }

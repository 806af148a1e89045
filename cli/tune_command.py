"""`farm tune`: the fastest tiling of each layer on a GPU."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from cli.exit_codes import JOB_FAILED, OK
from cli.options import LOCAL_HELP, accumulator_of, data_types_of, input_shapes_of, names_of, numbers_of
from cli.render import print_json, stderr, stdout
from cli.tuning_tables import outcome_json, outcome_table, tuned_line, wrong_lines
from farm.errors import UsageError

if TYPE_CHECKING:
    from farm.bench.workload import Case, Choice
    from farm.tuner.tuner import Outcome


def tune(
    model: Annotated[
        Path | None, typer.Argument(metavar="MODEL", help="An ONNX file; without one, operators of --op.")
    ] = None,
    layer: Annotated[
        list[str] | None, typer.Option("--layer", metavar="NAME", help="Only this layer; may be repeated.")
    ] = None,
    op: Annotated[
        list[str] | None, typer.Option("--op", metavar="NAME,...|all", help="Some of the papers' ten operators.")
    ] = None,
    batch: Annotated[str, typer.Option("--batch", metavar="N,...", help="Batch sizes.")] = "64",
    sparsity: Annotated[
        str | None,
        typer.Option("--sparsity", metavar="S,...", help="Shares of zeros; else the model's own, 0.9 of operators."),
    ] = None,
    data_type: Annotated[
        str, typer.Option("--data-type", metavar="TYPE,...", help="Of the ten operators: float32, float16, bfloat16.")
    ] = "float32",
    budget: Annotated[
        str, typer.Option("--budget", metavar="TIME", help="For each layer and batch, as in 60s or 5m.")
    ] = "60s",
    candidates: Annotated[
        int | None, typer.Option("--candidates", metavar="N", min=1, help="At most so many tilings of a layer.")
    ] = None,
    again: Annotated[bool, typer.Option("--again", help="Also layers that have a record of this GPU.")] = False,
    input_shape: Annotated[
        list[str] | None,
        typer.Option("--input-shape", metavar="NAME:1,3,224,224", help="Shape of an input that the file leaves open."),
    ] = None,
    accumulate: Annotated[
        str, typer.Option("--accumulate", metavar="float32|float16", help="Sums of float16 layers.")
    ] = "float32",
    optimisation: Annotated[int, typer.Option("-O", metavar="0..3", min=0, max=3, help="Level of ptxas.")] = 3,
    seed: Annotated[int, typer.Option("--seed", metavar="N", help="Of weights and inputs.")] = 0,
    jobs: Annotated[
        int | None, typer.Option("-j", "--jobs", metavar="N", min=1, help="Compilers at once; all CPUs if not given.")
    ] = None,
    local: Annotated[bool, typer.Option("--local", help=LOCAL_HELP)] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")] = False,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="No progress.")] = False,
) -> int:
    """Try tilings on a GPU and keep the fastest: farm compile uses them. The same call again goes on."""
    from cli.tune_progress import ShownTuning
    from farm.bench.workload import Choice
    from farm.settings import load_settings
    from farm.tuner.search import Effort
    from farm.tuner.tuner import TunePlan
    from farm.tuner.tuner import tune as tune_cases

    choice = Choice(
        tuple(int(each) for each in numbers_of("--batch", batch, 1, whole=True)),
        tuple(numbers_of("--sparsity", sparsity, 0, most=1)) if sparsity else (),
        data_types_of(data_type),
        seed,
    )
    plan = TunePlan(Effort(_seconds_of(budget), candidates), accumulator_of(accumulate), optimisation, seed, again)
    cases = _cases(model, layer or [], names_of(op or []), choice, input_shape or [])
    settings = load_settings(overrides={"jobs": jobs})
    with ShownTuning(stderr(), quiet=quiet or as_json) as shown:
        try:
            outcomes = tune_cases(settings, cases, plan, shown, local=local)
        except KeyboardInterrupt:
            _print_end(shown.outcomes, as_json=as_json)
            text = f"interrupted: {len(shown.outcomes)} of {shown.total} layers are done; the same command goes on"
            stderr().print(Text(text, style="yellow"), soft_wrap=True)
            raise
    _print_end(outcomes, as_json=as_json)
    return JOB_FAILED if any(each.wrong or each.record is None for each in outcomes) else OK


def _print_end(outcomes: Sequence[Outcome], *, as_json: bool) -> None:
    if as_json:
        print_json({"layers": [outcome_json(each) for each in outcomes]})
        return
    console = stdout()
    if outcomes:
        console.print(outcome_table(outcomes, console.width))
        for line in (*wrong_lines(outcomes), tuned_line(outcomes)):
            console.print(line, soft_wrap=True)


def _cases(
    model: Path | None, layers: Sequence[str], ops: Sequence[str], choice: Choice, shapes: Sequence[str]
) -> list[Case]:
    from farm.bench.workload import model_cases, operator_cases

    if model is None:
        if layers:
            raise UsageError("--layer names a layer of a model: give the model's file, or --op for an operator")
        if not ops:
            raise UsageError("nothing to tune: give a model's file, --op NAME for one of the operators, or --op all")
        return list(operator_cases([] if ops == ["all"] else ops, choice))
    if ops:
        raise UsageError("--op names one of the ten operators: leave it out for a model, whose layers --layer names")
    from codegen.checkpoint import read_checkpoint

    return list(model_cases(read_checkpoint(model, input_shapes_of(shapes)), layers, choice))


def _seconds_of(budget: str) -> float:
    """A time as in 60s, 5m, 1h, or a number of seconds. Raises UsageError."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(s|m|h|)", budget.strip())
    seconds = float(match[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[match[2]] if match else 0.0
    if seconds <= 0:
        raise UsageError(f"--budget {budget}: it is a time above 0, as in 60s or 5m")
    return seconds

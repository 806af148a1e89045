"""`farm tune`: search the fastest tiling of each layer on a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from cli.exit_codes import JOB_FAILED, OK
from cli.options.build import Accumulate, AssemblerName, InputShapes, InputValues, Optimisation, TrustName
from cli.options.demo_networks import PRECISIONS, SPARSITY, file_of
from cli.options.gpu import Batches, Compilers, DataTypes, Layers, Local, Seed, Sparsities, cases_of
from cli.options.output import AsJson, Quiet
from cli.options.parse import data_types_of, names_of, numbers_of, seconds_of
from cli.output.console import print_json, stderr, stdout
from cli.output.tuning import outcome_json, outcome_table, tuned_line, wrong_lines
from farm.errors import UsageError

if TYPE_CHECKING:
    from farm.cuda.measure.workload import Choice
    from farm.tuning.search.tune import Outcome


def tune(
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="MODEL",
            help="An ONNX file, or a demo network such as resnet18; without one, the operators of --op.",
        ),
    ] = None,
    layer: Layers = None,
    op: Annotated[
        list[str] | None, typer.Option("--op", metavar="NAME,...|all", help="Some or all of the papers' ten operators.")
    ] = None,
    batch: Batches = "64",
    sparsity: Sparsities = None,
    data_type: DataTypes = "float32",
    budget: Annotated[
        str,
        typer.Option("--budget", metavar="DURATION", help="Search time per layer and batch size, as in 60s or 5min."),
    ] = "60s",
    seconds: Annotated[
        float | None,
        typer.Option("--seconds", metavar="N", min=1, help="Search time for all layers together, instead of --budget."),
    ] = None,
    candidates: Annotated[
        int | None, typer.Option("--candidates", metavar="N", min=1, help="Maximum number of tilings to try per layer.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Tune layers that already have a record of this GPU.")] = False,
    input_shape: InputShapes = None,
    input_value: InputValues = None,
    accumulate: Accumulate = "float32",
    optimisation: Optimisation = 3,
    assembler: AssemblerName = "auto",
    trust: TrustName = None,
    seed: Seed = 0,
    jobs: Compilers = None,
    local: Local = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> int:
    """Try tilings on a GPU and keep the fastest for farm compile.

    Running it again continues the search. Tilings are tried in the order of the cost model and compiled on all CPUs
    while the GPU measures. Each kernel is checked before it is timed; one with wrong results never wins and makes the
    exit code 100.

    A time is the median of replayed CUDA graphs with the caches as in a network; WARM US is the time with the code
    cached. The winner goes into the ledger at once. With --seconds the layers share the time, half by their predicted
    cost and half evenly.

    TILING 32x4x2 r2 k2x8 c4 s3 x8: columns, rows and images of a block; output rows of a thread; K-groups of a block,
    if several, and output channels of one; input channels of a chunk; stages; blocks of a cluster. Needs PyCUDA.
    """
    from cli.progress.gpu_bar import WorkBar
    from cli.progress.tune import ShownTuning
    from codegen.toolchain.temp_folders import TempFolder
    from farm.config.settings import load_settings
    from farm.cuda.measure.workload import Choice
    from farm.tuning.search.layer_kinds import Effort
    from farm.tuning.search.tune import TunePlan
    from farm.tuning.search.tune import tune as tune_cases

    choice = Choice(
        tuple(int(each) for each in numbers_of("--batch", batch, 1, whole=True)),
        tuple(numbers_of("--sparsity", sparsity, 0, most=1)) if sparsity else (),
        data_types_of(data_type),
        seed,
        with_pools=True,
    )
    plan = TunePlan(
        Effort(seconds_of("--budget", budget, least=1), candidates, seconds),
        accumulate,
        optimisation,
        assembler,
        seed,
        force,
    )
    ops = names_of(op or [])
    if model is None and not layer and not ops:
        raise UsageError("nothing to tune: give a model, --op NAME or --op all")
    named = [] if model is None and ops == ["all"] else ops
    with TempFolder("tune") as folder:
        cases = [
            case
            for path, of_type in _models(model, choice, folder)
            for case in cases_of(path, layer or [], named, of_type, input_shape or [], input_value or [])
        ]
    settings = load_settings(overrides={"jobs": jobs, "trust": trust})
    with WorkBar(stderr(), "building", quiet=quiet or as_json) as bar:
        shown = ShownTuning(bar)
        try:
            outcomes = tune_cases(settings, cases, plan, shown, local=local)
        except KeyboardInterrupt:
            _print_end(shown.outcomes, as_json=as_json)
            text = f"interrupted: {len(shown.outcomes)} of {shown.total} layers done; the same command continues"
            stderr().print(Text(text, style="yellow"), soft_wrap=True)
            raise
    _print_end(outcomes, as_json=as_json)
    return JOB_FAILED if any(each.wrong or (each.record is None and not each.left) for each in outcomes) else OK


def _models(model: str | None, choice: Choice, folder: Path) -> list[tuple[Path | None, Choice]]:
    """The model file with its choice; of a demo network one for each data type. Raises UsageError."""
    if model is None:
        return [(None, choice)]
    sparsity = min(choice.sparsities, default=SPARSITY)
    found: list[tuple[Path | None, Choice]] = []
    for kind in choice.data_types:
        if kind not in PRECISIONS and not model.endswith(".onnx"):
            raise UsageError(f"--data-type {kind}: demo networks are {' or '.join(PRECISIONS)}")
        path = file_of(model, kind, sparsity, choice.seed, folder)
        if path == Path(model):
            return [(path, choice)]
        found.append((path.rename(path.with_stem(f"{path.stem}-{kind}")), choice))
    return found


def _print_end(outcomes: Sequence[Outcome], *, as_json: bool) -> None:
    if as_json:
        print_json({"layers": [outcome_json(each) for each in outcomes]})
        return
    console = stdout()
    if outcomes:
        console.print(outcome_table(outcomes, console.width), soft_wrap=True)
        for line in (*wrong_lines(outcomes), tuned_line(outcomes)):
            console.print(line, soft_wrap=True)

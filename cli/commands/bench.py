"""`farm bench`: measure generated kernels against the libraries that one would use instead."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text
from typer.core import TyperGroup

from cli.commands.graphchallenge import graphchallenge
from cli.commands.network import network
from cli.options.bench import JsonTo, PlotFolder, json_file, peers_of
from cli.options.build import Accumulate, AssemblerName, InputShapes, InputValues, NoTuning, Optimisation, TrustName
from cli.options.gpu import Batches, Compilers, DataTypes, Layers, Local, Seed, Sparsities, cases_of
from cli.options.output import Quiet
from cli.options.parse import data_types_of, names_of, numbers_of
from cli.output.console import print_json, stderr, stdout
from cli.output.results import draw, show
from farm.errors import UsageError

if TYPE_CHECKING:
    from farm.bench.layers.benchmark import Plan
    from farm.bench.layers.results import Measurement, Results
    from farm.cuda.measure.workload import Case, CaseKey

RUN = "run"

Sets = Annotated[
    int | None,
    typer.Option(
        "--sets", metavar="N", min=1, help="Data sets used in turn; by default enough to keep the L2 cache cold."
    ),
]
Resume = Annotated[bool, typer.Option("--resume", help="Resume from the file that --json names.")]


class _BenchGroup(TyperGroup):
    """A group that runs `run` if its first argument is no command."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args or (args[0] not in self.commands and args[0] not in ("-h", "--help")):
            args = [RUN, *args]
        return super().parse_args(ctx, args)


app = typer.Typer(help="Measure generated kernels against cuDNN, cuBLAS, cuSPARSE and Escoin.", cls=_BenchGroup)


@app.callback()
def bench() -> None:
    """Measure generated kernels against cuDNN, cuBLAS, cuSPARSE and Escoin."""


@app.command(RUN)
def run(
    model: Annotated[
        Path | None, typer.Argument(metavar="MODEL", help="An ONNX file; without one, the papers' ten operators.")
    ] = None,
    layer: Layers = None,
    op: Annotated[
        list[str] | None, typer.Option("--op", metavar="NAME,...", help="Only these of the ten operators.")
    ] = None,
    batch: Batches = "64,1",
    sparsity: Sparsities = None,
    data_type: DataTypes = "float32",
    peers: Annotated[
        str, typer.Option("--peers", metavar="NAME,...", help="Peers to compare with, by name; all or none.")
    ] = "all",
    input_shape: InputShapes = None,
    input_value: InputValues = None,
    accumulate: Accumulate = "float32",
    optimisation: Optimisation = 3,
    assembler: AssemblerName = "auto",
    trust: TrustName = None,
    no_tuning: NoTuning = False,
    sets: Sets = None,
    peak_tflops: Annotated[
        float | None, typer.Option("--peak-tflops", metavar="X", help="The GPU's float32 peak, for the roofline.")
    ] = None,
    peak_tbps: Annotated[
        float | None,
        typer.Option("--peak-tbps", metavar="X", help="The GPU's memory bandwidth in TB/s, for the roofline."),
    ] = None,
    seed: Seed = 0,
    json_to: JsonTo = None,
    resume: Resume = False,
    plot: PlotFolder = None,
    jobs: Compilers = None,
    local: Local = False,
    quiet: Quiet = False,
) -> int:
    """Measure kernels on a GPU against the libraries' kernels.

    `run` may be left out: farm bench model.onnx. Times are medians of CUDA graphs, replayed with a cold L2 cache. The
    table has a line per layer, batch size, sparsity and data type: time, prediction of the cost model, share of the
    roofline, and speed-up over each peer. The roofline is the larger of the non-zero work at the GPU's peak and input
    and output at its memory bandwidth.

    Peers run the dense layer (cuDNN, cuBLAS) or the sparse one (cuSPARSE, Escoin, GiMMiK) on the same inputs, without
    bias and activation; they need torch. A peer with wrong results has no time; a generated kernel with wrong results
    makes the exit code 100.
    """
    from farm.bench.layers.benchmark import Plan
    from farm.bench.layers.contenders import PEERS
    from farm.config.settings import load_settings
    from farm.cuda.measure.workload import Choice

    choice = Choice(
        tuple(int(each) for each in numbers_of("--batch", batch, 1, whole=True)),
        tuple(numbers_of("--sparsity", sparsity, 0, most=1)) if sparsity else (),
        data_types_of(data_type),
        seed,
    )
    cases = cases_of(model, layer or [], names_of(op or []), choice, input_shape or [], input_value or [])
    file = file_of(json_to, resume=resume)
    plan = Plan(
        peers=peers_of(peers, PEERS),
        seed=seed,
        optimisation=optimisation,
        accumulate=accumulate,
        assembler=assembler,
        sets=sets,
        flops=_positive("--peak-tflops", peak_tflops),
        bytes_per_second=_positive("--peak-tbps", peak_tbps),
        file=file,
        tuning=not no_tuning,
        resume=resume,
    )
    settings = load_settings(overrides={"jobs": jobs, "trust": trust})
    results = measured(settings, cases, plan, local=local, quiet=quiet)
    return show(results, as_json=json_to == "-", folder=plot)


@app.command("paper")
def paper(
    op: Annotated[
        list[str] | None, typer.Option("--op", metavar="NAME,...", help="Only these of the ten operators.")
    ] = None,
    batch: Batches = "64,1",
    sparsity: Annotated[
        str, typer.Option("--sparsity", metavar="S,...", help="Sparsities of the sweep; 0 is the dense version.")
    ] = "0,0.1,0.2,0.3,0.4,0.5,0.6,0.7,0.8,0.9",
    counters: Annotated[
        bool, typer.Option("--counters/--no-counters", help="Read hardware counters with ncu where permitted.")
    ] = True,
    sets: Sets = None,
    json_to: JsonTo = None,
    resume: Resume = False,
    plot: PlotFolder = None,
    jobs: Compilers = None,
    local: Local = False,
    quiet: Quiet = False,
) -> None:
    """Repeat the paper's experiments on a GPU, its numbers and ours side by side."""
    from cli.output.bench import missing_lines, paper_table
    from farm.bench.layers.benchmark import Plan
    from farm.bench.layers.counters import read_counters
    from farm.bench.layers.paper import MAIN, PEERS, rows
    from farm.config.settings import load_settings
    from farm.cuda.measure.workload import Choice, operator_cases, structured_cases

    names = names_of(op or [])
    batches = tuple(int(each) for each in numbers_of("--batch", batch, 1, whole=True))
    sparsities = tuple(numbers_of("--sparsity", sparsity, 0, most=1))
    cases = [*operator_cases(names, Choice(batches, sparsities)), *structured_cases(names, batches)]
    file = file_of(json_to, resume=resume)
    plan = Plan(peers=PEERS, assembler="ptxas", sets=sets, file=file, resume=resume, with_ptx=True)
    settings = load_settings(overrides={"jobs": jobs})
    results = measured(settings, cases, plan, local=local, quiet=quiet)
    operators = list(dict.fromkeys(case.key.operator for case in cases if not case.peers_only))
    read: Any = "not asked for"
    if counters:
        with stderr().status("reading counters"):
            read = read_counters(settings, operators, max(batches), MAIN, local=local)
    found = rows(results, read)
    if json_to == "-":
        print_json({**results.to_json(), "counters": read, "paper": [asdict(row) for row in found]})
    else:
        console = stdout()
        console.print(Text(f"the paper (Tesla K40m) and {results.title}", style="bold"))
        for part in (paper_table(found, console.width), *missing_lines(results)):
            console.print(part)
    draw(results, plot)


app.command("network")(network)
app.command("graphchallenge")(graphchallenge)


@app.command("plot")
def plot_file(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A file that farm bench --json wrote.")],
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder to write.")],
) -> None:
    """Draw the figures of a results file and print its tables; needs no GPU."""
    from farm.bench.layers.results import read_results

    show(read_results(file), as_json=False, folder=folder)


def measured(settings: Any, cases: Sequence[Case], plan: Plan, *, local: bool, quiet: bool) -> Results:
    """Run the benchmark with a progress bar on a terminal, else a line per case."""
    from cli.output.bench import progress_line
    from cli.progress.gpu_bar import WorkBar
    from farm.bench.layers.benchmark import benchmark

    with WorkBar(stderr(), "measuring", total=len(cases), quiet=quiet) as bar:

        def tell(case: CaseKey, found: Sequence[Measurement], done: int, total: int) -> None:
            bar.update(completed=done, total=total, description=case.operator)
            if not bar.shows:
                bar.line(progress_line(found, done, total))

        return benchmark(settings, cases, plan, tell, local=local, notice=bar.line)


def file_of(json_to: str | None, *, resume: bool) -> Path | None:
    """The file that --json names; None for stdout. Raises UsageError for --resume without a file."""
    file = json_file(json_to)
    if resume and file is None:
        raise UsageError("--resume needs a file: add --json results.json")
    return file


def _positive(option: str, value: float | None) -> float | None:
    if value is not None and not 0 < value < float("inf"):
        raise UsageError(f"{option} {value:g}: expected a number above 0")
    return None if value is None else value * 1e12

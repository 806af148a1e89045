"""`farm bench graphchallenge`: the Sparse DNN GraphChallenge on a GPU, or a few of its rows in the emulator."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from cli.exit_codes import JOB_FAILED, OK
from cli.options.bench import JsonTo, json_file, peers_of
from cli.options.gpu import Compilers, Local, Seed
from cli.options.output import Quiet
from cli.options.parse import numbers_of
from cli.output.console import stderr, stdout
from cli.output.graphchallenge import progress_line
from cli.output.results import show
from farm.errors import UsageError

if TYPE_CHECKING:
    from codegen.ir.checkpoint import FloatArray
    from farm.bench.graphchallenge.network import ChallengeNetwork
    from farm.bench.layers.results import Measurement
    from farm.config.settings import Settings

EMULATED_ROWS = 32


def graphchallenge(
    network: Annotated[
        str, typer.Argument(metavar="NETWORK", help="radix-net, random, or a folder of TSV files.")
    ] = "radix-net",
    neurons: Annotated[
        int, typer.Option("--neurons", metavar="N", min=1, help="Neurons per layer of a generated network.")
    ] = 1024,
    layers: Annotated[str, typer.Option("--layers", metavar="N,...", help="Layers of generated networks.")] = "120",
    rows: Annotated[
        int | None, typer.Option("--rows", metavar="N", min=1, help="Input rows; by default 60000, in the emulator 32.")
    ] = None,
    inputs: Annotated[
        Path | None,
        typer.Option("--inputs", metavar="FILE.tsv", help="Input rows; by default scaled-up handwritten digits."),
    ] = None,
    seed: Seed = 0,
    peers: Annotated[
        str, typer.Option("--peers", metavar="NAME,...", help="Peers to compare with: index, cusparse; all or none.")
    ] = "index,cusparse",
    emulate: Annotated[
        bool,
        typer.Option("--emulate", help="Emulate every layer's PTX on a few rows, without a GPU; measures nothing."),
    ] = False,
    json_to: JsonTo = None,
    jobs: Compilers = None,
    local: Local = False,
    quiet: Quiet = False,
) -> int:
    """Measure the Sparse DNN GraphChallenge against cuSPARSE and index kernels.

    The challenge computes Y <- min(32, max(0, Y W + b)) layer after layer. Networks are generated (a RadiX-Net, or
    random edges) or read from TSV files. Rows that become zero are dropped after each of the first ten layers.

    `generated` are layers compiled for their weights, `index` are the same launches with weights and indices in
    shared memory, `cusparse` is SpMM in CSR. Each is checked against float64; ours being wrong exits with 100.

    TE/S is 10^12 multiply-adds a second of all rows, as the challenge counts; LIVE TE/S counts non-zero rows only.
    """
    from farm.bench.graphchallenge.benchmark import PEERS
    from farm.config.settings import load_settings

    contenders = peers_of(peers, PEERS)
    if emulate and json_to is not None:
        raise UsageError("--json and --emulate cannot be combined: the emulator measures nothing")
    settings = load_settings(overrides={"jobs": jobs})
    count = rows or (EMULATED_ROWS if emulate else None)
    challenges = _challenges(network, neurons, layers, inputs, count, seed)
    if emulate:
        return max(_emulate(settings, each, quiet=quiet) for each in challenges)
    return _measure(settings, challenges, contenders, json_to, local=local, quiet=quiet)


def _challenges(
    network: str, neurons: int, layers: str, inputs: Path | None, count: int | None, seed: int
) -> list[ChallengeNetwork]:
    """Raises UsageError and CheckpointError."""
    from codegen.frontend.tsv.manifest import is_tsv_network, read_manifest
    from farm.bench.graphchallenge.network import make_network, read_network

    path = Path(network)
    if is_tsv_network(path):
        return [read_network(path, _rows(read_manifest(path).neurons[0], inputs, count, seed))]
    depths = [int(each) for each in numbers_of("--layers", layers, 1, whole=True)]
    given = _rows(neurons, inputs, count, seed)
    return [make_network(network, neurons, depth, given, seed) for depth in depths]


def _rows(neurons: int, inputs: Path | None, count: int | None, seed: int) -> FloatArray:
    from codegen.frontend.tsv.triples import read_rows
    from farm.bench.graphchallenge.inputs import ROWS, check_memory, digit_rows

    if inputs is not None:
        check_memory(neurons, ROWS)
        return read_rows(inputs, ROWS, neurons)[: count or ROWS]
    return digit_rows(neurons, count or ROWS, seed)


def _measure(
    settings: Settings,
    challenges: list[ChallengeNetwork],
    peers: tuple[str, ...],
    json_to: str | None,
    *,
    local: bool,
    quiet: bool,
) -> int:
    from farm.bench.graphchallenge.benchmark import ChallengePlan, benchmark_challenges

    def tell(measured: Measurement) -> None:
        if not quiet:
            stderr().print(Text(progress_line(measured)), soft_wrap=True)

    def notice(text: str) -> None:
        if not quiet:
            stderr().print(Text(text), soft_wrap=True)

    plan = ChallengePlan(peers, json_file(json_to))
    results = benchmark_challenges(settings, challenges, plan, tell, local=local, notice=notice)
    return show(results, as_json=json_to == "-", folder=None)


def _emulate(settings: Settings, challenge: ChallengeNetwork, *, quiet: bool) -> int:
    """Raises ToolchainError, ToolError and EmulationError."""
    from codegen.toolchain.tools import find_toolchain
    from farm.bench.graphchallenge.emulation import EmulatedLayer, EmulatedNetwork, emulate_network

    end: EmulatedNetwork | None = None
    for event in emulate_network(challenge, find_toolchain(settings.nvcc, settings.ptxas)):
        if isinstance(event, EmulatedLayer):
            if not quiet:
                stderr().print(Text(f"layer {event.number} of {len(challenge.matrices)}: {event.rows} rows left"))
        else:
            end = event
    right = end is not None and end.ok
    verdict = Text("PASS", style="green") if right else Text("FAIL", style="red")
    words = "" if end is None else f"  {challenge.name}: {end}"
    stdout().print(verdict.append(words, style="default"), soft_wrap=True)
    return OK if right else JOB_FAILED

"""`farm bench network`: measure whole networks on a GPU against dense PyTorch."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from cli.options.bench import JsonTo, PlotFolder, json_file, peers_of
from cli.options.build import AllowTf32, InputShapes, InputValues, LeaveDenseName, NoTuning, TrustName
from cli.options.demo_networks import SPARSITY, Precision, file_of
from cli.options.gpu import Compilers, Local, Seed
from cli.options.output import Quiet
from cli.options.parse import input_shapes_of, input_values_of, numbers_of
from cli.output.console import stderr
from cli.output.results import show
from farm.errors import JobFailedError, UsageError

if TYPE_CHECKING:
    from farm.bench.layers.results import Measurement
    from farm.bench.networks.cases import NetworkModel
    from farm.config.settings import Settings
    from farm.jobs.model import BuildOptions


def network(
    model: Annotated[
        list[str], typer.Argument(metavar="MODEL", help="ONNX files, or demo networks such as resnet50 or vgg16.")
    ],
    batch: Annotated[str, typer.Option("--batch", metavar="N,...", help="Batch sizes.")] = "1,8,64",
    precision: Annotated[
        Precision | None,
        typer.Option(
            "--precision", metavar="float32|float16", help="Data type of demo networks; files have their own."
        ),
    ] = None,
    sparsity: Annotated[
        float, typer.Option("--sparsity", metavar="S", min=0, max=1, help="Share of zero weights of demo networks.")
    ] = SPARSITY,
    seed: Seed = 0,
    bundle: Annotated[
        list[Path] | None,
        typer.Option("--bundle", metavar="BUNDLE", help="Measure this bundle instead of compiling; may be repeated."),
    ] = None,
    peers: Annotated[
        str,
        typer.Option(
            "--peers",
            metavar="NAME,...",
            help="How PyTorch runs the dense network: eager, compile, max-autotune; all or none.",
        ),
    ] = "eager,compile,max-autotune",
    compile_limit: Annotated[
        float,
        typer.Option("--compile-limit", metavar="N", min=1, help="Give up a max-autotune compilation after N seconds."),
    ] = 300.0,
    input_shape: InputShapes = None,
    input_value: InputValues = None,
    trust: TrustName = None,
    leave_dense: LeaveDenseName = "auto",
    allow_tf32: AllowTf32 = False,
    no_tuning: NoTuning = False,
    seconds: Annotated[
        float | None,
        typer.Option("--seconds", metavar="N", min=1, help="Start no measurement after N seconds on the GPU."),
    ] = None,
    json_to: JsonTo = None,
    plot: PlotFolder = None,
    jobs: Compilers = None,
    local: Local = False,
    quiet: Quiet = False,
) -> int:
    """Measure whole pruned networks on a GPU against dense PyTorch.

    Each network is one CUDA graph. Each model is compiled for the GPU, once per batch size. Dense runs in float32, TF32
    and float16, with batch normalisation folded. Outputs are compared with float64; wrong outputs have no time and, if
    ours, exit with 100.

    A time is the median of single replays on changing inputs, so that weights and code are as cold as in a network.
    COMPILED, REST and GAPS are the shares of a replay in which compiled layers, only other kernels, or nothing runs.
    Needs torch.

    max-autotune is measured in TF32 and float16, channels last. Kernels that torch.compile makes are kept between runs
    in the user's cache folder, farm/torch, up to 4 GiB.
    """
    from codegen.frontend.onnx.reader import read_checkpoint
    from codegen.toolchain.temp_folders import TempFolder
    from farm.bench.networks.benchmark import NetworkPlan, benchmark_networks
    from farm.bench.networks.cases import NetworkModel, bundles_for
    from farm.bench.networks.session import MODES, NetworkRules
    from farm.config.settings import load_settings
    from farm.jobs.model import BuildOptions

    batches = tuple(int(each) for each in numbers_of("--batch", batch, 1, whole=True))
    rules = NetworkRules(
        peers_of(peers, MODES), seed=seed, seconds=seconds, compile_seconds=compile_limit, allow_tf32=allow_tf32
    )
    settings = load_settings(overrides={"jobs": jobs, "trust": trust})
    shapes, values = input_shapes_of(input_shape or []), input_values_of(input_value or [])
    wanted = BuildOptions((), tuning=not no_tuning, leave_dense=leave_dense, allow_tf32=allow_tf32)
    with TempFolder("bench") as folder:
        models = [
            NetworkModel(path.stem, path, read_checkpoint(path, shapes, values), shapes, values)
            for path in _files(model, precision, sparsity, seed, folder)
        ]
        given = bundles_for(models, batches, bundle or [])
        plan = NetworkPlan(tuple(models), batches, given, rules, json_file(json_to))
        compiler = _Compiler(settings, folder, wanted, quiet=quiet)

        def notice(text: str) -> None:
            if not quiet:
                stderr().print(Text(text), soft_wrap=True)

        results = benchmark_networks(settings, plan, compiler, _teller(quiet=quiet), local=local, notice=notice)
    return show(results, as_json=json_to == "-", folder=plot)


def _teller(*, quiet: bool) -> Any:
    from cli.output.networks import progress_line

    def tell(measured: Measurement) -> None:
        if not quiet:
            stderr().print(Text(progress_line(measured)), soft_wrap=True)

    return tell


class _Compiler:
    """Compiler of bundles for a benchmark, with the progress of `farm compile`."""

    def __init__(self, settings: Settings, folder: Path, options: BuildOptions, *, quiet: bool) -> None:
        self._settings = settings
        self._folder = folder
        self._options = options
        self._quiet = quiet

    def __call__(self, model: NetworkModel, batch: int, arch: str) -> tuple[Path, float]:
        """The bundle for a batch size and architecture, and the seconds to compile it. Raises JobFailedError."""
        from cli.progress.compile import CompileProgress
        from farm.api import Farm
        from farm.jobs.model import Status

        begun = time.monotonic()
        path = self._folder / f"{model.name}-{batch}-{model.data_type}.farm"
        options = replace(self._options, archs=(arch,), batches=(batch,))
        with Farm.open(self._settings) as farm, CompileProgress(stderr(), quiet=self._quiet) as progress:
            [job] = farm.compile([model.checkpoint], options, progress=progress)
            if job.status is not Status.SUCCEEDED:
                raise JobFailedError(f"compiling {model.name} for batch {batch} {job.status}: {job.reason}")
            farm.fetch(job.id, path)
        return path, round(time.monotonic() - begun, 1)


def _files(names: Sequence[str], precision: Precision | None, sparsity: float, seed: int, folder: Path) -> list[Path]:
    """The models' files; demo networks are written into a folder. Raises UsageError."""
    paths = [file_of(name, precision or "float32", sparsity, seed, folder) for name in names]
    for name, path in zip(names, paths, strict=True):
        if precision is not None and path == Path(name):
            raise UsageError(f"--precision is for demo networks: {name} is a file with its own data type")
    stems = [path.stem for path in paths]
    if doubled := [stem for i, stem in enumerate(stems) if stem in stems[:i]]:
        raise UsageError(f"{doubled[0]} is given twice: give each network once, and files different names")
    return paths

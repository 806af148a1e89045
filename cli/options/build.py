"""Options that say which models to compile and how: declared once, for every command that plans or compiles."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from cli.options.parse import archs_of, bytes_of, input_shapes_of, input_values_of, names_of, numbers_of, share_of
from cli.output.console import print_error
from codegen.errors import CheckpointError
from codegen.ir.tiling import Accumulator, Form
from codegen.sass.qualification import AssemblerChoice, Trust
from farm.errors import UsageError
from farm.jobs.model import BuildOptions, LeaveDense

if TYPE_CHECKING:
    from codegen.ir.checkpoint import Checkpoint
    from farm.api import Farm

InputShapes = Annotated[
    list[str] | None,
    typer.Option(
        "--input-shape",
        metavar="NAME:N,3,224,224",
        help="Shape of an input that the file leaves open; N: a size that stays open, as the batch does; "
        "may be repeated.",
    ),
]
InputValues = Annotated[
    list[str] | None,
    typer.Option(
        "--input-value",
        metavar="NAME=16000",
        help="Value that all elements of an input always have, such as a sampling rate; may be repeated.",
    ),
]
Accumulate = Annotated[
    Accumulator,
    typer.Option(
        "--accumulate",
        metavar="float32|float16",
        help="Accumulator of float16 layers with over 160 products per sum; float16 is faster, less exact.",
    ),
]
Optimisation = Annotated[int, typer.Option("-O", metavar="0..3", min=0, max=3, help="Optimisation level of ptxas.")]
AssemblerName = Annotated[
    AssemblerChoice,
    typer.Option(
        "--assembler",
        metavar="auto|ptxas|direct|patch",
        help="Assembler of machine code. auto: direct, without ptxas, where a GPU has qualified it, else patch; patch: "
        "ptxas once per mask, other checkpoints of that mask are patched into its code.",
    ),
]
TrustName = Annotated[
    Trust | None,
    typer.Option(
        "--trust",
        metavar="qualified|checked",
        help="Code that auto assembles directly: qualified on a GPU (default), or also checked without one.",
        show_default=False,
    ),
]
LeaveDenseName = Annotated[
    LeaveDense,
    typer.Option(
        "--leave-dense",
        metavar="auto|never",
        help="auto: layers, or the network, that PyTorch is predicted to run clearly faster are left to it.",
    ),
]
AllowTf32 = Annotated[
    bool, typer.Option("--allow-tf32", help="Compare float32 layers with dense ones in TF32, which is less exact.")
]
NoTuning = Annotated[bool, typer.Option("--no-tuning", help="Ignore tuning records; choose tilings by the cost model.")]


@dataclass(frozen=True)
class BuildRequest:
    """The models that a command was given, and how to compile them."""

    models: tuple[Path, ...]
    options: BuildOptions
    input_shapes: Mapping[str, tuple[int | None, ...]]
    """Shapes of inputs that a model file leaves open, by the input's name."""
    input_values: Mapping[str, float]
    """Values of inputs that are to be constants."""
    keep_going: bool
    """Whether a model that cannot be read is skipped with an error message."""
    name: str | None
    """Name for the jobs instead of the file's name."""

    def read(self, farm: Farm) -> list[Checkpoint]:
        """Read the models. Raises CheckpointError for the first unreadable one, unless `keep_going` is set."""
        checkpoints = []
        for path in self.models:
            try:
                checkpoints.append(farm.read(path, self.input_shapes, self.input_values))
            except CheckpointError as error:
                if not self.keep_going:
                    raise
                print_error(str(error))
        return checkpoints


def _build_request(
    models: Annotated[
        list[Path], typer.Argument(help="ONNX files, or folders of TSV files.", metavar="MODEL", show_default=False)
    ],
    arch: Annotated[
        list[str],
        typer.Option(
            "--arch",
            metavar="ARCH,...",
            help="Architectures or GPUs, as in sm_80,h100; also all, native or '8.0;9.0+PTX'; sm_80+: one cubin for "
            "the GPUs of sm_80, sm_86 and sm_89; may be repeated.",
            show_default=False,
        ),
    ],
    gpu: Annotated[
        list[str] | None,
        typer.Option(
            "--gpu",
            metavar="GPU,...",
            help="GPUs to be fast on, as in rtx4090. Default: those in --arch, else an architecture's typical one.",
            show_default=False,
        ),
    ] = None,
    batch: Annotated[
        str,
        typer.Option("--batch", metavar="N,...", help="Batch sizes to be fast at, as in 1,8,64; other sizes run too."),
    ] = "64",
    input_shape: InputShapes = None,
    input_value: InputValues = None,
    template: Annotated[
        Form,
        typer.Option("--template", metavar="rolled|full", help="full: all loops unrolled before nvcc runs (slow)."),
    ] = "rolled",
    accumulate: Accumulate = "float32",
    max_code_size: Annotated[
        str,
        typer.Option(
            "--max-code-size", metavar="SIZE", help="Limit of machine code per layer; larger layers are skipped."
        ),
    ] = "16MB",
    optimisation: Optimisation = 3,
    assembler: AssemblerName = "auto",
    trust: TrustName = None,
    no_tuning: NoTuning = False,
    leave_dense: LeaveDenseName = "auto",
    min_sparsity: Annotated[
        float, typer.Option("--min-sparsity", metavar="SHARE", help="Share of zeros below which a layer is left dense.")
    ] = 0.0,
    allow_tf32: AllowTf32 = False,
    strict: Annotated[bool, typer.Option("--strict", help="Fail if any layer cannot be compiled.")] = False,
    keep_going: Annotated[
        bool, typer.Option("--keep-going", help="Continue with the other files if one cannot be read.")
    ] = False,
    name: Annotated[
        str | None, typer.Option("--name", metavar="NAME", help="Name for the jobs instead of the file's name.")
    ] = None,
) -> BuildRequest:
    """The options in the order of `--help`, parsed. Raises UsageError."""
    options = BuildOptions(
        archs_of(arch),
        batches=tuple(int(each) for each in numbers_of("--batch", batch, 1, whole=True)),
        form=template,
        accumulate=accumulate,
        optimisation=optimisation,
        strict=strict,
        code_limit_bytes=bytes_of("--max-code-size", max_code_size, least=1),
        tuning=not no_tuning,
        assembler=assembler,
        trust=trust,
        leave_dense=leave_dense,
        min_sparsity=share_of("--min-sparsity", min_sparsity),
        allow_tf32=allow_tf32,
        gpus=tuple(names_of(gpu or ())),
    )
    shapes, values = input_shapes_of(input_shape or []), input_values_of(input_value or [])
    if name is not None and not name.strip():
        raise UsageError(f"--name {name!r} is empty: give a name, or leave the option out")
    return BuildRequest(tuple(models), options, shapes, values, keep_going, name)


def build_options(*, without: Collection[str] = ()) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """Decorator that gives a command the build options, except those named in `without`.

    The command's first parameter is the BuildRequest; its other parameters follow the build options in `--help`.
    """

    def decorate(command: Callable[..., int]) -> Callable[..., int]:
        shared = [each for each in _parameters(_build_request) if each.name not in without]
        own = _parameters(command)[1:]

        @functools.wraps(command)
        def run(**arguments: Any) -> int:
            given = {each.name: arguments.pop(each.name) for each in shared if each.name in arguments}
            return command(_build_request(**given), **arguments)

        parameters = [*shared, *own]
        run.__signature__ = inspect.Signature(parameters, return_annotation=int)  # type: ignore[attr-defined]
        run.__annotations__ = {**{each.name: each.annotation for each in parameters}, "return": int}
        return run

    return decorate


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """Keyword parameters with evaluated annotations, as Typer reads them."""
    hints = get_type_hints(function, include_extras=True)
    return [
        each.replace(annotation=hints[each.name], kind=inspect.Parameter.KEYWORD_ONLY)
        for each in inspect.signature(function).parameters.values()
    ]

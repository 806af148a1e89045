"""What `farm compile` and `farm submit` share: options, reading checkpoints, warnings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli.options.parse import accumulator_of, archs_of, assembler_of, bytes_of, form_of
from cli.output.render import print_error, print_warning
from codegen.errors import CheckpointError
from farm.jobs.model import BuildOptions

if TYPE_CHECKING:
    from codegen.ir.checkpoint import Checkpoint
    from farm.api import Farm
    from farm.jobs.submission import Submission

Models = Annotated[
    list[Path], typer.Argument(help="ONNX files, or folders of TSV files.", metavar="MODEL", show_default=False)
]
Archs = Annotated[
    list[str],
    typer.Option(
        "--arch",
        metavar="ARCH,...",
        help="Architectures or GPUs, as in sm_80,h100; may be repeated.",
        show_default=False,
    ),
]
Batch = Annotated[
    int, typer.Option("--batch", metavar="N", min=1, help="Batch size to optimise for; other sizes run too.")
]
InputShapes = Annotated[
    list[str] | None,
    typer.Option(
        "--input-shape",
        metavar="NAME:1,3,224,224",
        help="Shape of an input that the file leaves open; may be repeated.",
    ),
]
TemplateForm = Annotated[
    str, typer.Option("--template", metavar="rolled|full", help="full: all loops unrolled before nvcc runs (slow).")
]
Accumulate = Annotated[
    str,
    typer.Option(
        "--accumulate",
        metavar="float32|float16",
        help="Sums of more than 160 products in float16 layers: float16 is faster, less exact.",
    ),
]
MaxCodeSize = Annotated[
    str,
    typer.Option("--max-code-size", metavar="SIZE", help="Most machine code per layer; layers with more are skipped."),
]
Optimisation = Annotated[int, typer.Option("-O", metavar="0..3", min=0, max=3, help="Optimisation level of ptxas.")]
AssemblerName = Annotated[
    str,
    typer.Option(
        "--assembler",
        metavar="auto|ptxas|direct|patch",
        help="Who makes machine code; auto: directly, without ptxas, where a GPU has admitted it; patch: "
        "ptxas once for a mask, whose other checkpoints are put into the same code.",
    ),
]
NoTuning = Annotated[bool, typer.Option("--no-tuning", help="Ignore tuning records: choose tilings by the cost model.")]
Strict = Annotated[bool, typer.Option("--strict", help="Fail if any layer cannot be compiled.")]
KeepGoing = Annotated[bool, typer.Option("--keep-going", help="Go on with the other files when one cannot be read.")]
Name = Annotated[
    str | None, typer.Option("--name", metavar="NAME", help="Name for the jobs instead of the file's name.")
]


def build_options_of(
    arch: Sequence[str],
    *,
    batch: int,
    template: str,
    accumulate: str,
    max_code_size: str,
    optimisation: int,
    strict: bool,
    tuning: bool,
    assembler: str = "auto",
) -> BuildOptions:
    """The options as they were typed. Raises UsageError."""
    return BuildOptions(
        archs_of(arch),
        batch=batch,
        form=form_of(template),
        accumulate=accumulator_of(accumulate),
        optimisation=optimisation,
        strict=strict,
        code_limit_bytes=bytes_of("--max-code-size", max_code_size, least=1),
        tuning=tuning,
        assembler=assembler_of(assembler),
    )


def read_checkpoints(
    farm: Farm, models: Sequence[Path], shapes: Mapping[str, tuple[int, ...]], *, keep_going: bool
) -> list[Checkpoint]:
    """Those that can be read. Raises CheckpointError for the first that cannot, unless it shall keep going."""
    checkpoints = []
    for path in models:
        try:
            checkpoints.append(farm.read(path, shapes))
        except CheckpointError as error:
            if not keep_going:
                raise
            print_error(str(error))
    return checkpoints


def print_warnings(submission: Submission) -> None:
    """What a person should know of the layers although they compile."""
    for warning in submission.warnings:
        print_warning(warning)

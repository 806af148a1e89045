"""`farm export`: write the network of a bundle as a file of another program's format."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from cli.exit_codes import OK
from cli.output.console import stdout
from cli.output.format import size


class Format(StrEnum):
    """Formats of exported networks."""

    PT2 = "pt2"


def export(
    bundle: Annotated[Path, typer.Argument(metavar="BUNDLE", help="A folder or .farm file that farm fetch wrote.")],
    _format: Annotated[
        Format, typer.Option("--format", metavar="pt2", help="pt2: a package of AOTInductor, which PyTorch loads.")
    ] = Format.PT2,
    output: Annotated[Path, typer.Option("-o", "--output", metavar="FILE", help="The file to write.")] = Path(
        "model.pt2"
    ),
    triton: Annotated[
        Path | None,
        typer.Option(
            "--triton",
            metavar="DIR",
            help="Instead of --output, write config.pbtxt and 1/model.pt2: a model of Triton Inference Server.",
        ),
    ] = None,
) -> int:
    """Write the network of a bundle as one file that PyTorch runs from C++ or Python, without farm.

    Needs PyTorch 2.10 or later (extra `torch`), a C++ compiler and a GPU. The package has the compiled layers in it,
    for all architectures of the bundle, and takes any batch size that the model leaves open.
    """
    from farm.bundle.reader import Bundle
    from farm.torch import write_package, write_triton_model

    opened = Bundle(bundle)
    package = write_package(opened, output) if triton is None else write_triton_model(opened, triton)
    batch = "any batch size" if package.batch is None else f"batch size {package.batch} only"
    stdout().print(Text(f"{package.path}: {size(package.path.stat().st_size)}, {batch}"), soft_wrap=True)
    return OK

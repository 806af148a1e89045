"""Options that `farm bench` and `farm tune` share: the layers to measure, and how."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli.options.parse import input_shapes_of, input_values_of
from farm.errors import UsageError

if TYPE_CHECKING:
    from farm.cuda.measure.workload import Case, Choice

Layers = Annotated[list[str] | None, typer.Option("--layer", metavar="NAME", help="Only this layer; may be repeated.")]
Sparsities = Annotated[
    str | None,
    typer.Option(
        "--sparsity", metavar="S,...", help="Shares of zero weights; by default the model's own, 0.9 for operators."
    ),
]
DataTypes = Annotated[
    str,
    typer.Option("--data-type", metavar="TYPE,...", help="Data types of the operators: float32, float16, bfloat16."),
]
Batches = Annotated[str, typer.Option("--batch", metavar="N,...", help="Batch sizes.")]
Seed = Annotated[int, typer.Option("--seed", metavar="N", help="Seed of weights and inputs.")]
Compilers = Annotated[
    int | None,
    typer.Option("-j", "--jobs", metavar="N", min=1, help="Compilers to run at once; all CPUs if not given."),
]
Local = Annotated[bool, typer.Option("--local", help="Use this machine's GPU even if a cluster is configured.")]


def cases_of(
    model: Path | None,
    layers: Sequence[str],
    ops: Sequence[str],
    choice: Choice,
    shapes: Sequence[str],
    values: Sequence[str],
) -> list[Case]:
    """The layers of a model; without a model the named operators, or all if none is named. Raises UsageError."""
    from farm.cuda.measure.workload import model_cases, operator_cases

    if model is None:
        if layers:
            raise UsageError("--layer needs a model: give its file, or --op for an operator")
        return list(operator_cases(ops, choice))
    if ops:
        raise UsageError("--op cannot be combined with a model: use --layer to select its layers")
    from codegen.frontend.model_file import read_model

    return list(model_cases(read_model(model, input_shapes_of(shapes), input_values_of(values)), layers, choice))

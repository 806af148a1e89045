"""A sweep's checkpoints against their sparsity, as a CSV file and as plots."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cli.output.format import duration, microseconds, percent, size
from cli.report.measured import Measured
from farm.errors import UsageError, printable

if TYPE_CHECKING:
    from farm.reports.sweep_points import SweepPoint

FACTS = ("name", "job", "arch", "batch", "sparsity", "weights", "nonzeros")
"""First columns of the CSV file."""
SERIES = 5
"""Colours of architectures."""
WIDTH, HEIGHT, MARGIN = 300, 150, 8
"""View box of a plot, and how far the outermost dots are from its edge."""


@dataclass(frozen=True)
class Column:
    """A number that each point has, or that some have."""

    name: str
    title: str
    value: Callable[[SweepPoint], float | None]
    words: Callable[[float], str]


@dataclass(frozen=True)
class Dot:
    """A point in a plot."""

    x: float
    y: float
    series: int
    """Number of its architecture's colour."""
    words: str


@dataclass(frozen=True)
class Plot:
    """One number against sparsity."""

    title: str
    dots: tuple[Dot, ...]
    least: str
    most: str
    first: str
    """Lowest sparsity, in words."""
    last: str
    width: int = WIDTH
    height: int = HEIGHT


OWN = (
    Column("cubin_bytes", "Code size", lambda point: point.cubin_bytes, lambda value: size(int(value))),
    Column("compile_seconds", "CPU time to compile", lambda point: point.compile_seconds, duration),
    Column(
        "predicted_microseconds", "Predicted time of layers", lambda point: point.predicted_microseconds, microseconds
    ),
)
"""Columns of the farm."""


def columns_of(measured: Measured) -> tuple[Column, ...]:
    """The farm's columns, then the user's."""
    return (*OWN, *(Column(name, name, _measured(measured, name), "{:g}".format) for name in measured.columns))


def _measured(measured: Measured, name: str) -> Callable[[SweepPoint], float | None]:
    return lambda point: measured.of(point, name)


def check_measured(points: Sequence[SweepPoint], measured: Measured) -> None:
    """Raises UsageError for a measurement of something else, or for a column that the farm has."""
    known = {name for point in points for name in (point.job.id, point.job.name)}
    names = sorted({name for name, _ in measured.values} - known)
    if names:
        examples = ", ".join(dict.fromkeys(point.job.name for point in points[:3])) or "none"
        raise UsageError(
            printable(f"--measured: no checkpoint '{names[0]}' that succeeded: those of the submission are {examples}")
        )
    taken = {*FACTS, *(column.name for column in OWN)}.intersection(measured.columns)
    if taken:
        raise UsageError(f"--measured: the report has a column {min(taken)} of its own: rename yours")


def sweep_csv(points: Sequence[SweepPoint], measured: Measured) -> str:
    """The table with a header and a row for each checkpoint and architecture; empty where nothing was measured."""
    columns = columns_of(measured)
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow([*FACTS, *(column.name for column in columns)])
    for point in points:
        job = point.job
        facts = (job.name, job.id, point.arch, job.options.batches[-1], point.sparsity, point.weights, point.nonzeros)
        rows.writerow([*facts, *(column.value(point) for column in columns)])
    return text.getvalue()


def sweep_plots(points: Sequence[SweepPoint], measured: Measured) -> tuple[list[str], list[Plot]]:
    """The architectures in the order of their colours, and a plot for each column."""
    archs = list(dict.fromkeys(point.arch for point in points))
    return archs, [plot for column in columns_of(measured) if (plot := _plot(points, archs, column))]


def _plot(points: Sequence[SweepPoint], archs: Sequence[str], column: Column) -> Plot | None:
    """The plot of a column; None if no point has it."""
    found = [(point, value) for point in points if (value := column.value(point)) is not None]
    if not found:
        return None
    values = [value for _, value in found]
    sparsities = [point.sparsity for point, _ in found]
    (least, most), (first, last) = (min(values), max(values)), (min(sparsities), max(sparsities))
    dots = tuple(
        Dot(
            round(_placed(point.sparsity, first, last, WIDTH), 1),
            round(HEIGHT - _placed(value, least, most, HEIGHT), 1),
            archs.index(point.arch) % SERIES,
            f"{point.job.name}, {point.arch}, {percent(point.sparsity)} zeros: {column.words(value)}",
        )
        for point, value in found
    )
    return Plot(column.title, dots, column.words(least), column.words(most), percent(first), percent(last))


def _placed(value: float, least: float, most: float, length: int) -> float:
    """Distance from the axis' begin; the middle if all values are equal."""
    share = (value - least) / (most - least) if most > least else 0.5
    return MARGIN + share * (length - 2 * MARGIN)

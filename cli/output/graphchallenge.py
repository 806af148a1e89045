"""Results of `farm bench graphchallenge` as a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Group
from rich.text import Text

from cli.output.table import Column, fitted_table

if TYPE_CHECKING:
    from farm.bench.layers.results import Measurement, Results

COLUMNS = (
    Column("NETWORK", least=12),
    Column("CONTENDER"),
    Column("MS", "right"),
    Column("TE/S", "right"),
    Column("LIVE TE/S", "right"),
    Column("SPEED-UP", "right"),
    Column("ROWS LEFT", "right", leaves=2),
    Column("ERROR", "right", leaves=1),
)
"""TE/s: 10^12 multiply-adds a second, of all rows; LIVE TE/S counts non-zero rows only."""


def challenge_table(measurements: Sequence[Measurement], width: int) -> Group:
    """One line per contender, with the speed-up of the compiled layers over it."""
    own = {each.case.operator: each.microseconds for each in measurements if each.contender == "generated"}
    return fitted_table(COLUMNS, [_cells(each, own.get(each.case.operator)) for each in measurements], width)


def _cells(row: Measurement, own: float | None) -> list[str]:
    name = [row.case.operator, row.contender]
    if row.microseconds is None:
        return [*name, *["-"] * (len(COLUMNS) - len(name))]
    facts = row.facts
    return [
        *name,
        f"{row.microseconds / 1e3:.3f}",
        f"{facts['nominal_teraedges_per_second']:.1f}",
        f"{facts['live_teraedges_per_second']:.2f}",
        f"{row.microseconds / own:.2f}x" if own and row.contender != "generated" else "-",
        str(facts["rows_left"]),
        "-" if row.relative_error is None else f"{row.relative_error:.0e}",
    ]


def challenge_tables(results: Results, width: int) -> list[Group | Text]:
    """The table, and the reasons of missing times."""
    reasons = (f"{each.case.operator}, {each.contender}: {each.reason}" for each in results.measurements if each.reason)
    return [challenge_table(results.measurements, width), *(Text(reason, style="yellow") for reason in reasons)]


def progress_line(row: Measurement) -> str:
    """One measurement on one line."""
    where = f"{row.case.operator}, {row.case.batch} rows: {row.contender}"
    if row.microseconds is None:
        return f"{where}: {row.reason}"
    facts = row.facts
    return (
        f"{where}: {row.microseconds / 1e3:.3f} ms, {facts['nominal_teraedges_per_second']:.1f} TE/s, live "
        f"{facts['live_teraedges_per_second']:.2f} ({facts['live_share']:.1%} of the rows' layers, "
        f"{facts['converged_share']:.0%} of those converged); {row.note}"
    )

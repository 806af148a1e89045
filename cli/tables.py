"""Tables of one line a row: what does not fit its screen loses its middle, and columns that matter least go."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from rich.table import Table
from rich.text import Text

Cell = str | Text
ELLIPSIS = "…"


@dataclass(frozen=True)
class Column:
    """One column of a table."""

    name: str
    align: Literal["left", "right"] = "left"
    least: int | None = None
    """Cells may be cut down to so many characters; None: they are never cut."""
    cut_end: bool = False
    """Cut at the end, as a sentence is; a name loses its middle, since its end often tells it from others."""
    leaves: int = 0
    """Goes where the room is too small; those with larger numbers first, with 0 never."""


def gap(width: int | None) -> int:
    """Between two columns."""
    return 2 if width is None or width >= 120 else 1


def fitted_table(columns: Sequence[Column], rows: Sequence[Sequence[Cell]], width: int | None) -> Table:
    """A table of at most that width, or of any where there is none; each row is one line.

    First the columns with the largest `leaves` go until all others fit, cut as far as they may be; then cells are cut.
    """
    wanted = [max(len(column.name), *(len(row[i]) for row in rows), 0) for i, column in enumerate(columns)]
    least = [
        wanted[i] if column.least is None else min(wanted[i], max(column.least, len(column.name)))
        for i, column in enumerate(columns)
    ]
    shown = _shown(columns, least, width)
    widths = _widths(shown, wanted, least, width)
    table = Table(box=None, padding=(0, gap(width), 0, 0), pad_edge=False, header_style="bold")
    for i in shown:
        table.add_column(columns[i].name, justify=columns[i].align, no_wrap=True)
    for row in rows:
        table.add_row(*(_cut(row[i], widths[i], at_end=columns[i].cut_end) for i in shown))
    return table


def _shown(columns: Sequence[Column], least: Sequence[int], width: int | None) -> list[int]:
    """Numbers of the columns that stay."""
    shown = list(range(len(columns)))
    while width is not None and sum(least[i] for i in shown) + gap(width) * (len(shown) - 1) > width:
        leaves = max(columns[i].leaves for i in shown)
        if leaves == 0:
            break
        shown = [i for i in shown if columns[i].leaves < leaves]
    return shown


def _widths(shown: Sequence[int], wanted: Sequence[int], least: Sequence[int], width: int | None) -> dict[int, int]:
    """The room beyond what each takes at least is given out evenly, to none more than it wants."""
    if width is None:
        return {i: wanted[i] for i in shown}
    widths = {i: least[i] for i in shown}
    room = width - sum(widths.values()) - gap(width) * (len(shown) - 1)
    while room > 0 and (hungry := [i for i in shown if widths[i] < wanted[i]]):
        for i in hungry[:room]:
            widths[i] += 1
        room -= len(hungry[:room])
    return widths


def _cut(cell: Cell, width: int, *, at_end: bool) -> Cell:
    if len(cell) <= width:
        return cell
    text = str(cell)
    return cut_end(text, width) if at_end else cut_middle(text, width)


def cut_middle(text: str, width: int) -> str:
    """At most so many characters: of a longer text the beginning and the end."""
    if len(text) <= width:
        return text
    end = (width - 1) // 2
    return text[: width - 1 - end] + ELLIPSIS + (text[-end:] if end else "")


def cut_end(text: str, width: int) -> str:
    """At most so many characters, the first ones."""
    return text if len(text) <= width else text[: width - 1].rstrip() + ELLIPSIS

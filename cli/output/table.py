"""Tables that fit a terminal: one line per row, long cells cut, the least important columns left out."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

from rich.cells import cell_len, set_cell_size
from rich.console import Group
from rich.table import Table
from rich.text import Text

from cli.output.console import one_line

Cell = str | Text
ELLIPSIS = "…"
WIDE = 120
"""Width of a terminal from which the gaps between columns are wider."""


@dataclass(frozen=True)
class Column:
    """One column of a table."""

    name: str
    align: Literal["left", "right"] = "left"
    least: int | None = None
    """Minimum width to which cells may be cut; None: never cut."""
    cut_end: bool = False
    """Whether cells are cut at the end, as sentences are; names are cut in the middle: their ends often differ."""
    leaves: int = 0
    """Rank in which columns are left out where the table is too wide, largest first; 0: never. From EXTRA on a column
    is left out before any name is cut, below EXTRA only if cutting does not suffice."""


EXTRA = 5


def without_columns(
    names: Collection[str], columns: Sequence[Column], rows: Sequence[Sequence[Cell]]
) -> tuple[list[Column], list[list[Cell]]]:
    """The columns and rows without some columns, for `fitted_table`."""
    kept = [i for i, column in enumerate(columns) if column.name not in names]
    return [columns[i] for i in kept], [[row[i] for i in kept] for row in rows]


def fitted_table(columns: Sequence[Column], rows: Sequence[Sequence[Cell]], width: int) -> Group:
    """A table of at most `width` columns of the terminal; each row is one line."""
    texts = [[one_line(Text(cell) if isinstance(cell, str) else cell) for cell in row] for row in rows]
    wanted = [
        max(cell_len(column.name), *(text.cell_len for text in _of(texts, i))) if texts else cell_len(column.name)
        for i, column in enumerate(columns)
    ]
    gap = 2 if width >= WIDE else 1
    shown = _shown(columns, wanted, width, gap)
    widths = _widths(columns, shown, wanted, width, gap)
    lines = [Text(" " * gap).join(_fitted(Text(columns[i].name, "bold"), columns[i], widths[i]) for i in shown)]
    lines += [Text(" " * gap).join(_fitted(row[i], columns[i], widths[i]) for i in shown) for row in texts]
    for line in lines:
        line.truncate(width)  # where even the remaining columns are too wide
        line.rstrip()
        line.no_wrap, line.overflow = True, "ignore"
    return Group(*lines)


def _of(texts: Sequence[Sequence[Text]], column: int) -> list[Text]:
    return [row[column] for row in texts]


def _least(column: Column, wanted: int) -> int:
    return wanted if column.least is None else min(wanted, max(column.least, cell_len(column.name)))


def _shown(columns: Sequence[Column], wanted: Sequence[int], width: int, gap: int) -> list[int]:
    """Indices of the columns that are shown."""
    shown = list(range(len(columns)))

    def taken(*, uncut: bool) -> int:
        """Width of the table, with names uncut or with all cells cut as far as allowed."""
        widths = [wanted[i] if uncut and not columns[i].cut_end else _least(columns[i], wanted[i]) for i in shown]
        return sum(widths) + gap * (len(shown) - 1)

    while (leaves := max(columns[i].leaves for i in shown)) and taken(uncut=leaves >= EXTRA) > width:
        shown = [i for i in shown if columns[i].leaves < leaves]
    return shown


def _widths(
    columns: Sequence[Column], shown: Sequence[int], wanted: Sequence[int], width: int, gap: int
) -> dict[int, int]:
    """Width of each shown column: the minimum, plus an even part of the remaining room, first for names."""
    widths = {i: _least(columns[i], wanted[i]) for i in shown}
    room = width - sum(widths.values()) - gap * (len(shown) - 1)
    for sentences in (False, True):
        while room > 0 and (
            hungry := [i for i in shown if widths[i] < wanted[i] and columns[i].cut_end is sentences][:room]
        ):
            for i in hungry:
                widths[i] += 1
            room -= len(hungry)
    return widths


def _fitted(text: Text, column: Column, width: int) -> Text:
    if text.cell_len > width:
        cut = cut_end if column.cut_end else cut_middle
        text = Text(cut(text.plain, width), text.style)
    filling = Text(" " * (width - text.cell_len))
    return filling + text if column.align == "right" else text + filling


def cut_middle(text: str, width: int) -> str:
    """A text cut to `width` columns of the terminal, without its middle."""
    if cell_len(text) <= width:
        return text
    end = (width - 1) // 2
    return set_cell_size(text, width - 1 - end) + ELLIPSIS + set_cell_size(text[::-1], end)[::-1]


def cut_end(text: str, width: int) -> str:
    """A text cut to `width` columns of the terminal at its end."""
    return text if cell_len(text) <= width else set_cell_size(text, width - 1).rstrip() + ELLIPSIS


def plain_table(width: int) -> Table:
    """A table without lines, with wider gaps on a wide terminal."""
    return Table(box=None, padding=(0, 2 if width >= WIDE else 1, 0, 0), pad_edge=False, header_style="bold")

"""Tables of one line per row: names lose their middle, sentences their end, unimportant columns go first."""

from __future__ import annotations

import pytest

from cli.output.table import EXTRA, Column, cut_end, cut_middle, fitted_table
from tests.unit.test_cli_output import shown

COLUMNS = (
    Column("NAME", least=9),
    Column("MODEL", leaves=EXTRA),
    Column("COUNT", "right", leaves=1),
    Column("WHY", least=6, cut_end=True),
)
ROWS = [("layer4.1.conv2_of_a_long_name", "resnet50.onnx", "12,345", "it ran out of memory")] * 2
WIDE = ["NAME", "MODEL", "COUNT", "WHY"]


@pytest.mark.parametrize(
    ("width", "columns"),
    [
        (80, WIDE),
        (60, WIDE),
        (40, ["NAME", "COUNT", "WHY"]),
        (24, ["NAME", "COUNT", "WHY"]),
        (20, ["NAME", "WHY"]),
        (10, ["NAME"]),
    ],
)
def test_each_row_is_one_line_as_wide_as_the_screen_at_most(width: int, columns: list[str]) -> None:
    lines = shown(fitted_table(COLUMNS, ROWS, width), width)
    assert len(lines) == 1 + len(ROWS)
    assert max(map(len, lines)) <= width
    assert lines[0].split() == columns


def test_nothing_is_cut_without_a_terminal() -> None:
    lines = shown(fitted_table(COLUMNS, ROWS, 1000), 1000)
    assert lines[1].split("  ") == list(ROWS[0])


def test_nothing_is_cut_where_there_is_room() -> None:
    lines = shown(fitted_table(COLUMNS, ROWS, 80), 80)
    assert all(cell in lines[1] for cell in ROWS[0])


@pytest.mark.parametrize(("width", "text"), [(9, "abcdefghi"), (8, "abcd…ghi"), (5, "ab…hi"), (2, "a…"), (1, "…")])
def test_a_long_name_keeps_its_beginning_and_its_end(width: int, text: str) -> None:
    assert cut_middle("abcdefghi", width) == text


def test_a_long_sentence_keeps_its_beginning() -> None:
    assert cut_end("one two three", 8) == "one two…"
    assert cut_end("one two", 8) == "one two"

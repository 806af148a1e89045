"""A user's measurements of a sweep's checkpoints, such as accuracy and latency, from a CSV file."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from codegen.target.gpus import arch_named
from farm.errors import UsageError, printable

if TYPE_CHECKING:
    from farm.reports.sweep_points import SweepPoint

LARGEST_FILE_BYTES = 16_000_000
NAME, ARCH = "name", "arch"
"""Columns that say what was measured; all others are numbers."""


@dataclass(frozen=True)
class Measured:
    """Measurements by column, for a checkpoint's name or job id, and an architecture or, if empty, all of them."""

    columns: tuple[str, ...] = ()
    values: Mapping[tuple[str, str], Mapping[str, float]] = field(default_factory=dict)

    def of(self, point: SweepPoint, column: str) -> float | None:
        """The value of a point; None if it was not measured."""
        for name in (point.job.id, point.job.name):
            for arch in (point.arch, ""):
                if column in (row := self.values.get((name, arch), {})):
                    return row[column]
        return None


NOTHING = Measured()


def read_measured(path: Path) -> Measured:
    """Reads a CSV file with the columns `name`, `arch` if wanted, and numbers. Raises UsageError."""
    try:
        return _parsed(_text(path))
    except (ValueError, csv.Error) as error:
        reason = printable(str(error))
        raise UsageError(f"--measured {path}: {reason}. Give a CSV file such as name,accuracy.") from error


def _text(path: Path) -> str:
    """Raises ValueError."""
    try:
        if not path.is_file():
            raise ValueError("it is not a file")
        with path.open("rb") as file:
            data = file.read(LARGEST_FILE_BYTES + 1)
    except OSError as error:
        raise ValueError(f"it cannot be read: {error.strerror}") from error
    if len(data) > LARGEST_FILE_BYTES:
        raise ValueError(f"it has more than {LARGEST_FILE_BYTES:,} bytes")
    return data.decode("utf-8-sig")


def _parsed(text: str) -> Measured:
    """Raises ValueError and csv.Error."""
    rows = csv.reader(io.StringIO(text), strict=True)
    header = [each.strip() for each in next(rows, [])]
    columns = [each for each in header if each not in (NAME, ARCH)]
    if header.count(NAME) != 1 or not columns or "" in columns or len(header) != len(set(header)):
        raise ValueError("its first line needs distinct names of columns, `name` and a number")
    values: dict[tuple[str, str], dict[str, float]] = {}
    for row in rows:
        if not row:
            continue
        if len(row) != len(header):
            raise ValueError(f"line {rows.line_num} has {len(row)} values for {len(header)} columns")
        cells = dict(zip(header, map(str.strip, row), strict=True))
        found = values.setdefault((cells[NAME], _arch(cells.get(ARCH, ""))), {})
        found.update({each: _number(cells[each], rows.line_num) for each in columns if cells[each]})
    return Measured(tuple(columns), values)


def _arch(text: str) -> str:
    """Raises ValueError."""
    arch = arch_named(text) if text else ""
    if arch is None:
        raise ValueError(f"'{text}' is no architecture or GPU")
    return arch


def _number(text: str, line: int) -> float:
    """Raises ValueError."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ValueError(f"line {line}: '{text}' is not a number")
    return value

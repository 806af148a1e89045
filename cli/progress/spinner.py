"""What a long look through a store has counted so far, on a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from cli.output.console import stderr

if TYPE_CHECKING:
    from farm.maintenance.inventory import Tell


@contextmanager
def counting(what: str) -> Iterator[Tell]:
    """Shows `what` and the counts that it is told; nothing where nobody watches."""
    from farm.maintenance.inventory import tell_nobody

    console = stderr()
    if not console.is_terminal:
        yield tell_nobody
        return
    with console.status(what) as line:
        yield lambda noun, count: line.update(f"{what}: {count:,} {noun}")

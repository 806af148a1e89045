"""A spinner with a count, for long walks through the store or the ledger."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from cli.output.console import stderr

if TYPE_CHECKING:
    from farm.maintenance.inventory import Tell


@contextmanager
def spinner(what: str) -> Iterator[Tell]:
    """Show `what` and the counts that the yielded function is given; nothing without a terminal."""
    from farm.maintenance.inventory import tell_nobody

    console = stderr()
    if not console.is_terminal:
        yield tell_nobody
        return
    with console.status(what) as line:
        yield lambda noun, count: line.update(f"{what}: {count:,} {noun}")

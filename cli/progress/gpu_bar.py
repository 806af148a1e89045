"""Progress of work on a GPU: a bar on a terminal, lines elsewhere."""

from __future__ import annotations

from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text


class WorkBar:
    """A bar of `total` steps with a description of the current one. Use it in a `with` block."""

    def __init__(self, console: Console, description: str, *, total: int | None = None, quiet: bool = False) -> None:
        self._console = console
        self._quiet = quiet
        self.shows = console.is_terminal and not quiet
        """Whether the bar is visible, so that no lines are needed."""
        self._bar = Progress(
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.description}", markup=False),
            console=console,
            transient=True,
            disable=not self.shows,
        )
        self._task = self._bar.add_task(description, total=total)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._bar.stop()

    def update(self, **changes: Any) -> None:
        """Set `total`, `completed` or `description`, or move on by `advance`."""
        self._bar.update(self._task, **changes)

    def line(self, text: str) -> None:
        """Print a line above the bar, unless quiet."""
        if not self._quiet:
            self._console.print(Text(text), soft_wrap=True)

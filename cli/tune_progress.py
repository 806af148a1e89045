"""What `farm tune` shows while it works: a bar and the layer at hand on a terminal, a line per layer elsewhere."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from cli.tuning_tables import outcome_line
from farm.tuner.tuner import Outcome, TuneProgress


class ShownTuning(TuneProgress):
    """Shows one call of `farm tune`, and keeps what has come of it. Use it in a `with` block."""

    def __init__(self, console: Console, *, quiet: bool = False) -> None:
        self.outcomes: list[Outcome] = []
        self.total = 0
        self._console = console
        self._quiet = quiet
        self._shows = console.is_terminal and not quiet
        self._bar = Progress(
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.description}"),
            console=console,
            transient=True,
            disable=not self._shows,
        )
        self._task = self._bar.add_task("building", total=None)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def waiting(self, reason: str) -> None:
        """See TuneProgress."""
        self._line(reason)

    def started(self, gpu: str, layers: int) -> None:
        """See TuneProgress."""
        self.total = layers
        self._bar.update(self._task, total=layers)
        self._line(f"tuning {layers} {'layer' if layers == 1 else 'layers'} on {gpu}")

    def trying(self, layer: str, batch: int, tried: int, best_microseconds: float | None) -> None:
        """See TuneProgress."""
        best = "" if best_microseconds is None else f", best {best_microseconds:.2f} us"
        self._bar.update(self._task, description=f"{layer} batch {batch}: {tried} tried{best}")

    def done(self, outcome: Outcome) -> None:
        """See TuneProgress."""
        self.outcomes.append(outcome)
        self._bar.update(self._task, advance=1)
        self._line(f"{len(self.outcomes)}/{self.total} {outcome_line(outcome)}")

    def _line(self, text: str) -> None:
        if not self._quiet:
            self._console.print(Text(text), soft_wrap=True)

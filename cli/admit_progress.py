"""What `farm admit` shows while it works: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import time
from pathlib import Path
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from farm.errors import UsageError
from farm.trial.admit import TrialProgress
from farm.trial.trial import Started, Tried, TriedShape

LINE_SECONDS = 5.0
"""Between two lines where there is no terminal."""


class ShownTrial(TrialProgress):
    """Shows one call of `farm admit`, and keeps the cubins of layers that differ. Use it in a `with` block."""

    def __init__(self, console: Console, keep: Path | None, *, quiet: bool = False) -> None:
        self._console = console
        self._keep = keep
        self._quiet = quiet
        self._all = Tried()
        self._total = 0
        self._told_at = time.monotonic()
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
        self._task = self._bar.add_task("making the first layers", total=None)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def waiting(self, reason: str) -> None:
        """See TrialProgress."""
        self._line(reason)

    def started(self, started: Started) -> None:
        """See TrialProgress."""
        self._total = started.layers
        self._bar.update(self._task, total=started.layers)
        types = " and ".join(started.data_types)
        self._line(f"{started.gpu} ({started.arch}), ptxas {started.ptxas}: {started.layers:,} layers of {types}")

    def tried(self, shape: TriedShape) -> None:
        """See TrialProgress."""
        self._all += shape.tried
        for line in (*shape.tried.wrong, *shape.tried.failed):
            self._line(line)
        for name, data in shape.evidence:
            self._keep_file(name, data)
        text = f"{shape.name}: {self._all.layers:,} layers compared, {len(self._all.wrong)} wrong"
        self._bar.update(self._task, completed=self._all.drawn, description=text)
        if not self._shows and time.monotonic() - self._told_at >= LINE_SECONDS:
            self._told_at = time.monotonic()
            self._line(f"{self._all.drawn:,} of {self._total:,}, {text}")

    def _keep_file(self, name: str, data: bytes) -> None:
        if self._keep is None:
            return
        try:
            self._keep.mkdir(parents=True, exist_ok=True)
            (self._keep / name).write_bytes(data)
        except OSError as error:
            raise UsageError(f"{self._keep} cannot be written ({error.strerror}): name another folder") from None

    def _line(self, text: str) -> None:
        if not self._quiet:
            self._console.print(Text(text), soft_wrap=True)

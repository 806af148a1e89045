"""Progress of `farm qualify`: a bar on a terminal, else a line every few seconds."""

from __future__ import annotations

import time
from pathlib import Path

from cli.progress.gpu_bar import WorkBar
from farm.errors import UsageError
from farm.qualification.qualify import QualificationProgress, ShapeResult, Started, Tally

LINE_SECONDS = 5.0
"""Seconds between two lines without a terminal."""


class ShownQualification(QualificationProgress):
    """Shows a qualification run and keeps the cubins of layers that differ."""

    def __init__(self, bar: WorkBar, keep: Path | None) -> None:
        self._bar = bar
        self._keep = keep
        self._all = Tally()
        self._total = 0
        self._told_at = time.monotonic()

    def waiting(self, reason: str) -> None:
        """See QualificationProgress."""
        self._bar.line(reason)

    def started(self, started: Started) -> None:
        """See QualificationProgress."""
        self._total = started.layers
        self._bar.update(total=started.layers)
        types = " and ".join(started.data_types)
        self._bar.line(f"{started.gpu} ({started.arch}), ptxas {started.ptxas}: {started.layers:,} layers of {types}")

    def shape_done(self, shape: ShapeResult) -> None:
        """See QualificationProgress."""
        self._all += shape.tally
        for line in (*shape.tally.wrong, *shape.tally.not_built):
            self._bar.line(line)
        for name, data in shape.evidence:
            self._keep_file(name, data)
        text = f"{shape.name}: {self._all.layers:,} layers compared, {len(self._all.wrong)} wrong"
        self._bar.update(completed=self._all.drawn, description=text)
        if not self._bar.shows and time.monotonic() - self._told_at >= LINE_SECONDS:
            self._told_at = time.monotonic()
            self._bar.line(f"{self._all.drawn:,} of {self._total:,}, {text}")

    def _keep_file(self, name: str, data: bytes) -> None:
        if self._keep is None:
            return
        try:
            self._keep.mkdir(parents=True, exist_ok=True)
            (self._keep / name).write_bytes(data)
        except OSError as error:
            raise UsageError(f"{self._keep} cannot be written ({error.strerror}): name another folder") from None

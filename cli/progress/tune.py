"""Progress of `farm tune`: the current layer on the bar, a line for each finished one."""

from __future__ import annotations

from cli.output.tuning import outcome_line
from cli.progress.gpu_bar import WorkBar
from farm.tuning.search.tune import Outcome, TuneProgress


class ShownTuning(TuneProgress):
    """Shows one call of `farm tune`, and keeps the outcomes."""

    def __init__(self, bar: WorkBar) -> None:
        self.outcomes: list[Outcome] = []
        self.total = 0
        self._bar = bar

    def waiting(self, reason: str) -> None:
        """See TuneProgress."""
        self._bar.line(reason)

    def started(self, gpu: str, layers: int) -> None:
        """See TuneProgress."""
        self.total = layers
        self._bar.update(total=layers)
        self._bar.line(f"tuning {layers} {'layer' if layers == 1 else 'layers'} on {gpu}")

    def trying(self, layer: str, batch: int, tried: int, best_microseconds: float | None) -> None:
        """See TuneProgress."""
        best = "" if best_microseconds is None else f", best {best_microseconds:.2f} us"
        self._bar.update(description=f"{layer} batch {batch}: {tried} tried{best}")

    def done(self, outcome: Outcome) -> None:
        """See TuneProgress."""
        self.outcomes.append(outcome)
        self._bar.update(advance=1)
        self._bar.line(f"{len(self.outcomes)}/{self.total} {outcome_line(outcome)}")

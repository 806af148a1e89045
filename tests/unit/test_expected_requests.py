"""Requests beyond an executor's capacity are announced to it, so that a cluster can grow."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from farm.worker.messages import Request
from tests.unit.farmyard import Farmyard, PlayedExecutor


class GrowingExecutor(PlayedExecutor):
    """Has no machine until it hears that work waits for one."""

    heard = 0
    """Requests, the first time."""

    def expect(self, requests: Sequence[Request]) -> None:
        super().expect(requests)
        self.heard = self.heard or len(requests)

    @property
    def capacity(self) -> int:
        return super().capacity if self.heard else 0


def test_requests_beyond_the_capacity_are_announced_until_all_are_done(tmp_path: Path) -> None:
    farm = Farmyard(tmp_path)
    executor = GrowingExecutor(farm.store)
    [job] = farm.coordinator(executor).run(farm.submit("a"))
    assert (job.done, executor.heard, executor.expected) == (4, 2, [])  # at first its templates
    farm.ledger.close()

"""Meeting point at which processes of a test wait for one another."""

from __future__ import annotations

from multiprocessing.synchronize import Barrier

BARRIER: list[Barrier] = []


def will_meet(barrier: Barrier) -> None:
    BARRIER.append(barrier)

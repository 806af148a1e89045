"""Lanes in an order that is drawn: for kernels whose warps wait for what others write."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import numpy as np

from codegen.emulator.ptx.schedule import WAITING, Schedule
from codegen.emulator.ptx.state import Machine
from codegen.emulator.ptx.steps import WARP_LANES
from codegen.errors import EmulationError
from codegen.ptx.module import Entry

FASTEST = 2.0**6
"""How often the fastest warp may be drawn for the slowest: some are to be far behind."""


class InterleavedSchedule(Schedule):
    """Runs one warp at a time, drawn from those that can go on, some of them more often than others.

    So a loop which waits for another warp ends, and other numbers give other orders of those that a GPU may choose. The
    lanes of a warp meet again as in a Schedule.
    """

    def __init__(self, machine: Machine, entry: Entry, threads: int, place: Callable[[int], str], number: int) -> None:
        """Draws from `number`. Raises EmulationError for blocks that are not of whole warps, and for clusters."""
        if threads % WARP_LANES or prod(entry.cluster) > 1:
            raise EmulationError(
                f"blocks of {threads} threads, {prod(entry.cluster)} a cluster: only blocks of whole warps "
                "without clusters are interleaved"
            )
        super().__init__(machine, entry, threads, place)
        warps = machine.lanes // WARP_LANES
        self._order = np.random.default_rng(number)
        self._warps = np.arange(warps).repeat(WARP_LANES)
        self._speeds = FASTEST ** self._order.random(warps)

    def run(self, limit: int) -> None:
        while True:
            self._release_whole_blocks()
            at = self._next.reshape(-1, WARP_LANES).min(axis=1)
            able = np.flatnonzero(at < WAITING)
            if not able.size:
                return
            chances = self._speeds[able]
            warp = self._order.choice(able, p=chances / chances.sum())
            number = int(at[warp])
            self._run(number, (self._next == number) & (self._warps == warp), limit)

    def _release_whole_blocks(self) -> None:
        """Of which no lane can run."""
        stopped = (self._next.reshape(-1, self._threads) >= WAITING).all(axis=1).repeat(self._threads)
        waiting = stopped & (self._next == WAITING)
        if waiting.any():
            self._release_barriers(waiting)

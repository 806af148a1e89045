"""A random order of warps, for kernels whose warps wait for what others write."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import numpy as np

from codegen.emulator.ptx.schedule import WAITING, Schedule
from codegen.emulator.ptx.state import State
from codegen.emulator.ptx.steps import WARP_LANES
from codegen.errors import EmulationError
from codegen.ptx.module import Entry

FASTEST = 2.0**6
"""Ratio of the chances of the fastest and the slowest warp: some fall far behind."""


class InterleavedSchedule(Schedule):
    """Runs one randomly chosen warp at a time, some warps more often than others.

    A loop that waits for another warp therefore ends, and each seed gives another order that a GPU might choose.
    Lanes of a warp that diverged meet again as in a Schedule.
    """

    def __init__(self, state: State, entry: Entry, threads: int, place: Callable[[int], str], number: int) -> None:
        """`number` is the seed. Raises EmulationError for blocks with an incomplete warp, and for clusters."""
        if threads % WARP_LANES or prod(entry.cluster) > 1:
            raise EmulationError(
                f"blocks of {threads} threads, {prod(entry.cluster)} a cluster: only blocks of whole warps "
                "without clusters are interleaved"
            )
        super().__init__(state, entry, threads, place)
        warps = state.lanes // WARP_LANES
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
        """Releases the barriers of blocks in which no lane can run."""
        stopped = (self._next.reshape(-1, self._threads) >= WAITING).all(axis=1).repeat(self._threads)
        waiting = stopped & (self._next == WAITING)
        if waiting.any():
            self._release_barriers(waiting)

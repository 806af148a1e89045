"""Clusters: access to the shared memory of other blocks, and the cluster barrier."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from codegen.emulator.alu.arithmetic import Lanes
from codegen.emulator.faults import FaultError
from codegen.emulator.memory.global_memory import Selection, lane_at
from codegen.emulator.memory.shared_memory import SharedMemory

_WINDOW: Final = 1 << 24
"""Bytes of a cluster's address space per rank; the memory of rank 0 begins at this address."""


class Clusters:
    """The clusters of all blocks that run together; the blocks of a cluster are neighbours."""

    def __init__(self, blocks: int, lanes: int, shared: SharedMemory) -> None:
        """`blocks` per cluster, 1 for a kernel without clusters."""
        self.blocks = blocks
        self._shared = shared
        self._arrived = np.zeros(lanes, dtype=np.int64)
        self._releases = np.ones(lanes, dtype=np.bool_)
        self._waited = np.zeros(lanes, dtype=np.int64)
        threads = shared.threads
        self._lanes = blocks * threads
        self._first_block = np.arange(lanes) // self._lanes * blocks
        self._ended: NDArray[np.bool_] = np.zeros(lanes // threads, dtype=np.bool_)

    def arrive(self, lanes: Selection, *, releases: bool) -> None:
        """Lanes arrive at the barrier and continue. Unless it releases, their writes stay invisible to other blocks."""
        if (twice := np.flatnonzero(self._arrived[lanes] > self._waited[lanes])).size:
            raise FaultError(lane_at(lanes, int(twice[0])), "arrives twice at the cluster barrier without waiting")
        self._arrived[lanes] += 1
        self._releases[lanes] = releases

    def check_wait(self, lanes: NDArray[np.intp]) -> None:
        """Raises FaultError for a lane that waits for a barrier at which it has not arrived."""
        if (early := np.flatnonzero(self._arrived[lanes] == self._waited[lanes])).size:
            raise FaultError(int(lanes[early[0]]), "waits at the cluster barrier without having arrived")

    def passing(self, waiting: NDArray[np.bool_], ended: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """The waiting lanes that may continue, because all lanes of their cluster have arrived or ended."""
        arrived = np.where(ended, np.iinfo(np.int64).max, self._arrived).reshape(-1, self._lanes).min(axis=1)
        passing: NDArray[np.bool_] = waiting & (np.repeat(arrived, self._lanes) > self._waited)
        self._waited[passing] += 1
        if passing.any() and self._releases[passing].all():
            self._shared.publish()
            self._shared.publish_to_cluster()
        return passing

    def end(self, ended: NDArray[np.bool_]) -> None:
        """Records the lanes that have ended. The shared memory of a block is gone once all its lanes have."""
        self._ended[:] = ended.reshape(len(self._ended), -1).all(axis=1)

    def load(self, addresses: Lanes, lanes: Selection, size: int, count: int) -> list[Lanes]:
        """Reads `count` elements of `size` bytes from the shared memory of any block of each lane's cluster."""
        rank, local = addresses // _WINDOW, addresses % _WINDOW
        own = np.arange(len(self._arrived))[lanes] // self._shared.threads
        block = np.where(rank == 0, own, self._first_block[lanes] + rank.astype(np.int64) - 1)
        if (gone := np.flatnonzero(self._ended[block])).size:
            rank_there = int(block[gone[0]]) % self.blocks
            raise FaultError(
                lane_at(lanes, int(gone[0])), f"the shared memory of rank {rank_there} in the cluster, which has ended"
            )
        return self._shared.load_of(block, local, lanes, size, count)

    def mapped(self, addresses: Lanes, ranks: Lanes, lanes: Selection) -> Lanes:
        """Cluster addresses that name these addresses of shared memory in the blocks of these ranks."""
        if (outside := np.flatnonzero(ranks >= self.blocks)).size:
            rank = int(ranks[outside[0]])
            raise FaultError(lane_at(lanes, int(outside[0])), f"rank {rank} of a cluster of {self.blocks} blocks")
        found: Lanes = addresses % _WINDOW + (ranks + np.uint32(1)) * np.uint32(_WINDOW)
        return found

"""The shared memory of every block, and asynchronous copies into it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from codegen.emulator.alu.arithmetic import Lanes
from codegen.emulator.faults import FaultError
from codegen.emulator.memory.global_memory import Selection, lane_at
from codegen.emulator.memory.uninitialized import JUNK

BASE: Final = 1024
"""Address of the first byte. From sm_90 on a GPU reserves the first kilobyte, so address 0 is an error."""

_GRAIN = 16
_NOBODY = -1
_WARP = 32
_BEFORE_ALL, _AFTER_ALL = 0, 255
"""Before the first and after the last warp of a block; warps are counted from 1."""
_MOST_READS = 1 << 23
"""Elements loaded that are kept, 9 bytes each, until a store asks who has read."""


Spare = Callable[[int, NDArray[np.intp]], bool]
"""Whether element `i` of a vector load may be undefined in the lanes at these positions, because it is never used."""


class SharedMemory:
    """One window of `size` bytes per block.

    Reading a byte that was never written, or that another lane wrote without a barrier in between, is a FaultError,
    but for elements of a vector load that nobody uses: padding of the last channels, say. Overwriting a byte that
    another warp has read without a barrier in between is one too: in another order of warps, that warp reads too late.
    """

    def __init__(self, size: int, blocks: int, threads: int, base: int = BASE) -> None:
        self._size, self._base = size, base
        self.threads = threads
        """Threads per block."""
        stride = max(_GRAIN, -(-size // _GRAIN) * _GRAIN)
        data = np.full(blocks * stride // 4, JUNK[4], dtype=np.uint32)
        written = np.zeros(blocks * stride, dtype=np.uint8)
        writer = np.full(blocks * stride, _NOBODY, dtype=np.int32)
        # Bytes written since the last cluster barrier, which only their own block may read.
        self._private = np.zeros(blocks * stride, dtype=np.bool_)
        block = np.repeat(np.arange(blocks, dtype=np.int64), threads)
        self._lanes = np.arange(blocks * threads, dtype=np.int32)
        sizes = (1, 2, 4, 8)
        self._data: dict[int, Lanes] = {each: data.view(f"u{each}") for each in sizes}
        self._written: dict[int, Lanes] = {each: written.view(f"u{each}") for each in sizes}
        self._writer = {each: writer.reshape(-1, each) for each in sizes}
        self._origin = {each: block * (stride // each) for each in sizes}
        self._stride = stride
        self._unpublished = False
        self._grain = 4
        """Bytes of the smallest store so far."""
        self._warps = (np.arange(blocks * threads) % threads // _WARP + 1).astype(np.uint8)
        """[lanes]: the lane's warp within its block."""
        self._several_warps = threads > _WARP
        self._reads: list[tuple[NDArray[np.int64], NDArray[np.uint8], int]] = []
        """Elements, warps and size of the loads since the last barrier that are not in `_readers` yet."""
        self._reads_count = 0
        self._readers = np.empty((2, blocks * stride), dtype=np.uint8)
        """The first and the last warp that has read each byte since the last barrier."""
        self._forget_readers()
        self._read_by_others = np.zeros(blocks * stride, dtype=np.bool_)
        """Bytes that another block has read since the last cluster barrier."""

    def load(
        self, addresses: Lanes, lanes: Selection, size: int, count: int, spare: Spare | None = None
    ) -> list[Lanes]:
        """Reads `count` elements of `size` bytes. Elements of a vector that are `spare` may be undefined."""
        first = self._locate(addresses, lanes, size, count)
        if count == 1:
            return [self._read(first, lanes, size)]
        return [self._read(first + i, lanes, size, spare and partial(spare, i)) for i in range(count)]

    def store(self, addresses: Lanes, lanes: Selection, size: int, values: Sequence[Lanes]) -> None:
        """Writes elements of `size` bytes; of several lanes at one address, the last one wins."""
        first = self._locate(addresses, lanes, size, len(values))
        self._grain = min(self._grain, size)
        for i, value in enumerate(values):
            self._check_unread(first + i, lanes, size)
            self._write(first + i, lanes, size, value)

    def publish(self) -> None:
        """Block barrier: every lane may read what the others wrote, and overwrite what they read."""
        self._reads.clear()
        self._reads_count = 0
        if self._was_read:
            self._forget_readers()
        if self._unpublished:
            self._writer[1].fill(_NOBODY)
            self._unpublished = False

    def publish_to_cluster(self) -> None:
        """Cluster barrier: the other blocks may read what was written, and what they read may be overwritten."""
        self._private.fill(False)
        self._read_by_others.fill(False)

    def load_of(
        self, blocks: NDArray[np.int64], addresses: Lanes, lanes: Selection, size: int, count: int
    ) -> list[Lanes]:
        """Reads `count` elements of `size` bytes from these blocks [lanes] instead of the lanes' own."""
        own = self._locate(addresses, lanes, size, count)
        first = own - self._origin[size][lanes] + blocks * (self._stride // size)
        for i in range(count):
            private = self._private.reshape(-1, size)[first + i].any(axis=1) & (first != own)
            if private.any():
                position = int(np.flatnonzero(private)[0])
                raise FaultError(
                    lane_at(lanes, position),
                    "shared memory of another block was written since the last barrier of the cluster",
                )
            self._read_by_others.reshape(-1, size)[(first + i)[first != own]] = True
        return [self._read(first + i, lanes, size) for i in range(count)]

    def begin_copy(self, addresses: Lanes, lanes: Selection, size: int) -> NDArray[np.int64]:
        """Makes the target of a copy undefined until it lands. Returns the index of each lane's first word."""
        first = self._locate(addresses, lanes, 4, size // 4)
        for i in range(size // 4):
            self._check_unread(first + i, lanes, 4)
            self._data[4][first + i] = JUNK[4]
            self._written[4][first + i] = 0
        return first

    def land(self, first: NDArray[np.int64], lanes: NDArray[np.intp], words: Lanes) -> None:
        """Writes the data of a copy, `words` [lanes, words], from the word `first` [lanes] on."""
        for i in range(words.shape[1]):
            self._write(first + i, lanes, 4, words[:, i])

    def _locate(self, addresses: Lanes, lanes: Selection, size: int, count: int) -> NDArray[np.int64]:
        """Indices of the elements at these addresses. An address below the window wraps around and is out of range."""
        width = size * count
        offsets = addresses - addresses.dtype.type(self._base)
        if np.bitwise_or.reduce(offsets) & offsets.dtype.type(width - 1):
            position = int(np.flatnonzero(offsets & offsets.dtype.type(width - 1))[0])
            address = int(addresses[position])
            raise FaultError(lane_at(lanes, position), f"shared address {address:#x} is not a multiple of {width}")
        last = self._size - width
        if last < 0 or offsets.max(initial=0) > last:
            position = 0 if last < 0 else int(np.flatnonzero(offsets > last)[0])
            offset = int(addresses[position]) - self._base
            raise FaultError(lane_at(lanes, position), f"byte {offset} of shared memory, which has {self._size} bytes")
        element = offsets >> offsets.dtype.type(size.bit_length() - 1)
        located: NDArray[np.int64] = element.astype(np.int64) + self._origin[size][lanes]
        return located

    def _read(
        self,
        index: NDArray[np.int64],
        lanes: Selection,
        size: int,
        spare: Callable[[NDArray[np.intp]], bool] | None = None,
    ) -> Lanes:
        values = self._data[size].take(index)
        # Only a value that looks like junk may be unwritten; single bytes are always checked.
        grain = min(size, self._grain)
        if grain == 1 or (values.view(f"u{grain}") == JUNK[grain]).any():
            unwritten = np.flatnonzero(self._written[size][index] != _all_written(size))
            if unwritten.size and not (spare and spare(unwritten)):
                position = int(unwritten[0])
                raise FaultError(
                    lane_at(lanes, position),
                    f"byte {self._byte(index, lanes, position, size)} of shared memory was never written, "
                    "or its cp.async was not waited for",
                )
        if self._unpublished:
            writers = self._writer[size][index]
            foreign = np.flatnonzero(((writers != _NOBODY) & (writers != self._lanes[lanes][:, None])).any(axis=1))
            if foreign.size and not (spare and spare(foreign)):
                position = int(foreign[0])
                raise FaultError(
                    lane_at(lanes, position),
                    f"byte {self._byte(index, lanes, position, size)} of shared memory was written by another thread "
                    "since the last barrier",
                )
        if self._several_warps:
            self._reads.append((index, self._warps[lanes], size))
            self._reads_count += len(index)
            if self._reads_count > _MOST_READS:
                self._note_readers()
        return values

    def _forget_readers(self) -> None:
        self._readers[0], self._readers[1] = _AFTER_ALL, _BEFORE_ALL
        self._was_read = False

    def _note_readers(self) -> None:
        """Moves the loads since the last barrier to `_readers`. Where lanes share an address, the last one counts."""
        for index, warps, size in self._reads:
            first, last = self._readers.reshape(2, -1, size)
            column = warps[:, None]
            last[index] = np.maximum(last[index], column)
            first[index[::-1]] = np.minimum(first[index], column)[::-1]
        self._was_read |= bool(self._reads)
        self._reads.clear()
        self._reads_count = 0

    def _check_unread(self, index: NDArray[np.int64], lanes: Selection, size: int) -> None:
        """Raises FaultError where another warp or block has read, since the last barrier, bytes about to change."""
        self._note_readers()
        who = "block"
        read = self._read_by_others.reshape(-1, size)[index]
        if self._was_read and not read.any():
            who, warps = "warp", self._warps[lanes][:, None]
            first, last = self._readers.reshape(2, -1, size)[:, index]
            read = (first < warps) | (last > warps)
        if (wrong := np.flatnonzero(read.any(axis=1))).size:
            position = int(wrong[0])
            raise FaultError(
                lane_at(lanes, position),
                f"byte {self._byte(index, lanes, position, size)} of shared memory was read by another {who} since "
                "the last barrier, and is overwritten",
            )

    def _write(self, index: NDArray[np.int64], lanes: Selection, size: int, value: Lanes) -> None:
        self._data[size][index] = value
        self._written[size][index] = _all_written(size)
        self._writer[size][index] = self._lanes[lanes][:, None]
        self._private.reshape(-1, size)[index] = True
        self._unpublished = True

    def _byte(self, index: NDArray[np.int64], lanes: Selection, position: int, size: int) -> int:
        return int(index[position] - self._origin[size][lanes][position]) * size


def _all_written(size: int) -> int:
    return int.from_bytes(b"\1" * size)


@dataclass
class _Copy:
    """One `cp.async` of some lanes."""

    lanes: NDArray[np.intp]
    group: NDArray[np.int64]
    """[lanes]: groups that each lane had committed before."""
    first: NDArray[np.int64]
    words: NDArray[np.uint32]

    def part(self, chosen: NDArray[np.bool_]) -> _Copy:
        return _Copy(self.lanes[chosen], self.group[chosen], self.first[chosen], self.words[chosen])


class AsyncCopies:
    """The copies in flight. They land as late as PTX allows: when their lane waits for their group."""

    def __init__(self, shared: SharedMemory, lanes: int) -> None:
        self._shared = shared
        self._committed = np.zeros(lanes, dtype=np.int64)
        self._pending: list[_Copy] = []

    def issue(self, lanes: NDArray[np.intp], addresses: Lanes, words: NDArray[np.uint32]) -> None:
        """Starts a copy of `words` [lanes, words] to shared addresses."""
        first = self._shared.begin_copy(addresses, lanes, 4 * words.shape[1])
        self._pending.append(_Copy(lanes, self._committed[lanes], first, words))

    def commit(self, lanes: Selection) -> None:
        """Ends the lanes' current group."""
        self._committed[lanes] += 1

    def wait(self, lanes: Selection, keep: int) -> None:
        """Lands the lanes' copies except those of their `keep` latest groups."""
        limit = np.full(len(self._committed), np.iinfo(np.int64).min)
        limit[lanes] = self._committed[lanes] - keep
        pending, self._pending = self._pending, []
        for copy in pending:
            ready: NDArray[Any] = copy.group < limit[copy.lanes]
            landing = copy if ready.all() else copy.part(ready)
            if len(landing.lanes):
                self._shared.land(landing.first, landing.lanes, landing.words)
            if landing is not copy:
                self._pending.append(copy.part(~ready))

    def wait_all(self, lanes: Selection) -> None:
        """Lands every copy of the lanes, also of an uncommitted group."""
        self.commit(lanes)
        self.wait(lanes, 0)

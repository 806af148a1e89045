"""Global memory: the arrays of the arguments, far apart from each other, with nothing between them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codegen.emulator.alu.arithmetic import Lanes
from codegen.emulator.faults import FaultError

Selection = slice | NDArray[np.intp]
"""Lanes, as a range or as numbers."""

_SPACING_BITS = 40
"""Buffers begin at multiples of 2 to this power, so that a wrong or truncated address hits none."""


def lane_at(selection: Selection, position: int) -> int:
    """The lane at a position of a selection."""
    return position + (selection.start or 0) if isinstance(selection, slice) else int(selection[position])


class GlobalMemory:
    """Buffers by address; loads and stores access the arrays themselves."""

    def __init__(self, buffers: Sequence[NDArray[Any]]) -> None:
        self._bytes = [buffer.reshape(-1).view(np.uint8) for buffer in buffers]
        self._typed: dict[tuple[int, int], Lanes] = {}

    @staticmethod
    def address(number: int) -> int:
        """The address of the first byte of buffer `number`."""
        return (number + 1) << _SPACING_BITS

    def load(self, addresses: Lanes, lanes: Selection, size: int, count: int) -> list[Lanes]:
        """Reads `count` elements of `size` bytes at 64-bit addresses. Raises FaultError outside of the buffers."""
        values = [np.empty(len(addresses), dtype=f"u{size}") for _ in range(count)]
        for number, chosen, index in self._locate(addresses, lanes, size, count):
            view = self._view(number, size)
            for i, value in enumerate(values):
                value[chosen] = view[index + np.uint64(i)]
        return values

    def load_padded(self, addresses: Lanes, lanes: NDArray[np.intp], wanted: Lanes, size: int) -> NDArray[np.uint32]:
        """Reads `size` bytes for a copy, [lanes, words]: the first `wanted` bytes of each lane, then zeros."""
        if (odd := np.flatnonzero((addresses & np.uint64(size - 1)) | (wanted > size))).size:
            address, bytes_wanted = int(addresses[odd[0]]), int(wanted[odd[0]])
            raise FaultError(
                int(lanes[odd[0]]), f"{bytes_wanted} of {size} bytes from {address:#x}: misaligned or too many"
            )
        words = np.zeros((len(lanes), size // 4), dtype=np.uint32)
        whole, partly = np.flatnonzero(wanted == size), np.flatnonzero((wanted > 0) & (wanted < size))
        element = min(size, 8)
        if whole.size:
            loaded = self.load(addresses[whole], lanes[whole], element, size // element)
            words[whole] = np.stack(loaded, axis=1).view(np.uint32)
        for byte in range(size if partly.size else 0):
            reading = partly[wanted[partly] > byte]
            if reading.size:
                (loaded_bytes,) = self.load(addresses[reading] + np.uint64(byte), lanes[reading], 1, 1)
                words.view(np.uint8)[reading, byte] = loaded_bytes
        return words

    def store(self, addresses: Lanes, lanes: Selection, size: int, values: Sequence[Lanes]) -> None:
        """Writes elements of `size` bytes; of several lanes at one address, the last one wins."""
        for number, chosen, index in self._locate(addresses, lanes, size, len(values)):
            view = self._view(number, size)
            if not view.flags.writeable:
                first = 0 if isinstance(chosen, slice) else int(chosen[0])
                raise FaultError(lane_at(lanes, first), f"a store to buffer {number}, which is read-only")
            for i, value in enumerate(values):
                view[index + np.uint64(i)] = value[chosen]

    def _view(self, number: int, size: int) -> Lanes:
        if (view := self._typed.get((number, size))) is None:
            data = self._bytes[number]
            view = self._typed[number, size] = data[: len(data) // size * size].view(f"u{size}")
        return view

    def _locate(
        self, addresses: Lanes, lanes: Selection, size: int, count: int
    ) -> Iterator[tuple[int, Selection, Lanes]]:
        """For each buffer: its number, the positions of `addresses` in it, and the elements that they name."""
        owners = addresses >> np.uint64(_SPACING_BITS)
        first = owners[0] if len(owners) else 0
        one_buffer = bool((owners == first).all())
        for owner in (first,) if one_buffer else np.unique(owners):
            chosen: Selection = slice(None) if one_buffer else np.flatnonzero(owners == owner)
            offsets = addresses[chosen] - (owner << np.uint64(_SPACING_BITS))
            width = size * count
            if np.bitwise_or.reduce(offsets) & np.uint64(width - 1):
                position = int(np.flatnonzero(offsets & np.uint64(width - 1))[0])
                address = int(addresses[chosen][position])
                raise FaultError(
                    lane_at(lanes, lane_at(chosen, position)), f"address {address:#x} is not a multiple of {width}"
                )
            number = int(owner) - 1
            last = len(self._bytes[number]) - width if 0 <= number < len(self._bytes) else -1
            if last < 0 or offsets.max() > last:
                position = 0 if last < 0 else int(np.flatnonzero(offsets > last)[0])
                address = int(addresses[chosen][position])
                raise FaultError(
                    lane_at(lanes, lane_at(chosen, position)), f"address {address:#x}: {self._place(address)}"
                )
            yield number, chosen, offsets >> np.uint64(size.bit_length() - 1)

    def _place(self, address: int) -> str:
        if not self._bytes:
            return "there are no buffers"
        places = [(address - self.address(number), number) for number in range(len(self._bytes))]
        offset, number = min(places, key=lambda place: abs(place[0]))
        return f"outside: byte {offset} of buffer {number}, which has {len(self._bytes[number])} bytes"

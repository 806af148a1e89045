"""Global memory: the arguments' arrays, far from each other, and nothing between them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codegen.emulator.alu.arithmetic import Lanes
from codegen.emulator.faults import FaultError

Selection = slice | NDArray[np.intp]
"""Which lanes take part: a range of them, or these."""

_SPACING_BITS = 40
"""Buffers begin at multiples of this power of two: an address that is off, or cut to 32 bits, hits none."""


def lane_at(selection: Selection, position: int) -> int:
    """The lane at a position of a selection."""
    return position + (selection.start or 0) if isinstance(selection, slice) else int(selection[position])


class GlobalMemory:
    """The buffers by address; loads and stores go to the arrays themselves."""

    def __init__(self, buffers: Sequence[NDArray[Any]]) -> None:
        self._bytes = [buffer.reshape(-1).view(np.uint8) for buffer in buffers]
        self._typed: dict[tuple[int, int], Lanes] = {}

    @staticmethod
    def address(number: int) -> int:
        """Where buffer `number` begins."""
        return (number + 1) << _SPACING_BITS

    def load(self, addresses: Lanes, lanes: Selection, size: int, count: int) -> list[Lanes]:
        """Reads `count` elements of `size` bytes at 64-bit addresses. Raises FaultError outside of the buffers."""
        values = [np.empty(len(addresses), dtype=f"u{size}") for _ in range(count)]
        for number, chosen, index in self._locate(addresses, lanes, size, count):
            view = self._view(number, size)
            for i, value in enumerate(values):
                value[chosen] = view[index + np.uint64(i)]
        return values

    def store(self, addresses: Lanes, lanes: Selection, size: int, values: Sequence[Lanes]) -> None:
        """Writes elements of `size` bytes; of lanes that share an address the last one wins."""
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
        """Per buffer: its number, the positions of `addresses` within it, and the elements they mean."""
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
                    lane_at(lanes, lane_at(chosen, position)), f"address {address:#x} is no multiple of {width}"
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

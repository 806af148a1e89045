"""The loads of a template's inputs; neighbours as one, as ptxas joins them where it knows how they are aligned."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_WORD_BYTES = 4


@dataclass(frozen=True, eq=False)
class Loads:
    """[loads] each."""

    pointer: NDArray[np.int64]
    offset: NDArray[np.int64]
    """Bytes from the pointer."""
    words: NDArray[np.int64]

    @staticmethod
    def of(loads: Iterable[tuple[int, int, int]]) -> Loads:
        """Of the pointer, offset and words of each."""
        pointer, offset, words = np.array(list(loads), dtype=np.int64).reshape(-1, 3).T
        return Loads(pointer, offset, words)

    def joined(
        self, slot_load: NDArray[np.int64], slot_element: NDArray[np.int64]
    ) -> tuple[Loads, NDArray[np.int64], NDArray[np.int64]]:
        """These, neighbours as one load, and where each slot's word is then: the load, and which of its words.

        A load of several words says how its pointer is aligned. All that lie in one such piece of memory are joined, if
        they load the whole piece.
        """
        number, start, words = np.arange(len(self.words)), self.offset.copy(), self.words.copy()
        for pointer in np.unique(self.pointer).tolist():
            own = np.flatnonzero(self.pointer == pointer)
            widest = own[np.argmax(self.words[own])]
            size = _WORD_BYTES * int(self.words[widest])
            piece = (self.offset[own] - self.offset[widest]) // size * size + self.offset[widest]
            for begin in np.unique(piece).tolist():
                together = own[piece == begin]
                loaded = {
                    offset + _WORD_BYTES * i
                    for offset, count in zip(self.offset[together].tolist(), self.words[together].tolist(), strict=True)
                    for i in range(count)
                }
                if loaded == set(range(begin, begin + size, _WORD_BYTES)):
                    number[together], start[together], words[together] = together[0], begin, size // _WORD_BYTES
        element = slot_element + (self.offset - start)[slot_load] // _WORD_BYTES
        return Loads(self.pointer, start, words), number[slot_load], element

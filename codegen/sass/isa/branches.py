"""Branch distances, read from and written to the words of BRA and BSSY."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from codegen.sass.isa.architecture import Architecture
from codegen.sass.isa.encoding import OPCODE, Field, Words
from codegen.sass.isa.opcodes import BSSY

_MEETING = Field(34, 30)
"""BSSY: the distance to where its lanes meet."""


def branch_distances(words: Words, pieces: int) -> NDArray[np.int64]:
    """The distance of each BRA [instructions], in bytes from the next word, negative if backwards.

    `pieces` says how many fields hold it, one or two.
    """
    low, high = words[..., 0], words[..., 1]
    upper = (low >> np.uint64(34)) | (high << np.uint64(30))
    upper = (upper & np.uint64((1 << 48) - 1)).astype(np.int64)
    if pieces == 1:
        return _signed(upper, 48) * 4
    lower = ((low >> np.uint64(16)) & np.uint64(0xFF)).astype(np.int64)
    return ((_signed(upper, 48) << 8) | lower) * 4


def put_branch_distances(words: Words, distances: ArrayLike, pieces: int) -> None:
    """Writes the distance of each BRA, in bytes from the next word; a multiple of 4."""
    quads = np.asarray(distances, dtype=np.int64) // 4
    if pieces == 2:
        Field(16, 8).put(words, quads & 0xFF)
        quads = quads >> 8
    upper = (quads & ((1 << 48) - 1)).astype(np.uint64)
    Field(34, 30).put(words, upper & np.uint64((1 << 30) - 1))
    Field(64, 18).put(words, upper >> np.uint64(30))


def jump_distances(words: Words, architecture: Architecture) -> NDArray[np.int64]:
    """The distance of each BRA or BSSY [instructions], in bytes from the next word; BSSY stores it in one piece."""
    distance = _signed(_MEETING.get(words), _MEETING.bits) * 4
    return np.where(OPCODE.get(words) == BSSY, distance, branch_distances(words, architecture.branch_pieces))


def put_jump_distances(words: Words, distances: NDArray[np.int64], architecture: Architecture) -> None:
    """Writes the distance of each BRA or BSSY, in bytes from the next word."""
    meets = OPCODE.get(words) == BSSY
    chosen = words[meets]
    _MEETING.put(chosen, distances[meets] // 4 & (1 << _MEETING.bits) - 1)
    words[meets] = chosen
    chosen = words[~meets]
    put_branch_distances(chosen, distances[~meets], architecture.branch_pieces)
    words[~meets] = chosen


def _signed(values: NDArray[np.int64], bits: int) -> NDArray[np.int64]:
    return values - ((values >> (bits - 1)) << bits)

"""What a K group does with its sums after the last chunk: where each is used, and where biases are added."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from codegen.errors import MachineCodeError
from codegen.kernels.placeholders import FIRST_BIAS
from codegen.sass.isa import encoding
from codegen.sass.isa.encoding import ZERO_REGISTER, Words
from codegen.sass.isa.opcodes import (
    FADD_IMMEDIATE,
    FFMA_IMMEDIATE_ADDEND,
    LOP3,
    PREDICATES,
    STS,
    STS_PLAIN,
    UNIFORM_ADDRESS,
)
from codegen.sass.isa.operands import operands
from codegen.sass.skeleton import marker_ptx
from codegen.sass.skeleton.accumulators import Sums

_XOR = 0x3C
_TRUTH_TABLE = encoding.Field(72, 8)
_WORD_BYTES = 4
_LAST_REGISTER = 252
"""Of 255, two of which are spare."""
_FIRST_SLOT, _SECOND_SLOT = encoding.SOURCE_A, encoding.SOURCE_B


@dataclass(frozen=True, eq=False)
class Biases:
    """The words that add them, each an FFMA of a sum, the one from the last marker, and a placeholder."""

    words: NDArray[np.int64]
    added_to: NDArray[np.int64]
    """The register of what each is added to."""
    numbers: NDArray[np.int64]
    """Which sum of its row that is."""


@dataclass(frozen=True, eq=False)
class Moves:
    """The words that take a sum from its register to one of ptxas's."""

    registers: NDArray[np.int64]
    """[pinned registers]: beyond all of ptxas's."""
    words: NDArray[np.int64]
    sources: NDArray[np.int64]
    """[words]: registers."""

    @staticmethod
    def of(words: Words, loads: NDArray[np.int64], count: int) -> Moves:
        """Of the loads at the end that name so many sums. Raises MachineCodeError if there are too many."""
        numbers = (encoding.OFFSET.get(words)[loads] - marker_ptx.SUMS) // _WORD_BYTES
        if (
            len(set(numbers.tolist())) != len(loads)
            or (numbers >= count).any()
            or (encoding.SIZE.get(words)[loads] != 4).any()
        ):
            raise MachineCodeError("a sum is loaded otherwise than once")
        used = operands(words)
        everything = np.concatenate([used.reads.resource, used.writes.resource])
        first = int(everything[everything < PREDICATES].max()) + 1
        registers = first + np.arange(count)
        if int(registers[-1]) > _LAST_REGISTER:
            raise MachineCodeError(f"{count} sums beside {first} registers")
        return Moves(registers, loads, registers[numbers])


@dataclass(frozen=True, eq=False)
class Ending:
    """All words of the end that the assembler changes."""

    biases: Biases
    splits: NDArray[np.int64]
    """[packed sums] or none: the exclusive or of each with the one."""
    stores: NDArray[np.int64]
    """[packed sums] or none: the markers that end those which are added to float32 ones."""
    last_use: NDArray[np.int64]
    """[pinned registers]: where each is used for the last time."""

    @staticmethod
    def of(words: Words, opcodes: NDArray[np.int64], sums: Sums, pinned: NDArray[np.int64], end: slice) -> Ending:
        """Looks from the last marker to the end of the leaf. Raises MachineCodeError if anything is not as expected."""
        one = int(encoding.DESTINATION.get(words)[end.start])
        biases = _biases(words, opcodes, end, one, sums)
        none = np.zeros(0, dtype=np.int64)
        count = len(sums.registers)
        if sums.exchanged_bytes:
            _check_each_row(biases, sums)
            return Ending(biases, none, none, _exchanged(words, opcodes, pinned, end, sums.exchanged_bytes))
        if not sums.packed:
            found = _in_registers(biases, pinned, list(sums.in_row))
            return Ending(biases, none, none, found)
        if sums.wide:
            numbers = [number for number in sums.in_row for _ in range(2)]
            stores = _stores(words, opcodes, pinned[:count], end)
            return Ending(biases, none, stores, np.append(stores, _in_registers(biases, pinned[count:], numbers)))
        splits = _splits(words, opcodes, pinned, end, one)
        # A half that lies outside the map is never stored, and gets no bias.
        found = np.append(biases.words, splits)
        if others := sorted(_readers(words, end, one) - set(found.tolist())):
            raise MachineCodeError(f"word {others[0]} reads the last marker, and is no bias of a sum")
        return Ending(biases, splits, none, splits)

    @staticmethod
    def of_moved(words: Words, opcodes: NDArray[np.int64], sums: Sums, end: slice) -> Ending:
        """Of sums that are apart: ptxas knows where each is once it is moved, and only biases are changed."""
        adds = end.start + np.flatnonzero(opcodes[end] == FADD_IMMEDIATE)
        numbers = encoding.IMMEDIATE.get(words)[adds] - FIRST_BIAS
        chosen = np.isin(numbers, list(sums.in_row))
        biases = Biases(adds[chosen], encoding.SOURCE_A.get(words)[adds[chosen]], numbers[chosen])
        if sums.exchanged_bytes:
            _check_each_row(biases, sums)
        elif len(set(np.bincount(biases.numbers, minlength=max(sums.in_row) + 1).tolist())) != 1:
            raise MachineCodeError(f"{len(biases.numbers)} biases for {max(sums.in_row) + 1} sums of a row")
        none = np.zeros(0, dtype=np.int64)
        return Ending(biases, none, none, none)


def _biases(words: Words, opcodes: NDArray[np.int64], end: slice, one: int, sums: Sums) -> Biases:
    """The words that multiply something with the one and add a placeholder: its register has other uses after them."""
    adds = end.start + np.flatnonzero(opcodes[end] == FFMA_IMMEDIATE_ADDEND)
    # FFMA d, a, b, immediate: b lies where c does otherwise.
    a, b = encoding.SOURCE_A.get(words)[adds], encoding.SOURCE_C.get(words)[adds]
    numbers = encoding.IMMEDIATE.get(words)[adds] - FIRST_BIAS
    chosen = ((a == one) != (b == one)) & np.isin(numbers, list(sums.in_row))
    added_to = np.where(a == one, b, a)
    return Biases(adds[chosen], added_to[chosen], numbers[chosen])


def _readers(words: Words, end: slice, one: int) -> set[int]:
    """The words that read the one until its register is written again."""
    used = operands(words[end])
    writes = used.writes.word[(used.writes.resource == one) & (used.writes.word > 0)]
    until = int(writes.min()) if len(writes) else end.stop - end.start
    reads = used.reads.word[(used.reads.resource == one) & (used.reads.word > 0) & (used.reads.word <= until)]
    return set((reads + end.start).tolist())


def _in_registers(biases: Biases, registers: NDArray[np.int64], numbers: list[int]) -> NDArray[np.int64]:
    """[registers]: where the bias of that number is added to each."""
    keys = zip(biases.added_to.tolist(), biases.numbers.tolist(), strict=True)
    found = dict(zip(keys, biases.words.tolist(), strict=True))
    wanted = list(zip(registers.tolist(), numbers, strict=True))
    missing = [each for each in wanted if each not in found]
    if missing or len(found) != len(biases.words) or len(found) != len(wanted):
        raise MachineCodeError(f"{len(missing)} sums are not in their registers when their biases are added")
    return np.array([found[each] for each in wanted], dtype=np.int64)


def _check_each_row(biases: Biases, sums: Sums) -> None:
    """Each sum that a thread finishes has its bias, those of one number in each row and half."""
    rows = len(sums.registers) // len(set(sums.in_row)) * (2 if sums.packed else 1)
    if not np.array_equal(np.sort(biases.numbers), np.repeat(np.arange(sums.finished // rows), rows)):
        raise MachineCodeError(f"{len(biases.numbers)} biases for the {sums.finished} sums that a thread finishes")


def _exchanged(
    words: Words, opcodes: NDArray[np.int64], registers: NDArray[np.int64], end: slice, distance_bytes: int
) -> NDArray[np.int64]:
    """[sums]: the store of each to shared memory, where the other blocks of the cluster read it. One may store several,
    which then are in neighbouring registers.
    """
    found: NDArray[np.int64] = end.start + np.flatnonzero(np.isin(opcodes[end], (STS, STS_PLAIN)))
    stores = words[found]
    lengths = encoding.REGISTERS_OF_SIZE[encoding.SIZE.get(stores)]
    store = np.repeat(np.arange(len(found)), lengths)
    number = np.arange(len(store)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    offsets = encoding.OFFSET.get(stores)[store] + _WORD_BYTES * number
    stored = encoding.SOURCE_B.get(stores)[store] + number
    order = np.argsort(offsets)
    apart = np.diff(offsets[order])
    alike = [encoding.SOURCE_A, encoding.PREDICATE, encoding.NEGATED_PREDICATE, UNIFORM_ADDRESS]
    if (
        not np.array_equal(stored[order], registers)
        or (apart != distance_bytes).any()
        or any(len(set(each.get(stores).tolist())) != 1 for each in alike)
        or int(encoding.PREDICATE.get(stores)[0]) != encoding.ALWAYS
        or any(encoding.ACCESS_SIZES[size].bytes < _WORD_BYTES for size in encoding.SIZE.get(stores).tolist())
    ):
        raise MachineCodeError("a sum is not in its register when it is stored for the other blocks of its cluster")
    places: NDArray[np.int64] = found[store[order]]
    return places


def _stores(words: Words, opcodes: NDArray[np.int64], registers: NDArray[np.int64], end: slice) -> NDArray[np.int64]:
    """[packed sums]: the store that names each for the last time."""
    offsets = encoding.OFFSET.get(words)[end]
    near = np.abs(offsets - marker_ptx.ENDS) < marker_ptx.REACH
    found: NDArray[np.int64] = end.start + np.flatnonzero(np.isin(opcodes[end], (STS, STS_PLAIN)) & near)
    if not np.array_equal(encoding.SOURCE_B.get(words)[found], registers):
        raise MachineCodeError("a packed sum is not in its register after the last chunk")
    return found


def _splits(
    words: Words, opcodes: NDArray[np.int64], registers: NDArray[np.int64], end: slice, one: int
) -> NDArray[np.int64]:
    """[packed sums]: the exclusive or of each with the one."""
    places = end.start + np.flatnonzero(opcodes[end] == LOP3)
    a, b = _FIRST_SLOT.get(words)[places], _SECOND_SLOT.get(words)[places]
    chosen = (a == one) != (b == one)
    chosen &= (_TRUTH_TABLE.get(words)[places] == _XOR) & (encoding.SOURCE_C.get(words)[places] == ZERO_REGISTER)
    found = dict(zip(np.where(a == one, b, a)[chosen].tolist(), places[chosen].tolist(), strict=True))
    if set(found) != set(registers.tolist()) or len(found) != int(chosen.sum()):
        raise MachineCodeError("a packed sum is not in its register when it is taken apart")
    return np.array([found[register] for register in registers.tolist()], dtype=np.int64)


def put_zero_for(words: Words, one: int) -> None:
    """Takes the one out of the words [words, 2], in place: what is left copies a sum."""
    for slot in (_FIRST_SLOT, _SECOND_SLOT):
        slot.put(words, np.where(slot.get(words) == one, ZERO_REGISTER, slot.get(words)))
    encoding.REUSE.put(words, 0)

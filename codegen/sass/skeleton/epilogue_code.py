"""Epilogue of a skeleton: where each accumulator is used after the last chunk, and where biases are added."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from codegen.errors import MachineCodeError
from codegen.kernels.placeholders import FIRST_BIAS
from codegen.sass.isa import encoding
from codegen.sass.isa.architecture import Architecture
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
from codegen.sass.skeleton.accumulators import Accumulators

_XOR = 0x3C
_TRUTH_TABLE = encoding.Field(72, 8)
_WORD_BYTES = 4
_LAST_REGISTER = 252
"""Highest usable register: of 255, two are spare."""
_FIRST_SLOT, _SECOND_SLOT = encoding.SOURCE_A, encoding.SOURCE_B


@dataclass(frozen=True, eq=False)
class Biases:
    """The words that add biases: each is an FFMA of an accumulator, the one of the last marker, and a placeholder."""

    words: NDArray[np.int64]
    added_to: NDArray[np.int64]
    """The register that each is added to."""
    numbers: NDArray[np.int64]
    """The number of the accumulator in its row."""


@dataclass(frozen=True, eq=False)
class AccumulatorMoves:
    """The words that copy a reserved accumulator to one of ptxas's registers."""

    registers: NDArray[np.int64]
    """[pinned registers]: numbered above all of ptxas's registers."""
    words: NDArray[np.int64]
    sources: NDArray[np.int64]
    """[words]: the accumulator's register."""

    @staticmethod
    def of(words: Words, loads: NDArray[np.int64], count: int, architecture: Architecture) -> AccumulatorMoves:
        """From the loads of `count` accumulators. Raises MachineCodeError if no registers are left for them."""
        numbers = (encoding.OFFSET.get(words)[loads] - marker_ptx.ACCUMULATORS) // _WORD_BYTES
        if (
            len(set(numbers.tolist())) != len(loads)
            or (numbers >= count).any()
            or (encoding.SIZE.get(words)[loads] != 4).any()
        ):
            raise MachineCodeError("an accumulator is not loaded exactly once")
        used = operands(words, architecture)
        everything = np.concatenate([used.reads.resource, used.writes.resource])
        first = int(everything[everything < PREDICATES].max()) + 1
        registers = first + np.arange(count)
        if int(registers[-1]) > _LAST_REGISTER:
            raise MachineCodeError(f"{count} accumulators do not fit beside {first} registers")
        return AccumulatorMoves(registers, loads, registers[numbers])


@dataclass(frozen=True, eq=False)
class EpilogueCode:
    """The words of the epilogue that the assembler changes."""

    biases: Biases
    unpackings: NDArray[np.int64]
    """[packed accumulators]: the XOR of each with the one; empty where nothing is unpacked."""
    stores: NDArray[np.int64]
    """[packed accumulators]: the markers behind the last use of each; empty without float32 accumulators."""
    last_use: NDArray[np.int64]
    """[pinned registers]: the word that uses each for the last time."""

    @staticmethod
    def of(
        words: Words,
        opcodes: NDArray[np.int64],
        accumulators: Accumulators,
        pinned: NDArray[np.int64],
        end: slice,
        architecture: Architecture,
    ) -> EpilogueCode:
        """Reads the code from the last marker to the end. Raises MachineCodeError for code of another form."""
        one = int(encoding.DESTINATION.get(words)[end.start])
        biases = _biases(words, opcodes, end, one, accumulators)
        none = np.zeros(0, dtype=np.int64)
        count = len(accumulators.registers)
        if accumulators.exchanged_bytes:
            _check_each_row(biases, accumulators)
            return EpilogueCode(
                biases, none, none, _exchanged(words, opcodes, pinned, end, accumulators.exchanged_bytes)
            )
        if not accumulators.packed:
            found = _in_registers(biases, pinned, list(accumulators.in_row))
            return EpilogueCode(biases, none, none, found)
        if accumulators.wide:
            numbers = [number for number in accumulators.in_row for _ in range(2)]
            stores = _stores(words, opcodes, pinned[:count], end)
            return EpilogueCode(biases, none, stores, np.append(stores, _in_registers(biases, pinned[count:], numbers)))
        unpackings = _unpackings(words, opcodes, pinned, end, one)
        # A half outside the map is never stored, and has no bias.
        found = np.append(biases.words, unpackings)
        if others := sorted(_readers(words, end, one, architecture) - set(found.tolist())):
            raise MachineCodeError(f"word {others[0]} reads the last marker but adds no bias")
        return EpilogueCode(biases, unpackings, none, unpackings)

    @staticmethod
    def of_moved(words: Words, opcodes: NDArray[np.int64], accumulators: Accumulators, end: slice) -> EpilogueCode:
        """Reads the code of reserved accumulators: ptxas moves them itself, only biases are changed."""
        adds = end.start + np.flatnonzero(opcodes[end] == FADD_IMMEDIATE)
        numbers = encoding.IMMEDIATE.get(words)[adds] - FIRST_BIAS
        chosen = np.isin(numbers, list(accumulators.in_row))
        biases = Biases(adds[chosen], encoding.SOURCE_A.get(words)[adds[chosen]], numbers[chosen])
        if accumulators.exchanged_bytes:
            _check_each_row(biases, accumulators)
        elif len(set(np.bincount(biases.numbers, minlength=max(accumulators.in_row) + 1).tolist())) != 1:
            raise MachineCodeError(
                f"{len(biases.numbers)} biases for {max(accumulators.in_row) + 1} accumulators of a row"
            )
        none = np.zeros(0, dtype=np.int64)
        return EpilogueCode(biases, none, none, none)


def _biases(words: Words, opcodes: NDArray[np.int64], end: slice, one: int, accumulators: Accumulators) -> Biases:
    """The words that multiply by the one and add a placeholder."""
    adds = end.start + np.flatnonzero(opcodes[end] == FFMA_IMMEDIATE_ADDEND)
    # FFMA d, a, b, immediate: b is encoded where c is otherwise.
    a, b = encoding.SOURCE_A.get(words)[adds], encoding.SOURCE_C.get(words)[adds]
    numbers = encoding.IMMEDIATE.get(words)[adds] - FIRST_BIAS
    chosen = ((a == one) != (b == one)) & np.isin(numbers, list(accumulators.in_row))
    added_to = np.where(a == one, b, a)
    return Biases(adds[chosen], added_to[chosen], numbers[chosen])


def _readers(words: Words, end: slice, one: int, architecture: Architecture) -> set[int]:
    """The words that read the one before its register is written again."""
    used = operands(words[end], architecture)
    writes = used.writes.word[(used.writes.resource == one) & (used.writes.word > 0)]
    until = int(writes.min()) if len(writes) else end.stop - end.start
    reads = used.reads.word[(used.reads.resource == one) & (used.reads.word > 0) & (used.reads.word <= until)]
    return set((reads + end.start).tolist())


def _in_registers(biases: Biases, registers: NDArray[np.int64], numbers: list[int]) -> NDArray[np.int64]:
    """[registers]: the word that adds the bias of that number to each."""
    keys = zip(biases.added_to.tolist(), biases.numbers.tolist(), strict=True)
    found = dict(zip(keys, biases.words.tolist(), strict=True))
    wanted = list(zip(registers.tolist(), numbers, strict=True))
    missing = [each for each in wanted if each not in found]
    if missing or len(found) != len(biases.words) or len(found) != len(wanted):
        raise MachineCodeError(f"{len(missing)} accumulators are not in their registers when their biases are added")
    return np.array([found[each] for each in wanted], dtype=np.int64)


def _check_each_row(biases: Biases, accumulators: Accumulators) -> None:
    """Raises MachineCodeError unless each output of a thread has its bias: those of one number in each row and half.

    A half outside the map is never stored, and has no bias.
    """
    halves = (1, 2) if accumulators.packed else (1,)
    rows = len(accumulators.registers) // len(set(accumulators.in_row))
    outputs = accumulators.finished // (rows * halves[-1])
    if np.bincount(biases.numbers, minlength=outputs).tolist() not in [[rows * half] * outputs for half in halves]:
        raise MachineCodeError(f"{len(biases.numbers)} biases for the {accumulators.finished} outputs of a thread")


def _exchanged(
    words: Words, opcodes: NDArray[np.int64], registers: NDArray[np.int64], end: slice, distance_bytes: int
) -> NDArray[np.int64]:
    """[accumulators]: the store of each to shared memory, where the other blocks of the cluster read it.

    One word may store several, from neighbouring registers.
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
        raise MachineCodeError(
            "an accumulator is not in its register when it is stored for the other blocks of its cluster"
        )
    places: NDArray[np.int64] = found[store[order]]
    return places


def _stores(words: Words, opcodes: NDArray[np.int64], registers: NDArray[np.int64], end: slice) -> NDArray[np.int64]:
    """[packed accumulators]: the marker behind the last use of each."""
    offsets = encoding.OFFSET.get(words)[end]
    near = np.abs(offsets - marker_ptx.ENDS) < marker_ptx.REACH
    found: NDArray[np.int64] = end.start + np.flatnonzero(np.isin(opcodes[end], (STS, STS_PLAIN)) & near)
    if not np.array_equal(encoding.SOURCE_B.get(words)[found], registers):
        raise MachineCodeError("a packed accumulator is not in its register after the last chunk")
    return found


def _unpackings(
    words: Words, opcodes: NDArray[np.int64], registers: NDArray[np.int64], end: slice, one: int
) -> NDArray[np.int64]:
    """[packed accumulators]: the XOR of each with the one."""
    places = end.start + np.flatnonzero(opcodes[end] == LOP3)
    a, b = _FIRST_SLOT.get(words)[places], _SECOND_SLOT.get(words)[places]
    chosen = (a == one) != (b == one)
    chosen &= (_TRUTH_TABLE.get(words)[places] == _XOR) & (encoding.SOURCE_C.get(words)[places] == ZERO_REGISTER)
    found = dict(zip(np.where(a == one, b, a)[chosen].tolist(), places[chosen].tolist(), strict=True))
    if set(found) != set(registers.tolist()) or len(found) != int(chosen.sum()):
        raise MachineCodeError("a packed accumulator is not in its register when it is unpacked")
    return np.array([found[register] for register in registers.tolist()], dtype=np.int64)


def put_zero_for(words: Words, one: int) -> None:
    """Replaces the one by RZ in the words [words, 2], in place: each then copies an accumulator."""
    for slot in (_FIRST_SLOT, _SECOND_SLOT):
        slot.put(words, np.where(slot.get(words) == one, ZERO_REGISTER, slot.get(words)))
    encoding.REUSE.put(words, 0)

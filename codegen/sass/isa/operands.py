"""Registers and predicates that each word of a stream reads and writes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from codegen.errors import UnsupportedCodeError
from codegen.sass.isa.architecture import Architecture
from codegen.sass.isa.encoding import (
    DESTINATION,
    OPCODE,
    PREDICATE,
    REGISTERS_OF_SIZE,
    SIZE,
    SOURCE_A,
    SOURCE_B,
    SOURCE_C,
    Field,
    Words,
)
from codegen.sass.isa.opcodes import (
    LAST,
    MEMORY_UNITS,
    PREDICATES,
    REGISTERS,
    UNIFORM_A,
    UNIFORM_B,
    UNIFORM_C,
    UNIFORM_DESTINATION,
    UNIFORM_PREDICATES,
    UNIFORM_REGISTERS,
    Form,
    Opcode,
    Slot,
    Unit,
)

_RESOURCE_SHIFT: Final = 32
_RESOURCE_BITS: Final = 16
"""Most bits of a resource's number."""
MANY: Final = 256
"""An opcode with more words than this is decoded slot by slot, rarer ones together in one table."""
Uses = tuple[NDArray[np.int64], NDArray[np.int64]]
"""Places of words, and a resource that each uses."""


@dataclass(frozen=True, eq=False)
class Accesses:
    """Uses of resources by words, sorted by resource, then by word; arrays are [accesses]."""

    keys: NDArray[np.int64]
    """Resource and word in one number, sorted."""
    length: int
    """Words of the code."""

    @staticmethod
    def of(uses: Iterable[Uses], length: int) -> Accesses:
        # The words of each use ascend, so sorting by word merges a few runs; 16 bits are sorted in linear time.
        keys = np.concatenate([word << _RESOURCE_BITS | resource for word, resource in uses])
        keys.sort(kind="stable")
        keys = keys[np.argsort(keys.astype(np.uint16), kind="stable")]
        resource = keys & ((1 << _RESOURCE_BITS) - 1)
        return Accesses(resource << _RESOURCE_SHIFT | keys >> _RESOURCE_BITS, length)

    @cached_property
    def word(self) -> NDArray[np.int64]:
        return self.keys & ((1 << _RESOURCE_SHIFT) - 1)

    @cached_property
    def resource(self) -> NDArray[np.int64]:
        return self.keys >> _RESOURCE_SHIFT

    def where(self, chosen: NDArray[np.bool_]) -> Accesses:
        return Accesses(self.keys[chosen], self.length)

    @cached_property
    def _ended(self) -> NDArray[np.int64]:
        """The keys and -1, a key of no resource, which index -1 gives too."""
        return np.append(self.keys, -1)

    def before(self, resources: NDArray[np.int64], places: NDArray[np.int64]) -> NDArray[np.int64]:
        """The last word before each place that uses its resource, or -1."""
        found = self._ended[np.searchsorted(self.keys, resources << _RESOURCE_SHIFT | places) - 1]
        return np.where(found >> _RESOURCE_SHIFT == resources, found & ((1 << _RESOURCE_SHIFT) - 1), -1)

    def index_before(self, resources: NDArray[np.int64], places: NDArray[np.int64]) -> NDArray[np.int64]:
        """The last access before each place that uses its resource, as an index, or -1."""
        found = np.searchsorted(self.keys, resources << _RESOURCE_SHIFT | places) - 1
        return np.where(self._ended[found] >> _RESOURCE_SHIFT == resources, found, -1)

    def hold(self, resources: NDArray[np.int64], places: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Whether the word at each place uses its resource."""
        here: NDArray[np.bool_] = self.following(resources, places) == places
        return here

    def following(self, resources: NDArray[np.int64], places: NDArray[np.int64]) -> NDArray[np.int64]:
        """The first word, from each place on, that uses its resource, or the code's length."""
        found = self._ended[np.searchsorted(self.keys, resources << _RESOURCE_SHIFT | places)]
        return np.where(found >> _RESOURCE_SHIFT == resources, found & ((1 << _RESOURCE_SHIFT) - 1), self.length)


@dataclass(frozen=True, eq=False)
class Operands:
    """The reads and writes of a stream, and the opcode of each word."""

    opcodes: tuple[Opcode, ...]
    opcode_of: NDArray[np.int64]
    """[instructions]: an index into `opcodes`."""
    reads: Accesses
    writes: Accesses

    def where(self, *units: Unit) -> NDArray[np.bool_]:
        """[instructions]: whether one of these units executes it."""
        return np.array([opcode.unit in units for opcode in self.opcodes], dtype=np.bool_)[self.opcode_of]

    def named(self, *names: str, places: NDArray[np.int64] | None = None) -> NDArray[np.bool_]:
        """[instructions], or [places]: whether its name is one of these."""
        is_named = np.array([opcode.name in names for opcode in self.opcodes], dtype=np.bool_)
        return is_named[self.opcode_of if places is None else self.opcode_of[places]]

    def per_word(self, fact: Callable[[Opcode], int], places: NDArray[np.int64] | None = None) -> NDArray[np.int64]:
        """[instructions], or [places]: a fact of each word's opcode."""
        facts = np.array([fact(opcode) for opcode in self.opcodes], dtype=np.int64)
        return facts[self.opcode_of if places is None else self.opcode_of[places]]

    @cached_property
    def asynchronous(self) -> NDArray[np.bool_]:
        """[instructions]: whether it reads its operands after issue, and its result takes an unknown time."""
        return np.array([opcode.asynchronous for opcode in self.opcodes], dtype=np.bool_)[self.opcode_of]


def operands(words: Words, architecture: Architecture) -> Operands:
    """Decodes the operands of words [instructions, 2]. Raises UnsupportedCodeError for an unknown opcode."""
    numbers = OPCODE.get(words)
    counts = np.bincount(numbers)
    present = np.flatnonzero(counts)
    index = np.zeros(len(counts), dtype=np.int64)
    index[present] = np.arange(len(present))
    which = index[numbers]
    found = {number: architecture.opcode(number) for number in present.tolist()}
    for number, known in found.items():
        if known is None:
            place = int(np.argmax(numbers == number))
            raise UnsupportedCodeError(f"word {place} has the unknown opcode {number:#05x} of {architecture.name}")
    opcodes = tuple(each for each in found.values() if each is not None)
    forms = tuple(each.form_in(number) for number, each in found.items() if each is not None)
    often = counts[present] > MANY
    seldom = np.flatnonzero(~often[which])
    table = _SlotTable.of(architecture, tuple(found))
    reads, writes = ([each] for each in table.uses(words[seldom], seldom, which[seldom]))
    for i in np.flatnonzero(often).tolist():
        places = np.flatnonzero(which == i)
        chosen = words[places]
        for slot in slots_read(opcodes[i], forms[i]):
            reads += _uses(slot, chosen, places)
        for slot in slots_written(opcodes[i]):
            writes += _uses(slot, chosen, places)
    return Operands(opcodes, which, Accesses.of(reads, len(words)), Accesses.of(writes, len(words)))


def slots_read(opcode: Opcode, form: Form) -> Iterator[Slot]:
    """The operand slots that words of an opcode read, in the form that `Opcode.form_in` says."""
    for field in (PREDICATE, *opcode.reads):
        yield Slot(UNIFORM_PREDICATES if opcode.uniform else PREDICATES, field)
    yield from opcode.more_reads
    kind, of_a, low, high = (
        (UNIFORM_REGISTERS, UNIFORM_A, UNIFORM_B, UNIFORM_C)
        if opcode.unit == "uniform"
        else (REGISTERS, SOURCE_A, SOURCE_B, SOURCE_C)
    )
    if opcode.a:
        yield Slot(kind, of_a, opcode.a)
    if opcode.unit in MEMORY_UNITS:
        if opcode.b:
            yield Slot(kind, low, opcode.b)
        return
    low_width, high_width = (opcode.c, opcode.b) if form.swapped else (opcode.b, opcode.c)
    if low_width and form.low == "register":
        yield Slot(kind, low, low_width)
    if low_width and form.low == "uniform":
        yield Slot(UNIFORM_REGISTERS, UNIFORM_B, low_width)
    if high_width:
        yield Slot(kind, high, high_width)


def slots_written(opcode: Opcode) -> Iterator[Slot]:
    """The operand slots that words of an opcode write."""
    if opcode.result:
        field, kind = (UNIFORM_DESTINATION, UNIFORM_REGISTERS) if opcode.uniform else (DESTINATION, REGISTERS)
        yield Slot(kind, field, opcode.result)
    for predicate in opcode.writes:
        yield Slot(UNIFORM_PREDICATES if opcode.uniform else PREDICATES, predicate)
    yield from opcode.more_writes


def _uses(slot: Slot, words: Words, places: NDArray[np.int64]) -> Iterator[Uses]:
    """Places and resources that words [instructions, 2] use through one operand slot."""
    numbers = np.zeros(len(places), np.int64) if slot.field is None else slot.field.get(words)
    real = numbers != LAST[slot.kind]
    if slot.only_if is not None:
        real &= slot.only_if.get(words) != 0
    if slot.unless is not None:
        real &= slot.unless.get(words) == 0
    if not real.any():
        return
    places, numbers = places[real], numbers[real] + (slot.kind + slot.beyond)
    if slot.width > 0:
        yield from ((places, numbers + i) for i in range(slot.width))
        return
    widths = REGISTERS_OF_SIZE[SIZE.get(words[real])]
    for i in range(int(widths.max())):
        wide = np.flatnonzero(widths > i)
        yield places[wide], numbers[wide] + i


@lru_cache(4096)
def _slots_of(architecture: Architecture, number: int) -> tuple[tuple[Slot, ...], tuple[Slot, ...]]:
    """The slots that words of an opcode of twelve bits read, and those that they write; none of an unknown one."""
    if (opcode := architecture.opcode(number)) is None:
        return (), ()
    return tuple(slots_read(opcode, opcode.form_in(number))), tuple(slots_written(opcode))


@dataclass(frozen=True, eq=False)
class _SlotTable:
    """The operand slots of several opcodes as arrays [slots], to decode words of many opcodes at once."""

    begins: NDArray[np.int64]
    """[opcodes + 1]: where the slots of each opcode begin."""
    writes: NDArray[np.bool_]
    half: NDArray[np.int64]
    shift: NDArray[np.uint64]
    mask: NDArray[np.uint64]
    constant: NDArray[np.int64]
    """The number that names the constant register."""
    base: NDArray[np.int64]
    width: NDArray[np.int64]
    """-1: the number of registers is in SIZE."""
    condition_half: NDArray[np.int64]
    condition: NDArray[np.uint64]
    """The bits of that half that say whether the slot counts; 0 where it always does."""
    wanted: NDArray[np.bool_]
    """Whether one of those bits must be set."""

    @staticmethod
    @lru_cache(64)
    def of(architecture: Architecture, numbers: tuple[int, ...]) -> _SlotTable:
        of_each = [_slots_of(architecture, number) for number in numbers]
        slots = [(slot, kind == 1) for both in of_each for kind in (0, 1) for slot in both[kind]]
        fields = [slot.field or Field(0, 0) for slot, _ in slots]
        conditions = [slot.only_if or slot.unless or Field(0, 0) for slot, _ in slots]
        return _SlotTable(
            begins=np.cumsum([0] + [len(reads) + len(writes) for reads, writes in of_each]),
            writes=np.array([writes for _, writes in slots], dtype=np.bool_),
            half=np.array([field.first // 64 for field in fields], dtype=np.int64),
            shift=np.array([field.first % 64 for field in fields], dtype=np.uint64),
            mask=np.array([(1 << field.bits) - 1 for field in fields], dtype=np.uint64),
            constant=np.array([LAST[slot.kind] for slot, _ in slots], dtype=np.int64),
            base=np.array([slot.kind + slot.beyond for slot, _ in slots], dtype=np.int64),
            width=np.array([slot.width for slot, _ in slots], dtype=np.int64),
            condition_half=np.array([field.first // 64 for field in conditions], dtype=np.int64),
            condition=np.array([(1 << field.bits) - 1 << field.first % 64 for field in conditions], dtype=np.uint64),
            wanted=np.array([slot.only_if is not None for slot, _ in slots], dtype=np.bool_),
        )

    def uses(self, words: Words, places: NDArray[np.int64], opcodes: NDArray[np.int64]) -> tuple[Uses, Uses]:
        """Reads and writes of words [instructions, 2] at these places; `opcodes` are indices into the table."""
        counts = np.diff(self.begins)[opcodes]
        ends = np.cumsum(counts)
        owner = np.repeat(np.arange(len(words)), counts)
        slot = np.arange(len(owner)) + np.repeat(self.begins[opcodes] - ends + counts, counts)
        numbers = (words[owner, self.half[slot]] >> self.shift[slot] & self.mask[slot]).astype(np.int64)
        condition = (words[owner, self.condition_half[slot]] & self.condition[slot]) != 0
        real = np.flatnonzero((numbers != self.constant[slot]) & (condition == self.wanted[slot]))
        owner, slot, numbers = owner[real], slot[real], numbers[real]
        widths = self.width[slot]
        widths = np.where(widths < 0, REGISTERS_OF_SIZE[SIZE.get(words)][owner], widths)
        each = np.repeat(np.arange(len(real)), widths)
        beyond = np.arange(len(each)) - np.repeat(np.cumsum(widths) - widths, widths)
        resources = (numbers + self.base[slot])[each] + beyond
        at, writes = places[owner][each], self.writes[slot][each]
        return (at[~writes], resources[~writes]), (at[writes], resources[writes])

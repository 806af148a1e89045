"""What ptxas made of a marked template, read: where the markers are, and which registers hold what there.

The code before the branch is run by every K group, the leaf after it is copied for each. All that the assembler relies
on is checked here, so that whatever ptxas may do differently one day is refused rather than wrong.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from codegen.errors import MachineCodeError
from codegen.sass.cubin import CubinFile
from codegen.sass.isa import encoding
from codegen.sass.isa.branches import jump_distances
from codegen.sass.isa.encoding import Words
from codegen.sass.isa.opcodes import (
    BAR,
    BRA,
    BREAK,
    BSSY,
    BSYNC,
    EXIT,
    FIRST_PREDICATE,
    ISETP_IMMEDIATE,
    LDG,
    LDS,
    PREDICATES,
    STG,
    STS,
    STS_PLAIN,
    UNIFORM_ADDRESS,
    UNIFORM_C,
    WARPSYNC,
)
from codegen.sass.isa.operands import operands
from codegen.sass.skeleton import marker_ptx
from codegen.sass.skeleton.epilogue_code import Biases, Ending, Moves
from codegen.sass.skeleton.marker_ptx import Marked
from codegen.sass.skeleton.operand_ring import Ring
from codegen.sass.skeleton.output_stores import accesses_of
from codegen.sass.skeleton.register_copies import check_held, loads_of

CONTROL = (EXIT, BRA, BSSY, BSYNC, BREAK, WARPSYNC)
"""The control instructions that a K group may have."""


@dataclass(frozen=True, eq=False)
class Skeleton:
    """A cubin without weights; instructions are counted in words from the first."""

    file: CubinFile
    words: Words
    first_group: int
    """The load that the number of the first K group takes the place of."""
    compare: int
    branch: int
    """Ends the head; the leaf follows it."""
    leaf_end: int
    group_register: int
    sums: NDArray[np.int64]
    """[sums]: the register of each."""
    wide: NDArray[np.int64]
    """[sums, 2]: of packed sums the registers of the float32 ones that both halves are added to, if there are any."""
    splices: NDArray[np.int64]
    """[chunks]: the word before which a chunk's multiply-adds go."""
    pointers: NDArray[np.int64]
    """[chunks, pointers]: registers."""
    uniform: NDArray[np.int64]
    """[chunks]: the uniform register that the first pointer also has, -1 where there is none."""
    offsets: NDArray[np.int64]
    """[chunks, pointers]: bytes from the register to where the pointer points."""
    markers: NDArray[np.bool_]
    """[words]: of the leaf, what is left out."""
    zeroed: NDArray[np.int64]
    """Loads that a zero comes in the place of."""
    moves: Moves | None
    """Of sums apart from ptxas's registers."""
    jumps: NDArray[np.int64]
    """The branches of the leaf, and where they go."""
    targets: NDArray[np.int64]
    biases: Biases
    splits: NDArray[np.int64]
    """Of packed sums that are taken apart at the end the word that copies each, once one operand of it is zero."""
    copies: NDArray[np.int64]
    """Loads of copies that pass through registers."""
    stores: NDArray[np.int64]
    """The stores to global memory in the leaf."""
    residuals: NDArray[np.int64]
    """The loads of what is added to outputs."""
    one: int
    """The register of the last marker."""
    template: Marked
    ring: NDArray[np.int64]
    """[chunks, loads]: the first register of each place in the ring."""
    runs_on: bool
    """Whether the ring keeps them from the first chunk to the last, and nothing else uses them."""

    def free_registers(self, chunk: int) -> NDArray[np.int64]:
        """Those that inputs of a chunk are loaded into."""
        places = self.ring[chunk][:, None] + np.arange(self.template.ring_width)
        free: NDArray[np.int64] = places.ravel()
        return free

    @property
    def registers(self) -> int:
        """That the cubin has: those of the skeleton, and the sums that are apart."""
        return self.file.registers + (0 if self.moves is None else len(self.moves.registers))

    @cached_property
    def spill_bytes(self) -> int:
        """What a K group moves to local memory and back, as ptxas counts it."""
        return _local_bytes(self.words)

    @cached_property
    def turn_spill_bytes(self) -> int:
        """The same from its first chunk to its last: what it moves before or after, it moves once."""
        return _local_bytes(self.words[self.splices[0] : self.splices[-1]])

    def accesses_of(self, exists: NDArray[np.bool_]) -> NDArray[np.int64]:
        """The words that store the sums of a row [sums of a row] that do not exist, or load what is added to them.

        Raises MachineCodeError where that cannot be told.
        """
        numbers = np.flatnonzero(~exists)
        found = [accesses_of(self.words, self.stores, self.template.stores, numbers)]
        if len(self.residuals):
            found.append(accesses_of(self.words, self.residuals, self.template.residuals, numbers))
        return np.concatenate(found)

    @staticmethod
    def read(cubin: bytes, template: Marked) -> Skeleton:
        """Raises MachineCodeError if anything is not as the assembler needs it, with the reason."""
        file = CubinFile.read(cubin)
        words = file.words
        opcodes = encoding.OPCODE.get(words)
        compare, branch, leaf_end = _branch(words, opcodes, file.capability)
        places = _Places(words, opcodes)
        first_group = places.only(places.loads, marker_ptx.FIRST_GROUP, within=slice(0, branch), what="first K group")
        other = places.only(places.plain_stores, marker_ptx.LAST, within=slice(leaf_end, None), what="K group's number")
        group = int(encoding.SOURCE_B.get(words)[other])
        if int(encoding.SOURCE_A.get(words)[compare]) != group:
            raise MachineCodeError("the number of the K group changes its register before the branch")
        leaf = slice(branch, leaf_end)
        ends = places.several(places.loads, marker_ptx.LAST, leaf)
        apart = not len(ends)
        last, *others = (places.several(places.all_stores, marker_ptx.LAST, leaf) if apart else ends).tolist() or [-1]
        if last < 0 or others:
            raise MachineCodeError("not one marker at the end of the chunks")
        in_end, count = slice(last, leaf_end), len(template.sums.pinned)
        moves = Moves.of(words, places.several(places.loads, marker_ptx.SUMS, in_end), count) if apart else None
        if moves is None:
            initial = np.array(
                [
                    places.only(places.loads, marker_ptx.SUMS + 4 * i, within=leaf, what=f"sum {i}")
                    for i in range(len(template.sums.pinned))
                ]
            )
            pinned = encoding.DESTINATION.get(words)[initial]
            if len(set(pinned.tolist())) != len(pinned):
                raise MachineCodeError("two sums are in one register")
        else:
            initial, pinned = np.zeros(0, dtype=np.int64), moves.registers
        pointed = places.several(places.all_stores, marker_ptx.POINTERS, leaf)
        together = [*range(1, template.pointers, marker_ptx.MARKED_TOGETHER)] or [1]
        if len(pointed) != len(together) * template.chunks:
            raise MachineCodeError(f"{len(pointed)} markers of pointers for {template.chunks} chunks")
        pointed, first = pointed.reshape(template.chunks, -1), pointed[:: len(together)]
        if _changes_between(words, pointed):
            raise MachineCodeError("ptxas changes a pointer between two of its markers")
        loads, stores = (places.several(kind, marker_ptx.RING, leaf) for kind in (places.loads, places.all_stores))
        found = Ring.of(words, loads, stores, template.chunks, template.ring_width, fewer=apart)
        ring, runs_on, loads, stores = found.registers, found.runs_on, found.loads, found.stores
        held = places.several(places.all_stores, marker_ptx.HELD_SUMS, leaf).reshape(template.chunks, -1)
        if held.size and (encoding.SOURCE_B.get(words)[held] != pinned).any():
            raise MachineCodeError("a sum changes its register from chunk to chunk")
        in_order = np.concatenate([*([] if runs_on else [loads]), pointed, held, stores], axis=1)
        if (np.diff(in_order.ravel()) <= 0).any():
            raise MachineCodeError("the markers of a chunk are not in order")
        number = np.arange(template.pointers - 1)
        data = (
            encoding.SOURCE_B.get(words)[pointed][:, number // marker_ptx.MARKED_TOGETHER]
            + number % marker_ptx.MARKED_TOGETHER
        )
        registers = np.concatenate([encoding.SOURCE_A.get(words)[first][:, None], data], axis=1)
        offsets = np.zeros(registers.shape, dtype=np.int64)
        offsets[:, 0] = places.offsets[first] - marker_ptx.POINTERS
        _check_barriers(opcodes, in_order, leaf)
        ending = (
            Ending.of(words, opcodes, template.sums, pinned, in_end)
            if moves is None
            else Ending.of_moved(words, opcodes, template.sums, in_end)
        )
        zeroed = places.several(places.loads, marker_ptx.AFTER, leaf)
        of_chunk = np.searchsorted(in_order.ravel(), zeroed)
        if (of_chunk % in_order.shape[1]).any() or (of_chunk == 0).any():
            raise MachineCodeError("what uses a sum after a chunk comes before its markers")
        copies = loads_of(words, opcodes, leaf)
        check_held(words, copies, zeroed)
        gone = [*initial.tolist(), *loads.ravel().tolist(), *in_order.ravel().tolist(), last, *ending.stores.tolist()]
        markers = np.zeros(len(words), dtype=np.bool_)
        markers[gone] = True
        jumps, targets = _jumps(words, opcodes, leaf, markers, file.capability)
        if moves is None:
            _check_pinned(words, pinned, initial, ending.last_use, markers)
        if runs_on:
            in_ring = (ring[0][:, np.newaxis] + np.arange(template.ring_width)).ravel()
            begin, end = (np.repeat(each, template.ring_width) for each in (loads[0], stores[-1]))
            _check_pinned(words, in_ring, begin, end, markers)
        sums = len(template.sums.registers)
        skeleton = Skeleton(
            file=file,
            words=words,
            first_group=first_group,
            compare=compare,
            branch=branch,
            leaf_end=leaf_end,
            group_register=group,
            sums=pinned[:sums],
            wide=pinned[sums:].reshape(-1, 2),
            splices=pointed[:, -1],
            pointers=registers,
            uniform=np.where(UNIFORM_ADDRESS.get(words)[first] == 0, -1, UNIFORM_C.get(words)[first]),
            offsets=offsets,
            residuals=_last(branch + np.flatnonzero(opcodes[leaf] == LDG), sum(map(len, template.residuals))),
            ring=ring,
            markers=markers,
            zeroed=zeroed,
            moves=moves,
            jumps=jumps,
            targets=targets,
            biases=ending.biases,
            splits=ending.splits,
            copies=copies,
            one=int(encoding.DESTINATION.get(words)[last]),
            template=template,
            runs_on=runs_on,
            stores=branch + np.flatnonzero(opcodes[leaf] == STG),
        )
        if len(skeleton.stores) < len(ending.biases.words):
            raise MachineCodeError("a sum is not stored")
        return skeleton


def _local_bytes(words: Words) -> int:
    local = words[operands(words).where("local")]
    return sum(encoding.ACCESS_SIZES[size].bytes for size in encoding.SIZE.get(local).tolist())


class _Places:
    """Loads and stores of shared memory by their offsets."""

    def __init__(self, words: Words, opcodes: NDArray[np.int64]) -> None:
        offsets = encoding.OFFSET.get(words)
        self.offsets = offsets - ((offsets >> 23) << 24)
        uniform = UNIFORM_ADDRESS.get(words) != 0
        self.loads = opcodes == LDS
        self.plain_stores = (opcodes == STS_PLAIN) & ~uniform
        self.all_stores = np.isin(opcodes, (STS, STS_PLAIN))

    def only(self, kind: NDArray[np.bool_], offset: int, *, within: slice, what: str) -> int:
        found = np.flatnonzero(kind[within] & (self.offsets[within] == offset)) + (within.start or 0)
        if len(found) != 1:
            raise MachineCodeError(f"{len(found)} markers instead of one for the {what}")
        return int(found[0])

    def several(self, kind: NDArray[np.bool_], offset: int, within: slice) -> NDArray[np.int64]:
        """Those near an offset, in order."""
        near = np.abs(self.offsets[within] - offset) < marker_ptx.REACH
        found: NDArray[np.int64] = np.flatnonzero(kind[within] & near) + within.start
        return found


def _branch(words: Words, opcodes: NDArray[np.int64], capability: int) -> tuple[int, int, int]:
    """Where the K group is compared, the branch to `other`, and `other`."""
    immediates = encoding.IMMEDIATE.get(words)
    compares = np.flatnonzero((opcodes == ISETP_IMMEDIATE) & (immediates == marker_ptx.NO_GROUP))
    if len(compares) != 1:
        raise MachineCodeError("ptxas compares the K group in another way")
    compare = int(compares[0])
    predicate = int(FIRST_PREDICATE.get(words)[compare])
    jumps = np.flatnonzero(np.isin(opcodes, (BRA, BSSY)))
    targets = jumps + 1 + jump_distances(words[jumps], capability) // encoding.WORD_BYTES
    asks = (opcodes[jumps] == BRA) & (encoding.PREDICATE.get(words)[jumps] == predicate)
    after = np.flatnonzero(asks & (jumps > compare))
    if not len(after):
        raise MachineCodeError("ptxas branches on the K group in another way")
    branch, other = int(jumps[after[0]]), int(targets[after[0]])
    writes = operands(words[compare + 1 : branch]).writes.resource
    if encoding.NEGATED_PREDICATE.get(words)[branch] or other <= branch or (writes == PREDICATES + predicate).any():
        raise MachineCodeError("ptxas branches on the K group in another way")
    if (targets[jumps < branch] > branch).any():
        raise MachineCodeError("ptxas branches over the branch on the K group")
    return compare, branch, other


def _jumps(
    words: Words, opcodes: NDArray[np.int64], leaf: slice, markers: NDArray[np.bool_], capability: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The leaf's branches and where they go; none passes over a marker."""
    inside = opcodes[leaf]
    control = inside[np.isin(inside & 0xFF, range(0x40, 0x60)) & (inside >> 8 == 9)]
    if not set(control.tolist()) <= set(CONTROL):
        raise MachineCodeError("a K group has calls")
    jumps = leaf.start + 1 + np.flatnonzero(np.isin(inside[1:], (BRA, BSSY)))
    targets = jumps + 1 + jump_distances(words[jumps], capability) // encoding.WORD_BYTES
    # BSSY only says where those who part will meet.
    parts = opcodes[jumps] == BRA
    before = np.cumsum(markers)
    passes = parts & (before[jumps] != before[targets - 1])
    if ((targets <= leaf.start) | (targets >= leaf.stop) | passes).any():
        raise MachineCodeError("ptxas branches over a marker")
    return jumps, targets


def _changes_between(words: Words, markers: NDArray[np.int64]) -> bool:
    """Whether anything between the markers of a chunk [chunks, markers] writes what one of them has named."""
    apart = markers[(np.diff(markers, axis=1) > 1).any(axis=1)]
    for first, last in zip(apart[:, 0].tolist(), apart[:, -1].tolist(), strict=True):
        used = operands(words[first : last + 1])
        named = np.isin(used.reads.word + first, markers)
        if np.isin(used.writes.resource, used.reads.resource[named]).any():
            return True
    return False


def _check_barriers(opcodes: NDArray[np.int64], markers: NDArray[np.int64], leaf: slice) -> None:
    """A barrier comes before the markers of each chunk [chunks, markers] and after those of the chunk before."""
    barriers = np.flatnonzero(opcodes == BAR)
    before = np.append(leaf.start, markers[:-1, -1])
    first = np.searchsorted(barriers, before)
    if (first >= len(barriers)).any() or (barriers[np.minimum(first, len(barriers) - 1)] > markers[:, 0]).any():
        raise MachineCodeError("the markers of two chunks have no barrier between them")


def _check_pinned(
    words: Words,
    pinned: NDArray[np.int64],
    initial: NDArray[np.int64],
    last_use: NDArray[np.int64],
    marks: NDArray[np.bool_],
) -> None:
    """Between its first marker and its last use nothing reads or writes the register of a sum, or of the ring."""
    begin, end = int(initial.min()), int(last_use.max())
    used = operands(words[begin : end + 1])
    sum_of = np.full(2**10, -1)
    sum_of[pinned] = np.arange(len(pinned))
    for accesses in (used.reads, used.writes):
        number, place = sum_of[accesses.resource], accesses.word + begin
        between = (number >= 0) & (place > initial[number]) & (place < last_use[number]) & ~marks[place]
        if between.any():
            what = "the register of a sum or of the ring in between"
            raise MachineCodeError(f"ptxas uses {what}, in word {int(place[between][0])}")


def _last(places: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """The last so many; before them are copies."""
    return places[len(places) - min(count, len(places)) :]

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
from codegen.machine import marked, word
from codegen.machine.elf import CubinFile
from codegen.machine.marked import Marked
from codegen.machine.operands import operands
from codegen.machine.word import Words

_ISETP_IMMEDIATE = 0x80C
_FFMA_ADDEND = word.FFMA_IMMEDIATE_ADDEND
_CONTROL = {word.EXIT, word.BRA, word.BSSY, word.BSYNC, 0x942, 0x948}
"""What a K group may have besides plain instructions; the last are BREAK and WARPSYNC."""
_UNIFORM_ADDRESS = word.Field(91, 1)


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
    splices: NDArray[np.int64]
    """[chunks]: the word before which a chunk's multiply-adds go."""
    pointers: NDArray[np.int64]
    """[chunks, pointers]: registers."""
    offsets: NDArray[np.int64]
    """[chunks, pointers]: bytes from the register to where the pointer points."""
    markers: NDArray[np.bool_]
    """[words]: of the leaf, what is left out."""
    jumps: NDArray[np.int64]
    """The branches of the leaf, and where they go."""
    targets: NDArray[np.int64]
    biases: NDArray[np.int64]
    """[sums]: the word that adds the bias."""
    stores: NDArray[np.int64]
    """The stores to global memory in the leaf."""
    residuals: NDArray[np.int64]
    """The loads from global memory there."""
    store_offsets: NDArray[np.int64]
    """[sums]: bytes from where the outputs of a thread begin."""
    ring: NDArray[np.int64]
    """[chunks, loads]: the first register of each place in the ring."""

    @cached_property
    def spill_bytes(self) -> int:
        """What a K group moves to local memory and back, as ptxas counts it."""
        local = self.words[operands(self.words).where("local")]
        return sum(word.SIZE_BYTES[size] for size in word.SIZE.get(local).tolist())

    def accesses_of(self, chosen: NDArray[np.bool_]) -> NDArray[np.int64]:
        """The words that store the chosen sums [sums] or load what is added to them.

        Raises MachineCodeError where that cannot be told.
        """
        found = [self._in_order_of_sums(self.stores)[chosen]]
        if len(self.residuals):
            found.append(self._in_order_of_sums(self.residuals)[chosen])
        return np.concatenate(found)

    def _in_order_of_sums(self, accesses: NDArray[np.int64]) -> NDArray[np.int64]:
        offsets, addresses = word.OFFSET.get(self.words[accesses]), word.SOURCE_A.get(self.words[accesses])
        offsets = offsets - ((offsets >> 23) << 24)
        wanted = self.store_offsets - self.store_offsets.min()
        place = dict(zip((offsets - offsets.min()).tolist(), accesses.tolist(), strict=True))
        if len(set(addresses.tolist())) != 1 or set(place) != set(wanted.tolist()) or len(place) != len(accesses):
            raise MachineCodeError(
                "the last K group has fewer output channels, and which store is whose cannot be told"
            )
        return np.array([place[offset] for offset in wanted.tolist()], dtype=np.int64)

    @staticmethod
    def read(cubin: bytes, template: Marked) -> Skeleton:
        """Raises MachineCodeError if anything is not as the assembler needs it, with the reason."""
        file = CubinFile.read(cubin)
        words = file.words
        opcodes = word.OPCODE.get(words)
        compare, branch, leaf_end = _branch(words, opcodes, file.capability)
        places = _Places(words, opcodes)
        first_group = places.only(places.loads, marked.FIRST_GROUP, within=slice(0, branch), what="first K group")
        other = places.only(places.plain_stores, marked.LAST, within=slice(leaf_end, None), what="K group's number")
        group = int(word.SOURCE_B.get(words)[other])
        if int(word.SOURCE_A.get(words)[compare]) != group:
            raise MachineCodeError("the number of the K group changes its register before the branch")
        leaf = slice(branch, leaf_end)
        initial = np.array(
            [
                places.only(places.loads, marked.SUMS + 4 * i, within=leaf, what=f"sum {i}")
                for i in range(len(template.sums))
            ]
        )
        last, *others = places.several(places.loads, marked.LAST, leaf).tolist() or [-1]
        if last < 0 or others:
            raise MachineCodeError("not one marker at the end of the chunks")
        sums = word.DESTINATION.get(words)[initial]
        if len(set(sums.tolist())) != len(sums):
            raise MachineCodeError("two sums are in one register")
        pointed = places.several(places.all_stores, marked.POINTERS, leaf)
        if len(pointed) != template.chunks:
            raise MachineCodeError(f"{len(pointed)} markers of pointers for {template.chunks} chunks")
        if not places.plain_stores[pointed].all():
            raise MachineCodeError("a pointer into shared memory is in a uniform register")
        loads, stores = (places.several(kind, marked.RING, leaf) for kind in (places.loads, places.all_stores))
        if not len(loads) or len(loads) != len(stores) or len(loads) % template.chunks:
            raise MachineCodeError(f"{len(loads)} and {len(stores)} markers of the ring for {template.chunks} chunks")
        loads, stores = loads.reshape(template.chunks, -1), stores.reshape(template.chunks, -1)
        ring = word.DESTINATION.get(words)[loads]
        if not np.array_equal(ring, word.SOURCE_B.get(words)[stores]):
            raise MachineCodeError("the ring changes its registers between two of its markers")
        held = places.several(places.all_stores, marked.HELD_SUMS, leaf).reshape(template.chunks, -1)
        if held.size and (word.SOURCE_B.get(words)[held] != sums).any():
            raise MachineCodeError("a sum changes its register from chunk to chunk")
        in_order = np.concatenate([loads, pointed[:, None], held, stores], axis=1)
        if (np.diff(in_order.ravel()) <= 0).any():
            raise MachineCodeError("the markers of a chunk are not in order")
        registers = word.SOURCE_B.get(words)[pointed][:, None] + np.arange(-1, template.pointers - 1)
        registers[:, 0] = word.SOURCE_A.get(words)[pointed]
        offsets = np.zeros(registers.shape, dtype=np.int64)
        offsets[:, 0] = places.offsets[pointed] - marked.POINTERS
        _check_barriers(opcodes, in_order, leaf)
        biases = _biases(words, opcodes, template, sums, last, leaf_end)
        markers = np.zeros(len(words), dtype=np.bool_)
        markers[[*initial.tolist(), *in_order.ravel().tolist(), last]] = True
        jumps, targets = _jumps(words, opcodes, leaf, markers, file.capability)
        _check_sums(words, sums, initial, biases, markers)
        skeleton = Skeleton(
            file=file,
            words=words,
            first_group=first_group,
            compare=compare,
            branch=branch,
            leaf_end=leaf_end,
            group_register=group,
            sums=sums,
            splices=pointed,
            pointers=registers,
            offsets=offsets,
            residuals=branch + np.flatnonzero(opcodes[leaf] == word.LDG),
            store_offsets=template.store_offsets,
            ring=ring,
            markers=markers,
            jumps=jumps,
            targets=targets,
            biases=biases,
            stores=branch + np.flatnonzero(opcodes[leaf] == word.STG),
        )
        if len(skeleton.stores) < len(sums):
            raise MachineCodeError("a sum is not stored")
        return skeleton


class _Places:
    """Loads and stores of shared memory by their offsets."""

    def __init__(self, words: Words, opcodes: NDArray[np.int64]) -> None:
        offsets = word.OFFSET.get(words)
        self.offsets = offsets - ((offsets >> 23) << 24)
        uniform = _UNIFORM_ADDRESS.get(words) != 0
        self.loads = opcodes == word.LDS
        self.plain_stores = (opcodes == word.STS_PLAIN) & ~uniform
        self.all_stores = np.isin(opcodes, (word.STS, word.STS_PLAIN))

    def only(self, kind: NDArray[np.bool_], offset: int, *, within: slice, what: str) -> int:
        found = np.flatnonzero(kind[within] & (self.offsets[within] == offset)) + (within.start or 0)
        if len(found) != 1:
            raise MachineCodeError(f"{len(found)} markers instead of one for the {what}")
        return int(found[0])

    def several(self, kind: NDArray[np.bool_], offset: int, within: slice) -> NDArray[np.int64]:
        """Those near an offset, in order."""
        near = np.abs(self.offsets[within] - offset) < marked.REACH
        found: NDArray[np.int64] = np.flatnonzero(kind[within] & near) + within.start
        return found


def _branch(words: Words, opcodes: NDArray[np.int64], capability: int) -> tuple[int, int, int]:
    """Where the K group is compared, the branch to `other`, and `other`."""
    immediates = word.IMMEDIATE.get(words)
    compares = np.flatnonzero((opcodes == _ISETP_IMMEDIATE) & (immediates == marked.NO_GROUP))
    if len(compares) != 1:
        raise MachineCodeError("ptxas compares the K group in another way")
    compare = int(compares[0])
    branches = np.flatnonzero(opcodes == word.BRA)
    targets = branches + 1 + word.branch_distances(words[branches], capability) // word.WORD_BYTES
    after = np.flatnonzero(branches > compare)
    if not len(after):
        raise MachineCodeError("ptxas branches on the K group in another way")
    branch, other = int(branches[after[0]]), int(targets[after[0]])
    guard = word.PREDICATE.get(words)[branch]
    if guard != _written_predicate(words[compare]) or word.NEGATED_PREDICATE.get(words)[branch] or other <= branch:
        raise MachineCodeError("ptxas branches on the K group in another way")
    return compare, branch, other


def _written_predicate(compare: Words) -> int:
    return int(word.Field(81, 3).get(compare))


def _jumps(
    words: Words, opcodes: NDArray[np.int64], leaf: slice, markers: NDArray[np.bool_], capability: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The leaf's branches and where they go; none passes over a marker."""
    inside = opcodes[leaf]
    control = inside[np.isin(inside & 0xFF, range(0x40, 0x60)) & (inside >> 8 == 9)]
    if not set(control.tolist()) <= _CONTROL:
        raise MachineCodeError("a K group has calls")
    jumps = leaf.start + 1 + np.flatnonzero(np.isin(inside[1:], (word.BRA, word.BSSY)))
    targets = jumps + 1 + word.jump_distances(words[jumps], capability) // word.WORD_BYTES
    # BSSY only says where those who part will meet.
    parts = opcodes[jumps] == word.BRA
    before = np.cumsum(markers)
    passes = parts & (before[jumps] != before[targets - 1])
    if ((targets <= leaf.start) | (targets >= leaf.stop) | passes).any():
        raise MachineCodeError("ptxas branches over a marker")
    return jumps, targets


def _check_barriers(opcodes: NDArray[np.int64], markers: NDArray[np.int64], leaf: slice) -> None:
    """A barrier comes before the markers of each chunk [chunks, markers] and after those of the chunk before."""
    barriers = np.flatnonzero(opcodes == word.BAR)
    before = np.append(leaf.start, markers[:-1, -1])
    first = np.searchsorted(barriers, before)
    if (first >= len(barriers)).any() or (barriers[np.minimum(first, len(barriers) - 1)] > markers[:, 0]).any():
        raise MachineCodeError("the markers of two chunks have no barrier between them")


def _biases(
    words: Words, opcodes: NDArray[np.int64], template: Marked, sums: NDArray[np.int64], last: int, leaf_end: int
) -> NDArray[np.int64]:
    """[sums]: where each gets its bias."""
    adds = last + np.flatnonzero(opcodes[last:leaf_end] == _FFMA_ADDEND)
    one = int(word.DESTINATION.get(words)[last])
    # FFMA d, a, b, immediate: b lies where c does otherwise.
    factors = np.stack([word.SOURCE_A.get(words)[adds], word.SOURCE_C.get(words)[adds]], axis=1)
    found: dict[tuple[int, int], int] = {}
    for place, pair, bits in zip(
        adds.tolist(), factors.tolist(), word.IMMEDIATE.get(words)[adds].tolist(), strict=True
    ):
        if one in pair:
            found[pair[0] if pair[1] == one else pair[1], bits] = place
    wanted = [(register, template.bias_bits(i)) for i, register in enumerate(sums.tolist())]
    if missing := [each for each in wanted if each not in found]:
        raise MachineCodeError(f"{len(missing)} sums are not in their registers when their biases are added")
    return np.array([found[each] for each in wanted], dtype=np.int64)


def _check_sums(
    words: Words,
    sums: NDArray[np.int64],
    initial: NDArray[np.int64],
    biases: NDArray[np.int64],
    marks: NDArray[np.bool_],
) -> None:
    """Between its marker and its bias nothing reads or writes a sum's register."""
    begin, end = int(initial.min()), int(biases.max())
    used = operands(words[begin : end + 1])
    sum_of = np.full(2**10, -1)
    sum_of[sums] = np.arange(len(sums))
    for accesses in (used.reads, used.writes):
        number, place = sum_of[accesses.resource], accesses.word + begin
        between = (number >= 0) & (place > initial[number]) & (place < biases[number]) & ~marks[place]
        if between.any():
            raise MachineCodeError(f"ptxas uses the register of a sum in between, in word {int(place[between][0])}")

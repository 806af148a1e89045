"""Skeleton reader: finds the markers in the cubin that ptxas made of marker PTX, and the registers they name.

Every K group runs the code before the branch; the body after it is copied for each. All that the assembler relies on is
checked here: code of another form is refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from codegen.errors import MachineCodeError
from codegen.sass.cubin import CubinFile
from codegen.sass.isa import encoding
from codegen.sass.isa.architecture import Architecture
from codegen.sass.isa.architectures import architecture_of
from codegen.sass.isa.branches import jump_distances
from codegen.sass.isa.encoding import Words
from codegen.sass.isa.opcodes import (
    ACQBULK,
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
    are_of_kind,
)
from codegen.sass.isa.operands import operands
from codegen.sass.skeleton import marker_ptx
from codegen.sass.skeleton.epilogue_code import AccumulatorMoves, Biases, EpilogueCode
from codegen.sass.skeleton.marker_ptx import MarkerPtx
from codegen.sass.skeleton.operand_ring import OperandRing
from codegen.sass.skeleton.output_stores import accesses_of
from codegen.sass.skeleton.register_copies import WEAK, check_held, loads_of

CONTROL = (EXIT, BRA, BSSY, BSYNC, BREAK, WARPSYNC)
"""The control instructions that a K group may have."""


@dataclass(frozen=True, eq=False)
class Skeleton:
    """A cubin without weights, with the places of its markers; places are word numbers."""

    file: CubinFile
    words: Words
    first_group: int
    """The load that the number of the first K group replaces."""
    compare: int
    branch: int
    """The word that ends the head; the body follows it."""
    body_end: int
    group_register: int
    accumulators: NDArray[np.int64]
    """[accumulators]: the register of each."""
    wide: NDArray[np.int64]
    """[packed accumulators, 2]: the float32 registers that both halves are added to; empty if there are none."""
    splices: NDArray[np.int64]
    """[chunks]: the word before which a chunk's multiply-adds are inserted."""
    pointers: NDArray[np.int64]
    """[chunks, pointers]: registers."""
    uniform: NDArray[np.int64]
    """[chunks]: the uniform register that is added to the first pointer; -1 without one."""
    scale: NDArray[np.int64]
    """[chunks]: the field SCALE of the first pointer."""
    offsets: NDArray[np.int64]
    """[chunks, pointers]: bytes from the register to where the pointer points."""
    markers: NDArray[np.bool_]
    """[words]: the words of the body that the assembler leaves out."""
    zeroed: NDArray[np.int64]
    """Loads that the assembler replaces by zeros."""
    moves: AccumulatorMoves | None
    """Moves of reserved accumulators; None if ptxas has allocated the accumulators."""
    jumps: NDArray[np.int64]
    """The branches of the body; `targets` are their targets."""
    targets: NDArray[np.int64]
    biases: Biases
    unpackings: NDArray[np.int64]
    """Words that copy each packed accumulator, once the XOR with the one is an XOR with RZ."""
    copies: NDArray[np.int64]
    """Loads of copies that pass through registers."""
    stores: NDArray[np.int64]
    """The stores to global memory in the body."""
    residuals: NDArray[np.int64]
    """The loads of values that are added to outputs."""
    one: int
    """The register of the last marker."""
    template: MarkerPtx
    ring: NDArray[np.int64]
    """[chunks, places]: the first register of each place in the ring."""
    overlaps: bool
    """Whether the ring keeps its registers from the first chunk to the last."""

    def free_registers(self, chunk: int) -> NDArray[np.int64]:
        """Registers that inputs of a chunk are loaded into."""
        places = self.ring[chunk][:, None] + np.arange(self.template.ring_width)
        free: NDArray[np.int64] = places.ravel()
        return free

    @property
    def architecture(self) -> Architecture:
        return architecture_of(self.file.capability)

    @property
    def copy_order(self) -> int:
        """Memory order of the loads of copies: that of read-only data, unless their data may be written meanwhile."""
        waits = (encoding.OPCODE.get(self.words) == ACQBULK).any()
        return WEAK if waits else self.architecture.loads.read_only

    @property
    def registers(self) -> int:
        """Register count of the cubin: that of the skeleton, plus reserved accumulators."""
        return self.file.registers + (0 if self.moves is None else len(self.moves.registers))

    @cached_property
    def spill_bytes(self) -> int:
        """Bytes moved to local memory and back, as ptxas counts them."""
        return _local_bytes(self.words, self.architecture)

    @cached_property
    def loop_spill_bytes(self) -> int:
        """Bytes moved to local memory and back from the first chunk to the last; other moves happen once."""
        return _local_bytes(self.words[self.splices[0] : self.splices[-1]], self.architecture)

    def accesses_of(self, exists: NDArray[np.bool_]) -> NDArray[np.int64]:
        """The words that store outputs that do not exist, or load what is added to them.

        `exists` is [accumulators of a row]. Raises MachineCodeError where the words cannot be told apart.
        """
        numbers = np.flatnonzero(~exists)
        accesses = ((self.stores, self.template.stores), (self.residuals, self.template.residuals))
        found = [accesses_of(self.words, words, outputs, numbers) for words, outputs in accesses if outputs]
        return np.concatenate(found) if found else np.zeros(0, dtype=np.int64)

    @staticmethod
    def read(cubin: bytes, template: MarkerPtx) -> Skeleton:
        """Reads a skeleton. Raises MachineCodeError with the reason if the assembler cannot use it."""
        file = CubinFile.read(cubin)
        words, architecture = file.words, architecture_of(file.capability)
        opcodes = encoding.OPCODE.get(words)
        compare, branch, body_end = _branch(words, opcodes, architecture)
        places = _Places(words, opcodes)
        first_group = places.only(places.loads, marker_ptx.FIRST_GROUP, within=slice(0, branch), what="first K group")
        other = places.only(places.plain_stores, marker_ptx.LAST, within=slice(body_end, None), what="K group's number")
        group = int(encoding.SOURCE_B.get(words)[other])
        if int(encoding.SOURCE_A.get(words)[compare]) != group:
            raise MachineCodeError("the number of the K group changes its register before the branch")
        body = slice(branch, body_end)
        last, reserved = _last_marker(places, body)
        epilogue, count = slice(last, body_end), len(template.accumulators.pinned)
        moves: AccumulatorMoves | None
        if reserved:
            loads = places.several(places.loads, marker_ptx.ACCUMULATORS, epilogue)
            moved = AccumulatorMoves.of(words, loads, count, architecture)
            moves, initial, pinned = moved, np.zeros(0, dtype=np.int64), moved.registers
            ending = EpilogueCode.of_moved(words, opcodes, template.accumulators, epilogue)
        else:
            moves, initial = None, _accumulator_markers(places, count, body)
            pinned = encoding.DESTINATION.get(words)[initial]
            if len(set(pinned.tolist())) != len(pinned):
                raise MachineCodeError("two accumulators are in one register")
            ending = EpilogueCode.of(words, opcodes, template.accumulators, pinned, epilogue, architecture)
        pointers = _Pointers.of(words, places, template, body, architecture)
        loads, stores = (places.several(kind, marker_ptx.RING, body) for kind in (places.loads, places.all_stores))
        ring = OperandRing.of(words, loads, stores, template.chunks, template.ring_width, architecture, fewer=reserved)
        held = places.several(places.all_stores, marker_ptx.HELD_ACCUMULATORS, body).reshape(template.chunks, -1)
        if held.size and (encoding.SOURCE_B.get(words)[held] != pinned).any():
            raise MachineCodeError("an accumulator changes its register from chunk to chunk")
        of_chunks = [*([] if ring.overlaps else [ring.loads]), pointers.markers, held, ring.stores]
        in_order = np.concatenate(of_chunks, axis=1)
        if (np.diff(in_order.ravel()) <= 0).any():
            raise MachineCodeError("the markers of a chunk are not in order")
        _check_barriers(opcodes, in_order, body)
        zeroed = places.several(places.loads, marker_ptx.AFTER, body)
        of_chunk = np.searchsorted(in_order.ravel(), zeroed)
        if (of_chunk % in_order.shape[1]).any() or (of_chunk == 0).any():
            raise MachineCodeError("a use of an accumulator after a chunk comes before its markers")
        copies = loads_of(words, opcodes, body)
        check_held(words, copies, zeroed, architecture)
        markers = np.zeros(len(words), dtype=np.bool_)
        markers[np.concatenate([initial, ring.loads.ravel(), in_order.ravel(), [last], ending.stores])] = True
        jumps, targets = _jumps(words, opcodes, body, markers, architecture)
        if not reserved:
            _check_pinned(words, pinned, initial, ending.last_use, markers, architecture)
        if ring.overlaps:
            in_ring = (ring.registers[0][:, np.newaxis] + np.arange(template.ring_width)).ravel()
            begin, end = (np.repeat(each, template.ring_width) for each in (ring.loads[0], ring.stores[-1]))
            _check_pinned(words, in_ring, begin, end, markers, architecture)
        count = len(template.accumulators.registers)
        skeleton = Skeleton(
            file=file,
            words=words,
            first_group=first_group,
            compare=compare,
            branch=branch,
            body_end=body_end,
            group_register=group,
            accumulators=pinned[:count],
            wide=pinned[count:].reshape(-1, 2),
            splices=pointers.markers[:, -1],
            pointers=pointers.registers,
            uniform=pointers.uniform,
            scale=pointers.scale,
            offsets=pointers.offsets,
            residuals=_last(
                branch + np.flatnonzero(are_of_kind(opcodes[body], LDG)),
                sum(map(len, template.residuals)) * len(ending.biases.words) // template.accumulators.finished,
            ),
            ring=ring.registers,
            markers=markers,
            zeroed=zeroed,
            moves=moves,
            jumps=jumps,
            targets=targets,
            biases=ending.biases,
            unpackings=ending.unpackings,
            copies=copies,
            one=int(encoding.DESTINATION.get(words)[last]),
            template=template,
            overlaps=ring.overlaps,
            stores=branch + np.flatnonzero(are_of_kind(opcodes[body], STG)),
        )
        if template.stores and len(skeleton.stores) < len(ending.biases.words):
            raise MachineCodeError("an output is not stored")
        return skeleton


def _local_bytes(words: Words, architecture: Architecture) -> int:
    local = words[operands(words, architecture).where("local")]
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
            raise MachineCodeError(f"{len(found)} markers for the {what}: expected one")
        return int(found[0])

    def several(self, kind: NDArray[np.bool_], offset: int, within: slice) -> NDArray[np.int64]:
        """The accesses of one kind near an offset, in order."""
        near = np.abs(self.offsets[within] - offset) < marker_ptx.REACH
        found: NDArray[np.int64] = np.flatnonzero(kind[within] & near) + within.start
        return found


def _last_marker(places: _Places, body: slice) -> tuple[int, bool]:
    """The marker behind the last chunk, and whether it is that of reserved accumulators: a store, not a load."""
    loads = places.several(places.loads, marker_ptx.LAST, body)
    found = loads if len(loads) else places.several(places.all_stores, marker_ptx.LAST, body)
    if len(found) != 1:
        raise MachineCodeError(f"{len(found)} markers at the end of the chunks: expected one")
    return int(found[0]), not len(loads)


def _accumulator_markers(places: _Places, count: int, body: slice) -> NDArray[np.int64]:
    """[pinned registers]: the load that names each before the first chunk."""
    offsets = [marker_ptx.ACCUMULATORS + 4 * i for i in range(count)]
    found = [places.only(places.loads, each, within=body, what=f"accumulator {i}") for i, each in enumerate(offsets)]
    return np.array(found, dtype=np.int64)


@dataclass(frozen=True, eq=False)
class _Pointers:
    """The registers of pointers into shared memory, as the markers of each chunk name them."""

    markers: NDArray[np.int64]
    """[chunks, markers]"""
    registers: NDArray[np.int64]
    """[chunks, pointers]"""
    uniform: NDArray[np.int64]
    """[chunks]: the uniform register that is added to the first pointer; -1 without one."""
    scale: NDArray[np.int64]
    """[chunks]: the field SCALE of the first pointer."""
    offsets: NDArray[np.int64]
    """[chunks, pointers]: bytes from the register to where the pointer points."""

    @staticmethod
    def of(words: Words, places: _Places, template: MarkerPtx, body: slice, architecture: Architecture) -> _Pointers:
        found = places.several(places.all_stores, marker_ptx.POINTERS, body)
        together = int(encoding.REGISTERS_OF_SIZE[encoding.SIZE.get(words)[found]].max(initial=1))
        per_chunk = len(range(1, template.pointers, together)) or 1
        if len(found) != per_chunk * template.chunks:
            raise MachineCodeError(f"{len(found)} markers of pointers for {template.chunks} chunks")
        markers = found.reshape(template.chunks, per_chunk)
        if _changes_between(words, markers, architecture):
            raise MachineCodeError("ptxas changes a pointer between two of its markers")
        first, number = markers[:, 0], np.arange(template.pointers - 1)
        data = encoding.SOURCE_B.get(words)[markers][:, number // together] + number % together
        offsets = np.zeros((template.chunks, template.pointers), dtype=np.int64)
        offsets[:, 0] = places.offsets[first] - marker_ptx.POINTERS
        return _Pointers(
            markers=markers,
            registers=np.concatenate([encoding.SOURCE_A.get(words)[first][:, None], data], axis=1),
            uniform=np.where(UNIFORM_ADDRESS.get(words)[first] == 0, -1, UNIFORM_C.get(words)[first]),
            scale=encoding.SCALE.get(words)[first],
            offsets=offsets,
        )


def _branch(words: Words, opcodes: NDArray[np.int64], architecture: Architecture) -> tuple[int, int, int]:
    """Places of the comparison of the K group, of the branch to `other`, and of `other`."""
    immediates = encoding.IMMEDIATE.get(words)
    compares = np.flatnonzero((opcodes == ISETP_IMMEDIATE) & (immediates == marker_ptx.NO_GROUP))
    if len(compares) != 1:
        raise MachineCodeError("ptxas compares the K group in another way")
    compare = int(compares[0])
    predicate = int(FIRST_PREDICATE.get(words)[compare])
    jumps = np.flatnonzero(np.isin(opcodes, (BRA, BSSY)))
    targets = jumps + 1 + jump_distances(words[jumps], architecture) // encoding.WORD_BYTES
    asks = (opcodes[jumps] == BRA) & (encoding.PREDICATE.get(words)[jumps] == predicate)
    after = np.flatnonzero(asks & (jumps > compare))
    if not len(after):
        raise MachineCodeError("ptxas branches on the K group in another way")
    branch, other = int(jumps[after[0]]), int(targets[after[0]])
    writes = operands(words[compare + 1 : branch], architecture).writes.resource
    if encoding.NEGATED_PREDICATE.get(words)[branch] or other <= branch or (writes == PREDICATES + predicate).any():
        raise MachineCodeError("ptxas branches on the K group in another way")
    if (targets[jumps < branch] > branch).any():
        raise MachineCodeError("ptxas branches over the branch on the K group")
    return compare, branch, other


def _jumps(
    words: Words, opcodes: NDArray[np.int64], body: slice, markers: NDArray[np.bool_], architecture: Architecture
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The body's branches and their targets. Raises MachineCodeError if one passes over a marker."""
    inside = opcodes[body]
    control = inside[np.isin(inside & 0xFF, range(0x40, 0x60)) & (inside >> 8 == 9)]
    if not set(control.tolist()) <= set(CONTROL):
        raise MachineCodeError("a K group has control flow that the assembler does not support")
    jumps = body.start + 1 + np.flatnonzero(np.isin(inside[1:], (BRA, BSSY)))
    targets = jumps + 1 + jump_distances(words[jumps], architecture) // encoding.WORD_BYTES
    # BSSY names the place where diverged threads meet: it is no branch.
    parts = opcodes[jumps] == BRA
    before = np.cumsum(markers)
    passes = parts & (before[jumps] != before[targets - 1])
    if ((targets <= body.start) | (targets >= body.stop) | passes).any():
        raise MachineCodeError("ptxas branches over a marker")
    return jumps, targets


def _changes_between(words: Words, markers: NDArray[np.int64], architecture: Architecture) -> bool:
    """Whether a word between the markers of a chunk [chunks, markers] writes a register that one of them names."""
    apart = markers[(np.diff(markers, axis=1) > 1).any(axis=1)]
    for first, last in zip(apart[:, 0].tolist(), apart[:, -1].tolist(), strict=True):
        used = operands(words[first : last + 1], architecture)
        named = np.isin(used.reads.word + first, markers)
        if np.isin(used.writes.resource, used.reads.resource[named]).any():
            return True
    return False


def _check_barriers(opcodes: NDArray[np.int64], markers: NDArray[np.int64], body: slice) -> None:
    """Raises MachineCodeError unless a barrier stands between the markers [chunks, markers] of neighbouring chunks."""
    barriers = np.flatnonzero(opcodes == BAR)
    before = np.append(body.start, markers[:-1, -1])
    first = np.searchsorted(barriers, before)
    if (first >= len(barriers)).any() or (barriers[np.minimum(first, len(barriers) - 1)] > markers[:, 0]).any():
        raise MachineCodeError("no barrier between the markers of two chunks")


def _check_pinned(
    words: Words,
    pinned: NDArray[np.int64],
    initial: NDArray[np.int64],
    last_use: NDArray[np.int64],
    marks: NDArray[np.bool_],
    architecture: Architecture,
) -> None:
    """Raises MachineCodeError if ptxas uses a register of an accumulator or the ring before its last use."""
    begin, end = int(initial.min()), int(last_use.max())
    used = operands(words[begin : end + 1], architecture)
    number_of = np.full(2**10, -1)
    number_of[pinned] = np.arange(len(pinned))
    for accesses in (used.reads, used.writes):
        number, place = number_of[accesses.resource], accesses.word + begin
        between = (number >= 0) & (place > initial[number]) & (place < last_use[number]) & ~marks[place]
        if between.any():
            what = "a register of an accumulator or of the ring in between"
            raise MachineCodeError(f"ptxas uses {what}, in word {int(place[between][0])}")


def _last(places: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """The last `count` places; those before them are copies."""
    return places[len(places) - min(count, len(places)) :]

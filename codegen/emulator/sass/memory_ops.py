"""The words that load, store and copy."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from codegen.emulator.alu.arithmetic import Lanes
from codegen.emulator.faults import FaultError, UnsupportedError
from codegen.emulator.ptx.memory_ops import fetched
from codegen.emulator.sass.integers import WINDOW_HIGH, Run
from codegen.emulator.sass.state import Core, Instruction, Mask
from codegen.sass.isa.encoding import ACCESS_SIZES
from codegen.sass.isa.opcodes import UCGABAR_ARRIVE

_RANK_SHIFT, _WITHIN_BLOCK = np.uint32(24), np.uint32(0xFFFFFF)
"""In an address of shared memory: the block's rank in its cluster, and the place within the block."""
_32 = np.uint64(32)
STACK_END: Final = 0x10000
"""What c[0x0][0x28] says: stacks grow downwards from here."""


def _chosen(core: Core, mask: Mask) -> NDArray[np.intp]:
    return np.arange(core.lanes) if mask is None else np.flatnonzero(mask)


def _form(word: Instruction) -> tuple[np.dtype[np.generic], int]:
    number = word.field(73, 3)
    if number >= len(ACCESS_SIZES):
        raise UnsupportedError("an access of this size")
    return np.dtype(ACCESS_SIZES[number].element), ACCESS_SIZES[number].registers


def _global_addresses(core: Core, word: Instruction, lanes: NDArray[np.intp], offset: int) -> Lanes:
    number = word.field(24, 8)
    if not word.field(70 if word.kind.name == "LDGSTS" else 72) or number == 255:
        raise UnsupportedError("a global access without a 64-bit address")
    low, high = core.read(number)[lanes], core.read(number + 1)[lanes]
    return (high.astype(np.uint64) << np.uint64(32) | low) + np.uint64(offset & (1 << 64) - 1)


def _shared_addresses(core: Core, word: Instruction, lanes: NDArray[np.intp]) -> Lanes:
    address = core.read(word.field(24, 8))[lanes] + np.uint32(word.signed(40, 24) & 0xFFFFFFFF)
    if word.field(91):
        address = address + core.read(word.field(32 if word.kind.name == "LDS" else 64, 6), uniform=True)[lanes]
    return _own_addresses(core, address, lanes)


def _own_addresses(core: Core, address: Lanes, lanes: NDArray[np.intp]) -> Lanes:
    """In the block's own shared memory: its rank in the cluster, which they say too, left out."""
    rank = core.special["%cluster_ctarank"][core.first : core.first + core.lanes][lanes]
    if (other := np.flatnonzero(address >> _RANK_SHIFT != rank)).size:
        first = int(other[0])
        said = int(address[first] >> _RANK_SHIFT)
        raise FaultError(int(lanes[first]) + core.first, f"shared memory of rank {said} in rank {int(rank[first])}")
    return (address & _WITHIN_BLOCK).astype(np.uint64)


def _load_generic(core: Core, word: Instruction, mask: Mask) -> None:
    """LD: here of the shared memory of some block of the cluster only."""
    lanes, (dtype, count) = _chosen(core, mask), _form(word)
    addresses = _global_addresses(core, word, lanes, word.field(32, 23))
    if (elsewhere := np.flatnonzero(addresses >> _32 != WINDOW_HIGH)).size:
        address = int(addresses[elsewhere[0]])
        raise FaultError(int(lanes[elsewhere[0]]) + core.first, f"{address:#x}, which is no address of shared memory")
    low, clusters = addresses.astype(np.uint32), core.memories.clusters
    mapped = clusters.mapped(low & _WITHIN_BLOCK, low >> _RANK_SHIFT, lanes + core.first)
    values = clusters.load(mapped, lanes + core.first, dtype.itemsize, count)
    _put(core, word, lanes, values, dtype)


def _put(core: Core, word: Instruction, lanes: NDArray[np.intp], values: list[Lanes], to: np.dtype[np.generic]) -> None:
    mask = np.zeros(core.lanes, dtype=np.bool_)
    mask[lanes] = True
    for i, value in enumerate(values):
        whole = np.zeros(core.lanes, dtype=np.uint32)
        whole[lanes] = value.view(to).astype(np.int64).astype(np.uint32)
        core.write(word.to + i if word.to != 255 else 255, whole, mask)


def _load_global(core: Core, word: Instruction, mask: Mask) -> None:
    lanes, (dtype, count) = _chosen(core, mask), _form(word)
    addresses = _global_addresses(core, word, lanes, word.signed(40, 24))
    values = core.memories.buffers.load(addresses, lanes + core.first, dtype.itemsize, count)
    _put(core, word, lanes, values, dtype)


def _load_shared(core: Core, word: Instruction, mask: Mask) -> None:
    lanes, (dtype, count) = _chosen(core, mask), _form(word)
    values = core.memories.shared.load(_shared_addresses(core, word, lanes), lanes + core.first, dtype.itemsize, count)
    _put(core, word, lanes, values, dtype)


def _stored(core: Core, word: Instruction, lanes: NDArray[np.intp]) -> tuple[int, list[Lanes]]:
    dtype, count = _form(word)
    number = word.field(32, 8)
    unsigned = np.dtype(f"u{dtype.itemsize}")
    return dtype.itemsize, [
        core.read(number if number == 255 else number + i)[lanes].astype(unsigned) for i in range(count)
    ]


def _store_global(core: Core, word: Instruction, mask: Mask) -> None:
    lanes = _chosen(core, mask)
    addresses = _global_addresses(core, word, lanes, word.signed(40, 24))
    size, values = _stored(core, word, lanes)
    core.memories.buffers.store(addresses, lanes + core.first, size, values)


def _store_shared(core: Core, word: Instruction, mask: Mask) -> None:
    lanes = _chosen(core, mask)
    size, values = _stored(core, word, lanes)
    core.memories.fenced[lanes + core.first] = False
    core.memories.shared.store(_shared_addresses(core, word, lanes), lanes + core.first, size, values)


def _copy(core: Core, word: Instruction, mask: Mask) -> None:
    """LDGSTS: to shared memory past the registers; zeros where its predicate does not hold."""
    lanes, (dtype, count) = _chosen(core, mask), _form(word)
    size = dtype.itemsize * count
    if size < 4:
        raise UnsupportedError("a copy of less than 4 bytes")
    target = core.read(word.to)[lanes] + np.uint32(word.signed(44, 20) & 0xFFFFFFFF)
    wanted = np.where(word.input_predicate(core)[lanes], np.uint32(size), np.uint32(0))
    source = _global_addresses(core, word, lanes, word.signed(32, 12))
    # A lane that brings nothing may have an address anywhere.
    words = fetched(core.memories.buffers, np.where(wanted > 0, source, 0), lanes + core.first, wanted, size)
    core.memories.copies.issue(lanes + core.first, _own_addresses(core, target, lanes), words)


def _end_group(core: Core, _: Instruction, mask: Mask) -> None:
    core.memories.copies.commit(_chosen(core, mask) + core.first)


def _wait_for_groups(core: Core, word: Instruction, mask: Mask) -> None:
    """DEPBAR.LE: until no more than so many groups of copies are under way."""
    if not word.field(47):
        raise UnsupportedError("DEPBAR without a number")
    core.memories.copies.wait(_chosen(core, mask) + core.first, word.field(38, 6))


def _local_places(core: Core, word: Instruction, lanes: NDArray[np.intp], size: int) -> NDArray[np.int64]:
    """First bytes in each lane's stack."""
    address = core.read(word.field(24, 8))[lanes] + np.uint32(word.signed(40, 24) & 0xFFFFFFFF)
    end = core.memories.local.shape[1]
    places: NDArray[np.int64] = address.astype(np.int64) - (STACK_END - end)
    wrong = np.flatnonzero((places < 0) | (places + size > end) | (places % size > 0))
    if wrong.size:
        raise FaultError(int(lanes[wrong[0]]) + core.first, f"byte {int(places[wrong[0]])} of the stack")
    return places


def _load_local(core: Core, word: Instruction, mask: Mask) -> None:
    lanes, (dtype, count) = _chosen(core, mask), _form(word)
    places = _local_places(core, word, lanes, dtype.itemsize * count)
    rows = core.memories.local[lanes + core.first]
    bytes_of = places[:, None] + np.arange(dtype.itemsize * count)
    data = np.ascontiguousarray(np.take_along_axis(rows, bytes_of, axis=1)).view(f"u{dtype.itemsize}")
    _put(core, word, lanes, [np.ascontiguousarray(data[:, i]) for i in range(count)], dtype)


def _store_local(core: Core, word: Instruction, mask: Mask) -> None:
    lanes = _chosen(core, mask)
    size, values = _stored(core, word, lanes)
    places = _local_places(core, word, lanes, size * len(values))
    data = np.stack(values, axis=1).view(np.uint8).reshape(len(lanes), -1)
    columns = places[:, None] + np.arange(data.shape[1])
    core.memories.local[(lanes + core.first)[:, None], columns] = data


def _constant(core: Core, word: Instruction, mask: Mask) -> None:
    uniform = word.uniform
    dtype, count = _form(word)
    if not uniform and word.field(24, 8) != 255:
        raise UnsupportedError("an indexed load of a constant")
    size = dtype.itemsize * count
    data = np.frombuffer(core.constant(word.field(54, 5), word.field(38, 16), size), dtype=dtype)
    for i in range(count):
        value = np.full(core.lanes, data[i].astype(np.int64).astype(np.uint32), dtype=np.uint32)
        core.write(word.field(16, 6 if uniform else 8) + i, value, mask, uniform=uniform)


def _fence(core: Core, _: Instruction, mask: Mask) -> None:
    """MEMBAR: what the lanes wrote, everybody sees from here on."""
    core.memories.fenced[_chosen(core, mask) + core.first] = True


def _arrive(core: Core, word: Instruction, mask: Mask) -> None:
    """UCGABAR_ARV: at the barrier of the cluster. With no fence before it nobody sees what the lanes wrote."""
    if word.field(0, 12) != UCGABAR_ARRIVE:
        raise UnsupportedError("this word of the barrier of a cluster")
    lanes = _chosen(core, mask) + core.first
    core.memories.clusters.arrive(lanes, releases=bool(core.memories.fenced[lanes].all()))


def _which_lanes(core: Core, word: Instruction, mask: Mask) -> None:
    """BMOV: which lanes of a warp are to meet again, in a register that is only put back."""
    core.write(word.to, np.zeros(core.lanes, dtype=np.uint32), mask)


def _nothing(_: Core, __: Instruction, ___: Mask) -> None:
    """What tells which lanes of a warp go on together: here lanes meet again by themselves."""


ACCESSES: Final[dict[str, Run]] = {
    "ULDC": _constant,
    "NOP": _nothing,
    "DEPBAR": _wait_for_groups,
    "BSYNC": _nothing,
    "BREAK": _nothing,
    "BSSY": _nothing,
    "WARPSYNC": _nothing,
    "BMOV": _which_lanes,
    "BMOV.B": _nothing,
    "LD": _load_generic,
    "LDG": _load_global,
    "LDC": _constant,
    "LDL": _load_local,
    "LDS": _load_shared,
    "STG": _store_global,
    "STL": _store_local,
    "STS": _store_shared,
    "CCTL": _nothing,
    "MEMBAR": _fence,
    "ERRBAR": _nothing,
    "LDGSTS": _copy,
    "LDGDEPBAR": _end_group,
    "UCGABAR": _arrive,
}
"""By the name of the opcode."""

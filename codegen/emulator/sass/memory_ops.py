"""Words that load, store, copy and synchronise."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from codegen.emulator.alu.arithmetic import Lanes, Mask
from codegen.emulator.faults import FaultError, UnsupportedError
from codegen.emulator.sass.integers import WINDOW_HIGH, Run
from codegen.emulator.sass.state import Instruction, State
from codegen.sass.isa.encoding import ACCESS_SIZES
from codegen.sass.isa.opcodes import UCGABAR_ARRIVE

_RANK_SHIFT, _WITHIN_BLOCK = np.uint32(24), np.uint32(0xFFFFFF)
"""An address of shared memory has the block's rank in its cluster, then the address within the block."""
_32 = np.uint64(32)
_SCALES: Final = (0, 2, 3, 4)
"""By the bits for [R], [R.X4], [R.X8] and [R.X16]: the shift of the register in a shared address."""
STACK_END: Final = 0x10000
"""The value of c[0x0][0x28], from which stacks grow downwards."""


def _chosen(state: State, mask: Mask) -> NDArray[np.intp]:
    return np.arange(state.lanes) if mask is None else np.flatnonzero(mask)


def _access_size(word: Instruction) -> tuple[np.dtype[np.generic], int]:
    number = word.field(73, 3)
    if number >= len(ACCESS_SIZES):
        raise UnsupportedError("an access of this size")
    return np.dtype(ACCESS_SIZES[number].element), ACCESS_SIZES[number].registers


def _global_addresses(state: State, word: Instruction, lanes: NDArray[np.intp], offset: int) -> Lanes:
    number = word.field(24, 8)
    if not word.field(word.architecture.copies.address if word.kind.name == "LDGSTS" else 72) or number == 255:
        raise UnsupportedError("a global access without a 64-bit address")
    address = _pair(state, number, lanes) + np.uint64(offset & (1 << 64) - 1)
    if word.field(91) and not word.architecture.descriptors:
        uniform = word.field(32 if word.kind.name == "LDG" else 64, 6)
        address = address + _pair(state, uniform, lanes, uniform=True)
    return address


def _pair(state: State, number: int, lanes: NDArray[np.intp], *, uniform: bool = False) -> Lanes:
    """The 64 bits of two registers."""
    low, high = (state.read(each, uniform=uniform)[lanes] for each in (number, number + 1))
    return high.astype(np.uint64) << _32 | low


def _shared_addresses(state: State, word: Instruction, lanes: NDArray[np.intp]) -> Lanes:
    scaled = state.read(word.field(24, 8))[lanes] << np.uint32(_SCALES[word.field(78, 2)])
    address = scaled + np.uint32(word.signed(40, 24) & 0xFFFFFFFF)
    if word.field(91):
        address = address + state.read(word.field(32 if word.kind.name == "LDS" else 64, 6), uniform=True)[lanes]
    return _own_addresses(state, address, lanes)


def _own_addresses(state: State, address: Lanes, lanes: NDArray[np.intp]) -> Lanes:
    """Addresses within the block's own shared memory: the rank in them is checked and removed."""
    rank = state.special["%cluster_ctarank"][state.first : state.first + state.lanes][lanes]
    if (other := np.flatnonzero(address >> _RANK_SHIFT != rank)).size:
        first = int(other[0])
        said = int(address[first] >> _RANK_SHIFT)
        raise FaultError(int(lanes[first]) + state.first, f"shared memory of rank {said} in rank {int(rank[first])}")
    return (address & _WITHIN_BLOCK).astype(np.uint64)


def _load_generic(state: State, word: Instruction, mask: Mask) -> None:
    """LD: supported only for the shared memory of a block of the cluster."""
    lanes, (dtype, count) = _chosen(state, mask), _access_size(word)
    addresses = _global_addresses(state, word, lanes, word.field(32, 23))
    if (elsewhere := np.flatnonzero(addresses >> _32 != WINDOW_HIGH)).size:
        address = int(addresses[elsewhere[0]])
        raise FaultError(
            int(lanes[elsewhere[0]]) + state.first, f"{address:#x}, which is not an address of shared memory"
        )
    low, clusters = addresses.astype(np.uint32), state.memories.clusters
    mapped = clusters.mapped(low & _WITHIN_BLOCK, low >> _RANK_SHIFT, lanes + state.first)
    values = clusters.load(mapped, lanes + state.first, dtype.itemsize, count)
    _put(state, word, lanes, values, dtype)


def _put(
    state: State, word: Instruction, lanes: NDArray[np.intp], values: list[Lanes], to: np.dtype[np.generic]
) -> None:
    mask = np.zeros(state.lanes, dtype=np.bool_)
    mask[lanes] = True
    for i, value in enumerate(values):
        whole = np.zeros(state.lanes, dtype=np.uint32)
        whole[lanes] = value.view(to).astype(np.int64).astype(np.uint32)
        state.write(word.to + i if word.to != 255 else 255, whole, mask)


def _load_global(state: State, word: Instruction, mask: Mask) -> None:
    lanes, (dtype, count) = _chosen(state, mask), _access_size(word)
    addresses = _global_addresses(state, word, lanes, word.signed(40, 24))
    values = state.memories.buffers.load(addresses, lanes + state.first, dtype.itemsize, count)
    _put(state, word, lanes, values, dtype)


def _load_shared(state: State, word: Instruction, mask: Mask) -> None:
    lanes, (dtype, count) = _chosen(state, mask), _access_size(word)
    undefined: list[tuple[int, NDArray[np.intp]]] = []

    def leave_undefined(element: int, positions: NDArray[np.intp]) -> bool:
        undefined.append((element, lanes[positions]))
        return True

    addresses = _shared_addresses(state, word, lanes)
    values = state.memories.shared.load(addresses, lanes + state.first, dtype.itemsize, count, leave_undefined)
    _put(state, word, lanes, values, dtype)
    for element, of_lanes in undefined:
        state.leave_undefined(word.to + element, of_lanes)


def _stored(state: State, word: Instruction, lanes: NDArray[np.intp]) -> tuple[int, list[Lanes]]:
    dtype, count = _access_size(word)
    number = word.field(32, 8)
    unsigned = np.dtype(f"u{dtype.itemsize}")
    return dtype.itemsize, [
        state.read(number if number == 255 else number + i)[lanes].astype(unsigned) for i in range(count)
    ]


def _store_global(state: State, word: Instruction, mask: Mask) -> None:
    lanes = _chosen(state, mask)
    addresses = _global_addresses(state, word, lanes, word.signed(40, 24))
    size, values = _stored(state, word, lanes)
    state.memories.buffers.store(addresses, lanes + state.first, size, values)


def _store_shared(state: State, word: Instruction, mask: Mask) -> None:
    lanes = _chosen(state, mask)
    size, values = _stored(state, word, lanes)
    state.memories.fenced[lanes + state.first] = False
    state.memories.shared.store(_shared_addresses(state, word, lanes), lanes + state.first, size, values)


def _copy(state: State, word: Instruction, mask: Mask) -> None:
    """LDGSTS: copies from global to shared memory; zeros where its predicate is false."""
    lanes, size = _chosen(state, mask), 4 << word.field(word.architecture.copies.size, 2)
    if size > 16:
        raise UnsupportedError("a copy of more than 16 bytes")
    target = state.read(word.to)[lanes] + np.uint32(word.signed(44, 20) & 0xFFFFFFFF)
    wanted = np.where(word.input_predicate(state)[lanes], np.uint32(size), np.uint32(0))
    source = _global_addresses(state, word, lanes, word.signed(32, 12))
    # A lane that copies nothing may have any address.
    words = state.memories.buffers.load_padded(np.where(wanted > 0, source, 0), lanes + state.first, wanted, size)
    state.memories.copies.issue(lanes + state.first, _own_addresses(state, target, lanes), words)


def _end_group(state: State, _: Instruction, mask: Mask) -> None:
    state.memories.copies.commit(_chosen(state, mask) + state.first)


def _wait_for_groups(state: State, word: Instruction, mask: Mask) -> None:
    """DEPBAR.LE: waits until at most the given number of copy groups is in flight."""
    if not word.field(47):
        raise UnsupportedError("DEPBAR without a number")
    state.memories.copies.wait(_chosen(state, mask) + state.first, word.field(38, 6))


def _local_places(state: State, word: Instruction, lanes: NDArray[np.intp], size: int) -> NDArray[np.int64]:
    """The offset in each lane's stack."""
    address = state.read(word.field(24, 8))[lanes] + np.uint32(word.signed(40, 24) & 0xFFFFFFFF)
    end = state.memories.local.shape[1]
    places: NDArray[np.int64] = address.astype(np.int64) - (STACK_END - end)
    wrong = np.flatnonzero((places < 0) | (places + size > end) | (places % size > 0))
    if wrong.size:
        raise FaultError(int(lanes[wrong[0]]) + state.first, f"byte {int(places[wrong[0]])} of the stack")
    return places


def _load_local(state: State, word: Instruction, mask: Mask) -> None:
    lanes, (dtype, count) = _chosen(state, mask), _access_size(word)
    places = _local_places(state, word, lanes, dtype.itemsize * count)
    rows = state.memories.local[lanes + state.first]
    bytes_of = places[:, None] + np.arange(dtype.itemsize * count)
    data = np.ascontiguousarray(np.take_along_axis(rows, bytes_of, axis=1)).view(f"u{dtype.itemsize}")
    _put(state, word, lanes, [np.ascontiguousarray(data[:, i]) for i in range(count)], dtype)


def _store_local(state: State, word: Instruction, mask: Mask) -> None:
    lanes = _chosen(state, mask)
    size, values = _stored(state, word, lanes)
    places = _local_places(state, word, lanes, size * len(values))
    data = np.stack(values, axis=1).view(np.uint8).reshape(len(lanes), -1)
    columns = places[:, None] + np.arange(data.shape[1])
    state.memories.local[(lanes + state.first)[:, None], columns] = data


def _constant(state: State, word: Instruction, mask: Mask) -> None:
    uniform = word.uniform
    dtype, count = _access_size(word)
    if not uniform and word.field(24, 8) != 255:
        raise UnsupportedError("an indexed load of a constant")
    size = dtype.itemsize * count
    offset = word.field(37, 17) if word.kind.name == "LDCU" else word.field(38, 16)
    data = np.frombuffer(state.constant(word.field(54, 5), offset, size), dtype=dtype)
    for i in range(count):
        value = np.full(state.lanes, data[i].astype(np.int64).astype(np.uint32), dtype=np.uint32)
        state.write(word.field(16, 6 if uniform else 8) + i, value, mask, uniform=uniform)


def _fence(state: State, _: Instruction, mask: Mask) -> None:
    """MEMBAR: other blocks may see what the lanes wrote before."""
    state.memories.fenced[_chosen(state, mask) + state.first] = True


def _arrive(state: State, word: Instruction, mask: Mask) -> None:
    """UCGABAR_ARV: arrives at the cluster barrier. Without a fence, other blocks do not see what the lanes wrote."""
    if word.field(0, 12) != UCGABAR_ARRIVE:
        raise UnsupportedError("this word of the cluster barrier")
    lanes = _chosen(state, mask) + state.first
    state.memories.clusters.arrive(lanes, releases=bool(state.memories.fenced[lanes].all()))


def _which_lanes(state: State, word: Instruction, mask: Mask) -> None:
    """BMOV: saves a convergence barrier to a register or another barrier, which is only ever restored."""
    if not word.field(11):
        state.write(word.to, np.zeros(state.lanes, dtype=np.uint32), mask)


def _nothing(_: State, __: Instruction, ___: Mask) -> None:
    """Words without an effect here, such as those that make diverged lanes meet: lanes meet by themselves."""


MEMORY_OPS: Final[dict[str, Run]] = {
    "ULDC": _constant,
    "LDCU": _constant,
    "ACQBULK": _nothing,
    "NOP": _nothing,
    "PREEXIT": _nothing,
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

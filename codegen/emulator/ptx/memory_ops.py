"""The steps that reach memory: loads, stores and asynchronous copies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
from numpy.typing import NDArray

from codegen.emulator.alu.arithmetic import DTYPES, PLAIN, Lanes
from codegen.emulator.faults import FaultError, UnsupportedError
from codegen.emulator.memory.global_memory import GlobalMemory, Selection
from codegen.emulator.memory.shared_memory import SharedMemory
from codegen.emulator.ptx.state import Machine, Mask, Step, expect, selected
from codegen.ptx.instruction import Address, Immediate, Operand, Register, Symbol, Vector

_SPACES: Final = {
    "global": "global",
    "shared": "shared",
    "shared::cta": "shared",
    "shared::cluster": "cluster",
    "param": "param",
}
_HINTS: Final = {"nc", "weak", "volatile", "ca", "cg", "cs", "cv", "lu", "wb", "wt"}
_ORDERS: Final = {"acquire", "release", "relaxed", "cta", "gpu"}
"""Who sees an access and when: here everybody sees every access in order."""
_HINT_PREFIXES: Final = ("L1::", "L2::64B", "L2::128B", "L2::256B", "L2::evict")
"""Cache hints, which change no result; `L2::cache_hint` is none of them, as it takes an operand."""
_POLICY: Final = "L2::cache_hint"
"""Suffix of copies whose last operand says how L2 treats the data."""


def load_step(machine: Machine, qualifiers: list[str], kind: str, operands: tuple[Operand, ...]) -> Step:
    """`ld` from global, shared or parameter space."""
    space, count, size = _form(qualifiers, kind)
    target, source = expect(operands, 2)
    rows = [machine.registers.destination(each, kind, widening=True) for each in _elements(target, count)]
    dtype = DTYPES[kind]
    if space == "param":
        values = _parameter(machine, source, count * size).view(dtype)
        return lambda mask: _assign(rows, values, selected(mask))
    memory = machine.clusters if space == "cluster" else _memory(machine, space)
    addresses = _addresses(machine, source, space)

    def step(mask: Mask) -> None:
        lanes = selected(mask)
        loaded = memory.load(addresses(lanes), machine.among_all(lanes), size, count)
        _assign(rows, [value.view(dtype) for value in loaded], lanes)

    return step


def store_step(machine: Machine, qualifiers: list[str], kind: str, operands: tuple[Operand, ...]) -> Step:
    """`st` to global or shared space."""
    space, count, size = _form(qualifiers, kind)
    target, source = expect(operands, 2)
    values = [
        np.broadcast_to(machine.registers.source(each, kind, narrowing=True).view(f"u{size}"), machine.lanes)
        for each in _elements(source, count)
    ]
    memory, addresses = _memory(machine, space), _addresses(machine, target, space)

    def step(mask: Mask) -> None:
        lanes = selected(mask)
        memory.store(addresses(lanes), machine.among_all(lanes), size, [value[lanes] for value in values])

    return step


def reduce_step(machine: Machine, qualifiers: list[str], kind: str, operands: tuple[Operand, ...]) -> Step:
    """`red.add` to global or shared space: lanes that add to one address do so one after another."""
    space, _, size = _form(qualifiers, kind)
    target, source = expect(operands, 2)
    values = np.broadcast_to(machine.registers.source(source, kind), machine.lanes)
    memory, addresses = _memory(machine, space), _addresses(machine, target, space)

    def step(mask: Mask) -> None:
        for lane in np.arange(machine.lanes)[selected(mask)]:
            lanes = np.array([lane])
            [before] = memory.load(addresses(lanes), machine.among_all(lanes), size, 1)
            after = before.view(DTYPES[kind]) + values[lanes]
            memory.store(addresses(lanes), machine.among_all(lanes), size, [after.view(f"u{size}")])

    return step


def map_step(machine: Machine, operands: tuple[Operand, ...]) -> Step:
    """`mapa.shared::cluster.u32`: where an address is in the shared memory of another block of the cluster."""
    target, *rest = expect(operands, 3)
    row = machine.registers.destination(target, "u32")
    address, rank = (np.broadcast_to(machine.registers.source(each, "u32"), machine.lanes) for each in rest)

    def step(mask: Mask) -> None:
        lanes = selected(mask)
        row[lanes] = machine.clusters.mapped(address[lanes], rank[lanes], machine.among_all(lanes))

    return step


def async_copy_step(machine: Machine, parts: list[str], operands: tuple[Operand, ...]) -> Step:
    """`cp.async` and what commits it and waits for it."""
    copies = machine.copies
    match parts:
        case ["commit_group"]:
            return lambda mask: copies.commit(machine.among_all(selected(mask)))
        case ["wait_all"]:
            return lambda mask: copies.wait_all(machine.among_all(selected(mask)))
        case ["wait_group"]:
            (keep,) = expect(operands, 1)
            groups = _literal(keep)
            return lambda mask: copies.wait(machine.among_all(selected(mask)), groups)
        case ["ca" | "cg", "shared" | "shared::cta", "global", *hints]:
            if _POLICY in hints:
                hints, operands = [hint for hint in hints if hint != _POLICY], operands[:-1]
            if all(hint.startswith(_HINT_PREFIXES) for hint in hints):
                return _async_copy(machine, operands)
    raise UnsupportedError("the emulator does not know this instruction")


def _async_copy(machine: Machine, operands: tuple[Operand, ...]) -> Step:
    target, source, size_operand, *rest = operands
    size = _literal(size_operand)
    if size not in (4, 8, 16) or len(rest) > 1:
        raise UnsupportedError(f"a copy of {size} bytes with {len(operands)} operands")
    into, out_of = _addresses(machine, target, "shared"), _addresses(machine, source, "global")
    wanted = np.broadcast_to(machine.registers.source(rest[0] if rest else Immediate(size), "u32"), machine.lanes)

    def step(mask: Mask) -> None:
        lanes = np.arange(machine.lanes) if mask is None else np.flatnonzero(mask)
        everywhere = lanes + machine.first
        words = fetched(machine.buffers, out_of(lanes), everywhere, wanted[lanes], size)
        machine.copies.issue(everywhere, into(lanes), words)

    return step


def fetched(
    buffers: GlobalMemory, addresses: Lanes, lanes: NDArray[np.intp], wanted: Lanes, size: int
) -> NDArray[np.uint32]:
    """What a copy brings, [lanes, words]: the first `wanted` bytes of each lane, the others zero."""
    if (odd := np.flatnonzero((addresses & np.uint64(size - 1)) | (wanted > size))).size:
        address, bytes_wanted = int(addresses[odd[0]]), int(wanted[odd[0]])
        raise FaultError(
            int(lanes[odd[0]]), f"{bytes_wanted} of {size} bytes from {address:#x}: misaligned or too many"
        )
    words = np.zeros((len(lanes), size // 4), dtype=np.uint32)
    whole, partly = np.flatnonzero(wanted == size), np.flatnonzero((wanted > 0) & (wanted < size))
    element = min(size, 8)
    if whole.size:
        loaded = buffers.load(addresses[whole], lanes[whole], element, size // element)
        words[whole] = np.stack(loaded, axis=1).view(np.uint32)
    for byte in range(size if partly.size else 0):
        reading = partly[wanted[partly] > byte]
        if reading.size:
            (loaded_bytes,) = buffers.load(addresses[reading] + np.uint64(byte), lanes[reading], 1, 1)
            words.view(np.uint8)[reading, byte] = loaded_bytes
    return words


def _form(qualifiers: list[str], kind: str) -> tuple[str, int, int]:
    """State space, elements, and bytes of an element."""
    spaces = [_SPACES[each] for each in qualifiers if each in _SPACES]
    counts = [int(each[1]) for each in qualifiers if each in ("v2", "v4")]
    for each in qualifiers:
        if (
            each not in _SPACES
            and each not in _HINTS
            and each not in _ORDERS
            and each not in ("v2", "v4")
            and not each.startswith(_HINT_PREFIXES)
        ):
            raise UnsupportedError(f"the emulator does not know .{each}")
    if len(spaces) != 1 or len(counts) > 1 or kind not in (*PLAIN, "b8", "u8", "s8"):
        raise UnsupportedError("the emulator knows loads and stores that name one state space and a type")
    return spaces[0], counts[0] if counts else 1, DTYPES[kind].itemsize


def _elements(operand: Operand, count: int) -> tuple[Operand, ...]:
    elements = operand.elements if isinstance(operand, Vector) else (operand,)
    return expect(elements, count)


def _literal(operand: Operand) -> int:
    if not isinstance(operand, Immediate):
        raise UnsupportedError("a number is needed here")
    return operand.value


def _parameter(machine: Machine, operand: Operand, size: int) -> NDArray[np.uint8]:
    if isinstance(operand, Address) and isinstance(operand.base, Symbol):
        data = machine.parameters.get(operand.base.name, b"")[operand.offset :][:size]
        if len(data) == size and operand.offset >= 0:
            return np.frombuffer(data, dtype=np.uint8)
    raise UnsupportedError("no such parameter, or not as many bytes")


def _memory(machine: Machine, space: str) -> GlobalMemory | SharedMemory:
    if space == "param":
        raise UnsupportedError("parameters are read only")
    if space == "cluster":
        raise UnsupportedError("the emulator knows no stores to the shared memory of other blocks")
    return machine.buffers if space == "global" else machine.shared


def _addresses(machine: Machine, operand: Operand, space: str) -> Callable[[Selection], Lanes]:
    """Computes the addresses of the chosen lanes."""
    if not isinstance(operand, Address):
        raise UnsupportedError("an address is needed here")
    base = operand.base if operand.base is not None else Immediate(0)
    kind = "u64"
    if space in ("shared", "cluster") and isinstance(base, Register):
        kind = f"u{8 * machine.registers.row(base.name).dtype.itemsize}"
    row = np.broadcast_to(machine.registers.source(base, kind), machine.lanes)
    offset = DTYPES[kind].type(operand.offset % (1 << (8 * DTYPES[kind].itemsize)))
    return lambda lanes: row[lanes] + offset


def _assign(rows: list[Lanes], values: list[Lanes] | Lanes, lanes: Selection) -> None:
    for row, value in zip(rows, values, strict=True):
        row[lanes] = value

"""Steps of PTX instructions that access memory: loads, stores, reductions and asynchronous copies."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

import numpy as np
from numpy.typing import NDArray

from codegen.emulator.alu.arithmetic import DTYPES, PLAIN, Lanes, Mask
from codegen.emulator.faults import UnsupportedError
from codegen.emulator.memory.global_memory import GlobalMemory, Selection
from codegen.emulator.memory.shared_memory import SharedMemory
from codegen.emulator.ptx.state import State, Step, expect, selected
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
"""Memory orders and scopes, which change nothing here: all lanes see every access in order."""
_HINT_PREFIXES: Final = ("L1::", "L2::64B", "L2::128B", "L2::256B", "L2::evict")
"""Cache hints without an operand, which change no result."""
_POLICY: Final = "L2::cache_hint"
"""A cache hint with an operand: the last one of a copy."""


def load_step(state: State, qualifiers: list[str], kind: str, operands: tuple[Operand, ...], position: int) -> Step:
    """`ld` from global, shared or parameter space."""
    space, count, size = _form(qualifiers, kind)
    target, source = expect(operands, 2)
    elements = _elements(target, count)
    rows = [state.registers.destination(each, kind, widening=True) for each in elements]
    dtype = DTYPES[kind]
    if space == "param":
        values = _parameter(state, source, count * size).view(dtype)
        return lambda mask: _assign(rows, values, selected(mask))
    addresses = _addresses(state, source, space)
    if space == "shared":
        load: Callable[..., list[Lanes]] = partial(
            state.shared.load, spare=lambda i, _: _is_unread(state, position, elements[i])
        )
    else:
        load = (state.clusters if space == "cluster" else state.buffers).load

    def step(mask: Mask) -> None:
        lanes = selected(mask)
        loaded = load(addresses(lanes), state.among_all(lanes), size, count)
        _assign(rows, [value.view(dtype) for value in loaded], lanes)

    return step


def _is_unread(state: State, position: int, element: Operand) -> bool:
    return isinstance(element, Register) and not state.liveness.is_read_after(position, element.name)


def store_step(state: State, qualifiers: list[str], kind: str, operands: tuple[Operand, ...]) -> Step:
    """`st` to global or shared space."""
    space, count, size = _form(qualifiers, kind)
    target, source = expect(operands, 2)
    values = [
        np.broadcast_to(state.registers.source(each, kind, narrowing=True).view(f"u{size}"), state.lanes)
        for each in _elements(source, count)
    ]
    memory, addresses = _memory(state, space), _addresses(state, target, space)

    def step(mask: Mask) -> None:
        lanes = selected(mask)
        memory.store(addresses(lanes), state.among_all(lanes), size, [value[lanes] for value in values])

    return step


def reduce_step(state: State, qualifiers: list[str], kind: str, operands: tuple[Operand, ...]) -> Step:
    """`red.add` to global or shared space, one lane after another."""
    space, _, size = _form(qualifiers, kind)
    target, source = expect(operands, 2)
    values = np.broadcast_to(state.registers.source(source, kind), state.lanes)
    memory, addresses = _memory(state, space), _addresses(state, target, space)

    def step(mask: Mask) -> None:
        for lane in np.arange(state.lanes)[selected(mask)]:
            lanes = np.array([lane])
            [before] = memory.load(addresses(lanes), state.among_all(lanes), size, 1)
            after = before.view(DTYPES[kind]) + values[lanes]
            memory.store(addresses(lanes), state.among_all(lanes), size, [after.view(f"u{size}")])

    return step


def map_step(state: State, operands: tuple[Operand, ...]) -> Step:
    """`mapa.shared::cluster.u32`: the address of a place in the shared memory of another block of the cluster."""
    target, *rest = expect(operands, 3)
    row = state.registers.destination(target, "u32")
    address, rank = (np.broadcast_to(state.registers.source(each, "u32"), state.lanes) for each in rest)

    def step(mask: Mask) -> None:
        lanes = selected(mask)
        row[lanes] = state.clusters.mapped(address[lanes], rank[lanes], state.among_all(lanes))

    return step


def async_copy_step(state: State, parts: list[str], operands: tuple[Operand, ...]) -> Step:
    """`cp.async`, and the instructions that commit it and wait for it."""
    copies = state.copies
    match parts:
        case ["commit_group"]:
            return lambda mask: copies.commit(state.among_all(selected(mask)))
        case ["wait_all"]:
            return lambda mask: copies.wait_all(state.among_all(selected(mask)))
        case ["wait_group"]:
            (keep,) = expect(operands, 1)
            groups = _literal(keep)
            return lambda mask: copies.wait(state.among_all(selected(mask)), groups)
        case ["ca" | "cg", "shared" | "shared::cta", "global", *hints]:
            if _POLICY in hints:
                hints, operands = [hint for hint in hints if hint != _POLICY], operands[:-1]
            if all(hint.startswith(_HINT_PREFIXES) for hint in hints):
                return _async_copy(state, operands)
    raise UnsupportedError("the emulator does not know this instruction")


def _async_copy(state: State, operands: tuple[Operand, ...]) -> Step:
    target, source, size_operand, *rest = operands
    size = _literal(size_operand)
    if size not in (4, 8, 16) or len(rest) > 1:
        raise UnsupportedError(f"a copy of {size} bytes with {len(operands)} operands")
    into, out_of = _addresses(state, target, "shared"), _addresses(state, source, "global")
    wanted = np.broadcast_to(state.registers.source(rest[0] if rest else Immediate(size), "u32"), state.lanes)

    def step(mask: Mask) -> None:
        lanes = np.arange(state.lanes) if mask is None else np.flatnonzero(mask)
        everywhere = lanes + state.first
        words = state.buffers.load_padded(out_of(lanes), everywhere, wanted[lanes], size)
        state.copies.issue(everywhere, into(lanes), words)

    return step


def _form(qualifiers: list[str], kind: str) -> tuple[str, int, int]:
    """State space, number of elements, and bytes of an element."""
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
        raise UnsupportedError("the emulator supports loads and stores of one state space and a known type only")
    return spaces[0], counts[0] if counts else 1, DTYPES[kind].itemsize


def _elements(operand: Operand, count: int) -> tuple[Operand, ...]:
    elements = operand.elements if isinstance(operand, Vector) else (operand,)
    return expect(elements, count)


def _literal(operand: Operand) -> int:
    if not isinstance(operand, Immediate):
        raise UnsupportedError("expected a number")
    return operand.value


def _parameter(state: State, operand: Operand, size: int) -> NDArray[np.uint8]:
    if isinstance(operand, Address) and isinstance(operand.base, Symbol):
        data = state.parameters.get(operand.base.name, b"")[operand.offset :][:size]
        if len(data) == size and operand.offset >= 0:
            return np.frombuffer(data, dtype=np.uint8)
    raise UnsupportedError("no such parameter, or fewer bytes")


def _memory(state: State, space: str) -> GlobalMemory | SharedMemory:
    if space == "param":
        raise UnsupportedError("parameters are read-only")
    if space == "cluster":
        raise UnsupportedError("the emulator does not support stores to the shared memory of other blocks")
    return state.buffers if space == "global" else state.shared


def _addresses(state: State, operand: Operand, space: str) -> Callable[[Selection], Lanes]:
    """A function that computes the addresses of selected lanes."""
    if not isinstance(operand, Address):
        raise UnsupportedError("expected an address")
    base = operand.base if operand.base is not None else Immediate(0)
    kind = "u64"
    if space in ("shared", "cluster") and isinstance(base, Register):
        kind = f"u{8 * state.registers.row(base.name).dtype.itemsize}"
    row = np.broadcast_to(state.registers.source(base, kind), state.lanes)
    offset = DTYPES[kind].type(operand.offset % (1 << (8 * DTYPES[kind].itemsize)))
    return lambda lanes: row[lanes] + offset


def _assign(rows: list[Lanes], values: list[Lanes] | Lanes, lanes: Selection) -> None:
    for row, value in zip(rows, values, strict=True):
        row[lanes] = value

"""Steps of PTX instructions: functions that run an instruction for all lanes of a mask."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from codegen.emulator.alu.arithmetic import DTYPES, PLAIN, Lanes, Mask, Operation
from codegen.emulator.alu.operations import operation
from codegen.emulator.faults import FaultError, UnsupportedError
from codegen.emulator.ptx.memory_ops import async_copy_step, load_step, map_step, reduce_step, store_step
from codegen.emulator.ptx.state import State, Step, expect, selected
from codegen.ptx.instruction import Immediate, Instruction, Operand, Register, Symbol, Vector

SHARED_WINDOW: Final = 1 << 56
"""Generic address at which shared memory begins."""

WARP_LANES: Final = 32
_WHOLE_WARP: Final = Immediate(WARP_LANES - 1), Immediate(-1)

_WITHOUT_EFFECT = ("membar", "fence", "prefetch", "prefetchu", "createpolicy", "griddepcontrol")


def make_step(state: State, instruction: Instruction, position: int) -> Step:
    """The step of an instruction other than a branch, barrier or exit, and its place. Raises UnsupportedError."""
    step = _unguarded(state, instruction, position)
    if instruction.predicate is None:
        return step
    holds = guard(state, instruction.predicate)
    opcode, counts, lanes = instruction.opcode, state.predicated, state.lanes

    def guarded(mask: Mask) -> None:
        chosen = holds() if mask is None else holds() & mask
        if count := int(np.count_nonzero(chosen)):
            counts[opcode] += count
            step(None if count == lanes else chosen)

    return guarded


def guard(state: State, predicate: Register) -> Callable[[], Lanes]:
    """The lanes where a predicate holds, as a copy, since the instruction may write the predicate."""
    row = state.registers.source(Register(predicate.name), "pred")
    return row.__invert__ if predicate.negated else row.copy


def _unguarded(state: State, instruction: Instruction, position: int) -> Step:
    opcode, operands = instruction.opcode, instruction.operands
    if opcode == "fma.rn.f32":
        return _fused(state, operands)
    if known := operation(opcode):
        return _operation(state, known, operands, convert=opcode.startswith("cvt."))
    match opcode.split("."):
        case ["mov", kind] if kind in (*PLAIN, "pred"):
            return _move(state, kind, operands)
        case ["ld", *qualifiers, kind]:
            return load_step(state, qualifiers, kind, operands, position)
        case ["st", *qualifiers, kind]:
            return store_step(state, qualifiers, kind, operands)
        case ["red", *qualifiers, "add", "u32" as kind]:
            return reduce_step(state, qualifiers, kind, operands)
        case ["cvta", *parts, "u64"]:
            return _generic_address(state, parts, operands)
        case ["cp", "async", *parts]:
            return async_copy_step(state, parts, operands)
        case ["shfl", "sync", "bfly", "b32"]:
            return _shuffle(state, operands)
        case ["mapa", "shared::cluster", "u32"]:
            return map_step(state, operands)
        case ["barrier", "cluster", "arrive", *how] if set(how) <= {"release", "relaxed", "aligned"}:
            releases = "relaxed" not in how
            return lambda mask: state.clusters.arrive(state.among_all(selected(mask)), releases=releases)
        case [name, *_] if name in _WITHOUT_EFFECT:
            return lambda _: None
    raise UnsupportedError("the emulator does not know this instruction")


def _where(mask: Mask, row: Lanes) -> Lanes | bool:
    """The mask in a shape that broadcasts to a row; a row of pairs is [lanes, 2]."""
    return True if mask is None else mask.reshape(-1, *(1,) * (row.ndim - 1))


def _fused(state: State, operands: tuple[Operand, ...]) -> Step:
    target, *rest = expect(operands, 4)
    row = state.registers.destination(target, "f32")
    a, b, c = (state.registers.source(each, "f32") for each in rest)
    if np.ndim(b) == 0:
        b = np.float64(b)
    fused = state.fused

    def step(mask: Mask) -> None:
        if mask is None:
            row[...] = fused(a, b, c)
        else:
            np.copyto(row, fused(a, b, c), where=mask)

    return step


def _operation(state: State, known: Operation, operands: tuple[Operand, ...], *, convert: bool) -> Step:
    target, *rest = expect(operands, 1 + len(known.sources))
    row = state.registers.destination(target, known.result, widening=convert)
    compute = known.compute
    if known.combines and isinstance(last := rest[-1], Register) and last.negated:
        rest[-1] = Register(last.name)
        compute = _with_last_inverted(compute)
    sources = [
        state.registers.source(each, kind, narrowing=convert) for each, kind in zip(rest, known.sources, strict=True)
    ]
    if isinstance(compute, np.ufunc) and row.dtype == DTYPES[known.result].base:
        in_place: Callable[..., object] = compute

        def direct(mask: Mask) -> None:
            if mask is None:
                in_place(*sources, out=row)
            else:
                in_place(*sources, out=row, where=_where(mask, row))

        return direct
    return lambda mask: np.copyto(row, compute(*sources), where=_where(mask, row))


def _with_last_inverted(compute: Callable[..., Lanes]) -> Callable[..., Lanes]:
    return lambda a, b, c: compute(a, b, ~c)


def _shuffle(state: State, operands: tuple[Operand, ...]) -> Step:
    """`shfl.sync.bfly.b32`: each lane gets the value of the lane whose number differs in the given bits."""
    target, source, distance, last, members = expect(operands, 5)
    if (last, members) != _WHOLE_WARP or state.shared.threads % WARP_LANES:
        raise UnsupportedError("only whole warps can exchange values")
    row = state.registers.destination(target, "b32")
    value, bits = (np.broadcast_to(state.registers.source(each, "b32"), state.lanes) for each in (source, distance))
    own = np.arange(state.lanes)

    def step(mask: Mask) -> None:
        other = own ^ (bits % WARP_LANES)
        if mask is not None and (apart := np.flatnonzero(mask & ~mask[other])).size:
            raise FaultError(state.first + int(apart[0]), "exchanges a value with an inactive lane")
        np.copyto(row, value[other], where=_where(mask, row))

    return step


def _move(state: State, kind: str, operands: tuple[Operand, ...]) -> Step:
    target, source = expect(operands, 2)
    if isinstance(target, Vector) or isinstance(source, Vector):
        return _pack_or_unpack(state, kind, target, source)
    row, value = state.registers.destination(target, kind), state.registers.source(source, kind)
    return lambda mask: np.copyto(row, value, where=_where(mask, row))


def _pack_or_unpack(state: State, kind: str, target: Operand, source: Operand) -> Step:
    """`mov.b64 c, {a, b}` and its inverse; the first element is the lowest part."""
    vector = target if isinstance(target, Vector) else source
    single = source if isinstance(target, Vector) else target
    if not (isinstance(vector, Vector) and isinstance(single, Register) and DTYPES[kind].kind == "u"):
        raise UnsupportedError("only registers can be packed and unpacked")
    count, registers = len(vector.elements), state.registers
    part = f"b{8 * DTYPES[kind].itemsize // count}"
    if part not in DTYPES:
        raise UnsupportedError(f"{count} parts of .{kind}")
    whole = registers.source(single, kind).view(DTYPES[part])
    parts = [(i, each) for i, each in enumerate(vector.elements) if each != Symbol("_")]
    if vector is target:
        moves = [(registers.destination(each, part), whole[i::count]) for i, each in parts]
    else:
        moves = [(whole[i::count], registers.source(each, part)) for i, each in parts]

    def step(mask: Mask) -> None:
        for row, value in moves:
            np.copyto(row, value, where=_where(mask, row))

    return step


def _generic_address(state: State, parts: list[str], operands: tuple[Operand, ...]) -> Step:
    """`cvta`: a global address equals its generic address, a shared one is offset by SHARED_WINDOW."""
    distance = {"global": 0, "shared": SHARED_WINDOW}.get(parts[-1])
    if distance is None or parts[:-1] not in ([], ["to"]):
        raise UnsupportedError("only global and shared addresses can be converted")
    target, source = expect(operands, 2)
    row, value = state.registers.destination(target, "u64"), state.registers.source(source, "u64")
    change = np.uint64((-distance if parts[0] == "to" else distance) % (1 << 64))
    return lambda mask: np.copyto(row, value + change, where=_where(mask, row))

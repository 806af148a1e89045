"""Runs generated PTX on the CPU, all threads at once as NumPy arrays: verification without a GPU.

Every lane has its own program counter, its own registers and its block's shared memory. An error of the program
raises an EmulationError that names the line, the instruction, the thread and the reason:

- an access outside the arguments' arrays, or a misaligned one
- a barrier that only a part of a warp reaches
- shared memory that is read before it was written, before its `cp.async` was waited for, or without a barrier after
  another thread wrote it

Not detected: errors in code that none of the chosen blocks reaches; a thread that overwrites shared memory before
others have read it, as the lanes run in step; races in global memory, unless a random order (`interleaving`) shows
them. The bits of a NaN are NumPy's.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from codegen.emulator.alu.arithmetic import DTYPES
from codegen.emulator.alu.fused import FusedMultiplyAdd
from codegen.emulator.memory.clusters import Clusters
from codegen.emulator.memory.global_memory import GlobalMemory
from codegen.emulator.memory.grid import Dimensions, chosen_blocks, place, special_registers
from codegen.emulator.memory.shared_memory import BASE, AsyncCopies, SharedMemory
from codegen.emulator.ptx.liveness import Liveness
from codegen.emulator.ptx.random_schedule import InterleavedSchedule
from codegen.emulator.ptx.registers import Registers
from codegen.emulator.ptx.schedule import Schedule
from codegen.emulator.ptx.state import State
from codegen.errors import EmulationError
from codegen.ptx.module import Entry, Module, Parameter, parse_module

Argument = NDArray[Any] | int | float

INSTRUCTION_LIMIT: Final = 5_000_000
"""Instructions of one run, each over all its lanes, after which a loop counts as endless."""

_MEMORY_BYTES: Final = 1 << 30
"""Memory for the registers and shared memory of the blocks that run together."""


@dataclass(frozen=True)
class Trace:
    """The instructions that a run executed."""

    executed: Mapping[str, int]
    """Executions of each opcode with its suffixes, once for each thread whose predicate held."""
    threads: int


def run(
    ptx: str | bytes,
    grid: Dimensions,
    block: Dimensions,
    shared_bytes: int,
    arguments: Sequence[Argument],
    blocks: Sequence[Dimensions] | NDArray[Any] | None = None,
    kernel: str | None = None,
    instruction_limit: int = INSTRUCTION_LIMIT,
    interleaving: int | None = None,
) -> Trace:
    """Launches a kernel. Arrays are its pointers and are changed in place, numbers are its scalars.

    `shared_bytes` is the dynamic shared memory, `blocks` [n, 3] are the only blocks to run, `kernel` may be left out
    if the file has only one. `interleaving` is a seed: warps run in a random order drawn from it, which kernels whose
    warps wait for each other need. Raises PtxError for text that cannot be parsed, EmulationError for all else.
    """
    module = parse_module(ptx)
    entry = _entry(module, kernel)
    if entry.max_threads is not None and prod(block) > entry.max_threads:
        raise EmulationError(f"{entry.name} is compiled for {entry.max_threads} threads, the launch has {prod(block)}")
    chosen = chosen_blocks(grid, blocks, entry.cluster)
    of_cluster = prod(entry.cluster)
    buffers, parameters = _bind(entry, arguments)
    symbols, window_bytes = _layout(module, entry, shared_bytes)
    for variable in module.variables:
        if variable.numbers is not None:
            symbols[variable.name] = GlobalMemory.address(len(buffers))
            buffers.append(variable.numbers)
    of_block = prod(block) * _lane_bytes(entry) + 7 * window_bytes
    together = max(1, _MEMORY_BYTES // (of_cluster * of_block)) * of_cluster
    if interleaving is not None and together < len(chosen):
        raise EmulationError(f"only {together} of {len(chosen)} blocks fit in memory, but they may wait for each other")
    executed: Counter[str] = Counter()
    liveness = Liveness(entry)
    for start in range(0, len(chosen), together):
        indices = chosen[start : start + together]
        lanes = len(indices) * prod(block)
        shared = SharedMemory(window_bytes, len(indices), prod(block))
        special = special_registers(grid, block, indices)
        state = State(
            lanes=lanes,
            registers=Registers(entry.registers, special, symbols, lanes),
            parameters=parameters,
            buffers=GlobalMemory(buffers),
            shared=shared,
            copies=AsyncCopies(shared, lanes),
            fused=FusedMultiplyAdd(lanes),
            clusters=Clusters(of_cluster, lanes, shared),
            liveness=liveness,
        )
        with np.errstate(all="ignore"):
            given = state, entry, prod(block), partial(place, special)
            schedule = Schedule(*given) if interleaving is None else InterleavedSchedule(*given, interleaving)
            schedule.run(instruction_limit)
        executed += schedule.executed()
    return Trace(dict(executed), len(chosen) * prod(block))


def _entry(module: Module, kernel: str | None) -> Entry:
    names = ", ".join(module.entries) or "none"
    if kernel is not None and kernel not in module.entries:
        raise EmulationError(f"no kernel {kernel}; the file has: {names}")
    if kernel is None and len(module.entries) != 1:
        raise EmulationError(f"name the kernel to run; the file has: {names}")
    return module.entries[kernel] if kernel is not None else next(iter(module.entries.values()))


def _bind(entry: Entry, arguments: Sequence[Argument]) -> tuple[list[NDArray[Any]], dict[str, bytes]]:
    """The arrays by buffer number, and the bytes of each parameter by name."""
    if len(arguments) != len(entry.parameters):
        raise EmulationError(f"{entry.name} takes {len(entry.parameters)} arguments, {len(arguments)} were given")
    buffers: list[NDArray[Any]] = []
    parameters = {}
    for parameter, argument in zip(entry.parameters, arguments, strict=True):
        if isinstance(argument, np.ndarray):
            if not argument.flags.c_contiguous or parameter.type not in ("u64", "s64", "b64"):
                raise EmulationError(
                    f"argument {parameter.name}: an array must be contiguous and its parameter a pointer"
                )
            parameters[parameter.name] = struct.pack("<Q", GlobalMemory.address(len(buffers)))
            buffers.append(argument)
        else:
            parameters[parameter.name] = _scalar(parameter, argument)
    return buffers, parameters


def _scalar(parameter: Parameter, value: float) -> bytes:
    dtype = DTYPES.get(parameter.type)
    if dtype is None:
        raise EmulationError(f"argument {parameter.name}: parameters of type .{parameter.type} are unknown here")
    if dtype.kind == "f":
        return bytes(dtype.type(value).tobytes())
    if not isinstance(value, int | np.integer):
        raise EmulationError(
            f"argument {parameter.name}: {value!r} is not an integer, but the type is .{parameter.type}"
        )
    return (int(value) % (1 << 8 * dtype.itemsize)).to_bytes(dtype.itemsize, "little")


def _layout(module: Module, entry: Entry, shared_bytes: int) -> tuple[dict[str, int], int]:
    """Addresses of the shared variables, and the bytes of shared memory. Extern variables follow all others."""
    variables = [each for each in (*module.variables, *entry.variables) if each.space == "shared"]
    symbols, end = {}, 0
    for variable in sorted(variables, key=lambda each: each.extern):
        start = -(-end // variable.alignment) * variable.alignment
        symbols[variable.name] = BASE + start
        end = max(end, start) if variable.extern else start + variable.size_bytes
    return symbols, end + shared_bytes


def _lane_bytes(entry: Entry) -> int:
    return 64 + sum(DTYPES[kind].itemsize for kind in entry.registers.values() if kind in DTYPES)

"""Runs a cubin's words on the CPU, all threads at once as NumPy arrays: verification of machine code without a GPU.

It supports the instructions that ptxas uses in the farm's kernels, and refuses every other instruction and
every bit that it does not understand. Memory and its errors are those of the PTX emulator. Results arrive at once:
whether the words wait for them is checked by `codegen/sass/verify`.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Sequence
from math import prod
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from codegen.emulator.faults import FaultError, UnsupportedError
from codegen.emulator.memory.clusters import Clusters
from codegen.emulator.memory.global_memory import GlobalMemory
from codegen.emulator.memory.grid import Dimensions, chosen_blocks, place, special_registers
from codegen.emulator.memory.shared_memory import AsyncCopies, SharedMemory
from codegen.emulator.ptx.steps import WARP_LANES
from codegen.emulator.sass.floats import FLOATS
from codegen.emulator.sass.integers import INTEGERS, Run
from codegen.emulator.sass.memory_ops import MEMORY_OPS, STACK_END
from codegen.emulator.sass.state import Decoder, Instruction, Memories, State
from codegen.errors import EmulationError, UnsupportedCodeError
from codegen.sass.cubin import CubinFile
from codegen.sass.isa.architecture import ConstantPlaces
from codegen.sass.isa.architectures import ARCHITECTURES
from codegen.sass.isa.branches import branch_distances
from codegen.sass.isa.encoding import OPCODE, WORD_BYTES
from codegen.sass.isa.opcodes import BAR, BRA, BRA_UNIFORM, BRX, EXIT, UCGABAR_WAIT, UNIFORM_BRANCH

WORD_LIMIT: Final = 5_000_000
"""Words of one run, each over all its lanes, after which a loop counts as endless."""

_MEMORY_BYTES: Final = 1 << 30
_DONE: Final = 2**31 - 1
_WAITING: Final = 2**31 - 2
_BRANCHES: Final = (BRA, BRA_UNIFORM)
_CONTROL: Final = (*_BRANCHES, EXIT, BAR, BRX, UCGABAR_WAIT)
_PARAMETERS_AT, _PARAMETER, _FRAME_SIZE = 0x0A, 0x17, 0x11
"""Numbers of attributes of a cubin."""
_RUNS: Final[dict[str, Run]] = {**INTEGERS, **FLOATS, **MEMORY_OPS}


def run(
    cubin: CubinFile,
    grid: Dimensions,
    block: Dimensions,
    shared_bytes: int,
    arguments: Sequence[NDArray[Any] | int],
    blocks: Sequence[Dimensions] | NDArray[Any] | None = None,
    word_limit: int = WORD_LIMIT,
) -> None:
    """Launches the kernel. Arrays are its pointers and are changed in place, numbers are its int32s.

    `shared_bytes` is the dynamic shared memory, `blocks` [n, 3] are the only blocks to run. Raises EmulationError,
    which names the word, its opcode and the reason.
    """
    if (architecture := ARCHITECTURES.get(cubin.capability)) is None:
        supported = ", ".join(each.name for each in ARCHITECTURES.values())
        raise EmulationError(f"machine code for sm_{cubin.capability}: the emulator supports {supported}")
    chosen, of_cluster = chosen_blocks(grid, blocks, cubin.cluster), prod(cubin.cluster)
    buffers, constants, known = _constants(cubin, architecture.constants, grid, block, arguments)
    stack_bytes = _stack_bytes(cubin)
    of_block = prod(block) * (4 * cubin.registers + stack_bytes) + 6 * shared_bytes
    together = max(1, _MEMORY_BYTES // (of_cluster * of_block)) * of_cluster
    for start in range(0, len(chosen), together):
        indices = chosen[start : start + together]
        lanes = len(indices) * prod(block)
        shared = SharedMemory(shared_bytes, len(indices), prod(block), architecture.shared_base)
        stack = np.zeros((lanes, stack_bytes), dtype=np.uint8)
        copies, clusters = AsyncCopies(shared, lanes), Clusters(of_cluster, lanes, shared)
        fenced = np.zeros(lanes, dtype=np.bool_)
        memories = Memories(
            GlobalMemory(buffers), shared, copies, constants, known, cubin.literals, stack, clusters, fenced
        )
        special = special_registers(grid, block, indices)
        special["%cluster_ctarank"] = (np.arange(lanes) // prod(block) % of_cluster).astype(np.uint32)
        with np.errstate(all="ignore"):
            _Run(cubin, State(lanes, memories, special, architecture), prod(block)).until_all_ended(word_limit)


def is_known(arch: str) -> bool:
    """Whether the emulator runs cubins for an architecture, such as sm_90, or sm_90a without its own instructions."""
    return arch.rstrip("a") in {each.name for each in ARCHITECTURES.values()}


def _constants(
    cubin: CubinFile,
    places: ConstantPlaces,
    grid: Dimensions,
    block: Dimensions,
    arguments: Sequence[NDArray[Any] | int],
) -> tuple[list[NDArray[Any]], NDArray[np.uint8], NDArray[np.bool_]]:
    """The arrays by buffer number, constant bank 0, and which of its bytes are known."""
    attributes = cubin.attributes
    (first, size) = next(
        struct.unpack_from("<HH", each.data, 4) for each in attributes if each.number == _PARAMETERS_AT
    )
    parameters = sorted(struct.unpack("<IHHI", each.data)[1:] for each in attributes if each.number == _PARAMETER)
    if len(parameters) != len(arguments):
        raise EmulationError(f"{cubin.kernel} takes {len(parameters)} arguments, {len(arguments)} were given")
    data, known = np.zeros(first + size, dtype=np.uint8), np.zeros(first + size, dtype=np.bool_)

    def put(offset: int, value: bytes) -> None:
        data[offset : offset + len(value)] = np.frombuffer(value, dtype=np.uint8)
        known[offset : offset + len(value)] = True

    put(places.block, struct.pack("<III", *block))
    put(places.grid, struct.pack("<III", *grid))
    put(places.stack_pointer, struct.pack("<I", STACK_END))
    put(places.descriptor, bytes(8))
    buffers: list[NDArray[Any]] = []
    for (_, offset, _), argument in zip(parameters, arguments, strict=True):
        if isinstance(argument, np.ndarray):
            if not argument.flags.c_contiguous:
                raise EmulationError("an array argument must be contiguous")
            put(first + offset, struct.pack("<Q", GlobalMemory.address(len(buffers))))
            buffers.append(argument)
        else:
            put(first + offset, struct.pack("<i", argument))
    return buffers, data, known


def _stack_bytes(cubin: CubinFile) -> int:
    sizes = [struct.unpack_from("<I", each.data, 4)[0] for each in cubin.attributes if each.number == _FRAME_SIZE]
    return max(sizes, default=0)


class _Run:
    """Runs the lanes whose next word comes first in the code, so that diverged lanes meet again."""

    def __init__(self, cubin: CubinFile, state: State, threads: int) -> None:
        words = cubin.words
        self._kernel, self._state, self._threads = cubin.kernel, state, threads
        # Warps meet by the number of those that wait, each in its own code; a block with a part of a warp waits whole.
        self._together = threads if threads % WARP_LANES else WARP_LANES
        self._words = [low | high << 64 for low, high in words.tolist()]
        self._decoder, self._decoded = Decoder(state.architecture), dict[int, Instruction]()
        self._opcodes = OPCODE.get(words).tolist()
        self._distances = branch_distances(words, state.architecture.branch_pieces).tolist()
        controls = np.flatnonzero(np.isin(OPCODE.get(words), _CONTROL))
        targets = [i + 1 + self._distances[i] // WORD_BYTES for i in controls.tolist() if self._opcodes[i] in _BRANCHES]
        self._ends = sorted({*(controls + 1).tolist(), *(t for t in targets if 0 < t < len(words)), len(words)})
        """Ends of the basic blocks: after a control word, or before a branch target."""
        self._next: NDArray[np.int32] = np.zeros(state.lanes, dtype=np.int32)
        self._after_barrier: NDArray[np.int32] = np.zeros(state.lanes, dtype=np.int32)
        self._waits_for_cluster: NDArray[np.bool_] = OPCODE.get(words) == UCGABAR_WAIT

    def until_all_ended(self, limit: int) -> None:
        count = 0
        while (start := int(self._next.min(initial=_DONE))) != _DONE:
            if start == _WAITING:
                self._release()
                continue
            if not 0 <= start < len(self._words):
                raise EmulationError(f"{self._kernel}: a branch to word {start} of {len(self._words)}")
            end = self._ends[bisect_right(self._ends, start)]
            count += end - start
            if count > limit:
                raise EmulationError(f"{self._kernel}, word {start}: more than {limit} words were run, in a loop")
            self._run(start, end)

    def _run(self, start: int, end: int) -> None:
        """Runs the words from `start` to before `end`; only the last may be a control word."""
        active = self._next == start
        first, last = int(active.argmax()), len(active) - 1 - int(active[::-1].argmax())
        first, beyond = first // self._threads * self._threads, (last // self._threads + 1) * self._threads
        state, active = self._state.window(first, beyond), active[first:beyond]
        everyone = None if active.all() else active
        upcoming = self._next[first:beyond]
        for number in range(start, end):
            opcode = self._opcodes[number]
            try:
                if (word := self._decoded.get(number)) is None:
                    word = self._decoded[number] = self._decoder.decode(self._words[number])
                guard = word.guard(state)
                mask = everyone if guard is None else guard if everyone is None else guard & everyone
                if opcode in _CONTROL:
                    np.copyto(upcoming, np.int32(end), where=active)
                    self._go(number, first, beyond, active if mask is None else mask)
                    return
                if mask is None or mask.any():
                    _RUNS[word.kind.name](state, word, mask)
            except FaultError as fault:
                raise EmulationError(f"{self._at(number)}: {place(self._state.special, fault.lane)}: {fault}") from None
            except UnsupportedError as reason:
                raise UnsupportedCodeError(f"{self._at(number)}: {reason}") from None
        np.copyto(upcoming, np.int32(end), where=active)

    def _go(self, number: int, first: int, beyond: int, lanes: NDArray[np.bool_]) -> None:
        """Runs a branch, barrier or exit for the lanes whose guard holds."""
        upcoming = self._next[first:beyond]
        match self._opcodes[number]:
            case opcode if opcode in _BRANCHES:
                word = self._decoded[number]
                if bool(word.field(UNIFORM_BRANCH.first)) != (opcode == BRA_UNIFORM):
                    raise UnsupportedError("this condition of a branch")
                if opcode == BRA_UNIFORM:
                    window = self._state.window(first, beyond)
                    lanes = lanes & window.predicate(word.field(24, 3), negated=bool(word.field(27)), uniform=True)
                np.copyto(upcoming, np.int32(number + 1 + self._distances[number] // WORD_BYTES), where=lanes)
            case opcode if opcode == EXIT:
                np.copyto(upcoming, np.int32(_DONE), where=lanes)
                self._state.memories.clusters.end(self._next == _DONE)
            case opcode if opcode in (BAR, UCGABAR_WAIT):
                if opcode == UCGABAR_WAIT:
                    self._state.memories.clusters.check_wait(np.flatnonzero(lanes) + first)
                np.copyto(self._after_barrier[first:beyond], np.int32(number + 1), where=lanes)
                np.copyto(upcoming, np.int32(_WAITING), where=lanes)
            case _:
                raise UnsupportedError("a jump by a table")

    def _release(self) -> None:
        """Releases barriers when no lane can run. All waiting lanes of a warp must wait at one barrier."""
        waiting, clusters = self._next == _WAITING, self._state.memories.clusters
        of_cluster = waiting & self._waits_for_cluster[self._after_barrier - 1]
        if of_cluster.any() and (passing := clusters.passing(of_cluster, self._next == _DONE)).any():
            np.copyto(self._next, self._after_barrier, where=passing)
            return
        at = np.where(waiting, self._after_barrier, _WAITING).reshape(-1, self._together)
        foremost = at.min(axis=1, keepdims=True)
        if (elsewhere := np.flatnonzero((at != foremost) & (at != _WAITING))).size:
            lane = int(elsewhere[0])
            where = place(self._state.special, lane)
            raise EmulationError(
                f"{self._at(int(self._after_barrier[lane]) - 1)}: {where} waits here, others elsewhere"
            )
        if (of_cluster == waiting).all():
            lane = int(np.flatnonzero(of_cluster)[0])
            where, word = place(self._state.special, lane), int(self._after_barrier[lane]) - 1
            raise EmulationError(f"{self._at(word)}: {where}: only a part of its cluster arrives at this barrier")
        np.copyto(self._next, self._after_barrier, where=waiting & ~of_cluster)
        self._state.memories.shared.publish()

    def _at(self, number: int) -> str:
        return f"{self._kernel}, word {number} (opcode {self._opcodes[number]:#05x})"

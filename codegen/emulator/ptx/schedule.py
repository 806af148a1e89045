"""Segments of straight-line code, and the order in which the lanes run them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cache
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from codegen.emulator.alu.arithmetic import Mask
from codegen.emulator.faults import FaultError, UnsupportedError
from codegen.emulator.ptx.state import State, Step, expect
from codegen.emulator.ptx.steps import WARP_LANES, guard, make_step
from codegen.errors import EmulationError
from codegen.ptx.instruction import Immediate, Instruction, Symbol
from codegen.ptx.module import Entry

WAITING: Final = 2**31 - 2
EXITED: Final = 2**31 - 1

_Control = Literal["branch", "barrier", "cluster", "exit"]
Window = tuple[int, int]
"""First lane and end of a range of whole blocks."""


@dataclass
class Segment:
    """Straight-line code: only the last instruction may be a branch, a barrier or an exit."""

    start: int
    end: int
    """Index after its last instruction among the entry's."""
    control: _Control | None = None
    """The kind of its last instruction, if that is not a step."""
    steps: dict[Window, list[Step]] = field(default_factory=dict)
    """Steps for each window that ran it; an empty list after the first run, as most segments run once."""
    runs: int = 0
    """Lanes that ran it, summed over its runs."""


class Schedule:
    """Runs the lanes whose next segment comes first in the text, so that diverged lanes meet again.

    A segment is decoded when it runs, for the window from the first block that runs it to the last. Code that no lane
    reaches costs nothing, and the code of a K group costs only as much as its own blocks.
    """

    def __init__(self, state: State, entry: Entry, threads: int, place: Callable[[int], str]) -> None:
        self._state = state
        self._windows: dict[Window, State] = {}
        self._controls: dict[int, Instruction] = {}
        self._threads = threads
        # A barrier counts warps, each in its own code; a block with a partial warp waits at one barrier.
        self._together = threads if threads % WARP_LANES else WARP_LANES
        self._place = place
        self._entry = entry
        self._segments = _segments(entry)
        self._numbers = {segment.start: number for number, segment in enumerate(self._segments)}
        self._next: NDArray[np.int32] = np.zeros(state.lanes, dtype=np.int32)
        self._barrier: NDArray[np.int32] = np.zeros(state.lanes, dtype=np.int32)
        self._begun = 0
        """Instructions run so far, each over all its lanes."""
        self._waits_for_cluster = np.array([segment.control == "cluster" for segment in self._segments])

    def run(self, limit: int) -> None:
        """Runs every lane to its end. Raises EmulationError, also after `limit` instructions, each over all lanes."""
        while (number := int(self._next.min(initial=EXITED))) != EXITED:
            if number == WAITING:
                self._release_barriers(self._next == WAITING)
            else:
                self._run(number, self._next == number, limit)

    def executed(self) -> Counter[str]:
        """Executions of each opcode, counted once per lane."""
        counts, instructions = Counter(self._state.predicated), self._entry.instructions
        for segment in self._segments:
            for number in range(segment.start, segment.end if segment.runs else segment.start):
                if not instructions.guarded(number):
                    counts[instructions.opcodes[number]] += segment.runs
        return +counts

    def _run(self, number: int, active: NDArray[np.bool_], limit: int) -> None:
        """Runs a segment for the active lanes."""
        segment = self._segments[number]
        self._begun += segment.end - segment.start
        if self._begun > limit:
            raise EmulationError(
                f"{_at(self._entry.instructions[segment.start])}: more than {limit} instructions were run: the "
                "loop around this one does not end, or the limit needs to be raised"
            )
        lanes = self._window(active)
        if (state := self._windows.get(lanes)) is None:
            state = self._windows[lanes] = self._state.window(*lanes)
        active = active[slice(*lanes)]
        count = int(np.count_nonzero(active))
        segment.runs += count
        mask: Mask = None if count == state.lanes else active
        position = segment.start
        try:
            for step in self._steps(segment, lanes, state):
                step(mask)
                position += 1
        except FaultError as fault:
            instruction = self._entry.instructions[position]
            raise EmulationError(f"{_at(instruction)}: {self._place(fault.lane)}: {fault}") from None
        following = number + 1 if number + 1 < len(self._segments) else EXITED
        np.copyto(self._next[slice(*lanes)], np.int32(following), where=active)
        if segment.control is not None:
            self._run_control(segment.control, number, state, active)

    def _run_control(self, control: _Control, number: int, state: State, active: NDArray[np.bool_]) -> None:
        lanes = slice(state.first, state.first + state.lanes)
        instruction = self._last(number)
        destination = {"barrier": WAITING, "cluster": WAITING, "exit": EXITED}.get(control)
        try:
            if control == "barrier":
                _check_barrier(instruction)
            if destination is None:
                destination = self._target(instruction)
            if instruction.predicate is not None:
                active = guard(state, instruction.predicate)() & active
                state.predicated[instruction.opcode] += int(np.count_nonzero(active))
        except UnsupportedError as reason:
            raise EmulationError(f"{_at(instruction)}: {reason}") from None
        if destination == WAITING:
            np.copyto(self._barrier[lanes], np.int32(number), where=active)
        if control == "cluster":
            self._check_wait(instruction, np.flatnonzero(active) + state.first)
        np.copyto(self._next[lanes], np.int32(destination), where=active)
        if control == "exit":
            self._state.clusters.end(self._next == EXITED)

    def _check_wait(self, instruction: Instruction, lanes: NDArray[np.intp]) -> None:
        try:
            self._state.clusters.check_wait(lanes)
        except FaultError as fault:
            raise EmulationError(f"{_at(instruction)}: {self._place(fault.lane)}: {fault}") from None

    def _last(self, number: int) -> Instruction:
        """The last instruction of a segment, decoded once, as loops come back to it."""
        if (instruction := self._controls.get(number)) is None:
            instruction = self._controls[number] = self._entry.instructions[self._segments[number].end - 1]
        return instruction

    def _window(self, active: NDArray[np.bool_]) -> Window:
        """The lanes from the first active block to the last."""
        first, last = int(active.argmax()), len(active) - 1 - int(active[::-1].argmax())
        return first // self._threads * self._threads, (last // self._threads + 1) * self._threads

    def _steps(self, segment: Segment, lanes: Window, state: State) -> Iterable[Step]:
        """The steps of a segment without its control. They are kept from the second run on, as most code runs once."""
        if kept := segment.steps.get(lanes):
            return kept
        steps = (self._step(i, state) for i in range(segment.start, segment.end - (segment.control is not None)))
        segment.steps[lanes] = list(steps) if lanes in segment.steps else []
        return segment.steps[lanes] or steps

    def _step(self, number: int, state: State) -> Step:
        instruction = self._entry.instructions[number]
        try:
            return make_step(state, instruction, number)
        except UnsupportedError as reason:
            raise EmulationError(f"{_at(instruction)}: {reason}") from None

    def _target(self, branch: Instruction) -> int:
        (label,) = expect(branch.operands, 1)
        if not isinstance(label, Symbol) or label.name not in self._entry.labels:
            raise UnsupportedError("no such label")
        return self._numbers[self._entry.labels[label.name]]

    def _release_barriers(self, waiting: NDArray[np.bool_]) -> None:
        """Releases waiting lanes of blocks in which no lane can run. All of a warp must wait at one barrier."""
        of_cluster = waiting & self._waits_for_cluster[self._barrier]
        if of_cluster.any() and (passing := self._state.clusters.passing(of_cluster, self._next == EXITED)).any():
            self._go_on(passing)
            return
        at = np.where(waiting, self._barrier, WAITING).reshape(-1, self._together)
        first = at.min(axis=1, keepdims=True)
        if (elsewhere := np.flatnonzero((at != first) & (at != WAITING))).size:
            lane = int(elsewhere[0])
            here = self._last(int(self._barrier[lane]))
            other = self._last(int(first[lane // self._together, 0]))
            raise EmulationError(
                f"{_at(other)}: only a part of the warp waits at this barrier: "
                f"{self._place(lane)} waits at line {here.line}"
            )
        if (of_cluster == waiting).all():
            lane = int(np.flatnonzero(of_cluster)[0])
            here = self._last(int(self._barrier[lane]))
            reason = "only a part of its cluster arrives at this barrier"
            raise EmulationError(f"{_at(here)}: {self._place(lane)}: {reason}")
        self._go_on(waiting & ~of_cluster)
        self._state.shared.publish()

    def _go_on(self, lanes: NDArray[np.bool_]) -> None:
        following = self._barrier + 1
        following[following == len(self._segments)] = EXITED
        np.copyto(self._next, following, where=lanes)


def _at(instruction: Instruction) -> str:
    return f"line {instruction.line}: `{' '.join(instruction.text.split())}`"


def _segments(entry: Entry) -> list[Segment]:
    labels, opcodes = set(entry.labels.values()), entry.instructions.opcodes
    segments: list[Segment] = []
    start = 0
    for end, opcode in enumerate(opcodes, start=1):
        control = _control_of(opcode)
        if control or end in labels or end == len(opcodes):
            segments.append(Segment(start, end, control))
            start = end
    # A label at the very end has a segment of its own, after which lanes end as after any last one.
    if not segments or len(opcodes) in labels:
        segments.append(Segment(start, start))
    return segments


def _check_barrier(instruction: Instruction) -> None:
    (identifier,) = expect(instruction.operands, 1)
    if not isinstance(identifier, Immediate):
        raise UnsupportedError("a barrier whose number is in a register")


@cache
def _control_of(opcode: str) -> _Control | None:
    match opcode.split("."):
        case ["bra"] | ["bra", "uni"]:
            return "branch"
        case ["ret"] | ["ret", "uni"] | ["exit"]:
            return "exit"
        case ["bar" | "barrier", "sync"] | ["bar" | "barrier", "sync", "aligned"] | ["bar" | "barrier", "cta", "sync"]:
            return "barrier"
        case ["barrier", "cta", "sync", "aligned"]:
            return "barrier"
        case ["barrier", "cluster", "wait", *how] if how in ([], ["aligned"], ["acquire"], ["acquire", "aligned"]):
            return "cluster"
    return None

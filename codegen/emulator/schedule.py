"""An entry as segments of straight code, and the order in which the lanes run them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from codegen.emulator.arithmetic import Lanes
from codegen.emulator.faults import FaultError, UnsupportedError
from codegen.emulator.machine import Machine, Mask, Step, expect
from codegen.emulator.module import Entry
from codegen.emulator.steps import guard, make_step
from codegen.errors import EmulationError
from codegen.ptx import Immediate, Instruction, Symbol

_WAITING: Final = 2**31 - 2
_EXITED: Final = 2**31 - 1

_Control = Literal["branch", "barrier", "exit"]


@dataclass
class Segment:
    """Instructions that run one after the other; only the last may be a branch, a barrier or an end."""

    instructions: list[Instruction] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    control: _Control | None = None
    target: int = 0
    """Segment that a branch goes to."""
    holds: Callable[[], Lanes] | None = None
    """The predicate of the last instruction, if that is the control."""
    runs: int = 0
    """Lanes that ran it, over all times."""


class Schedule:
    """Runs the lanes whose next segment comes first in the text, so that lanes which parted meet again."""

    def __init__(self, machine: Machine, entry: Entry, threads: int, place: Callable[[int], str]) -> None:
        self._machine = machine
        self._threads = threads
        self._place = place
        self._segments = _segments(machine, entry)
        self._next: NDArray[np.int32] = np.zeros(machine.lanes, dtype=np.int32)
        self._barrier: NDArray[np.int32] = np.zeros(machine.lanes, dtype=np.int32)

    def run(self, limit: int) -> None:
        """Runs every lane to its end. Raises EmulationError, also after `limit` instructions, each over all lanes."""
        steps = 0
        while (number := int(self._next.min(initial=_EXITED))) != _EXITED:
            if number == _WAITING:
                self._release_barriers()
                continue
            segment = self._segments[number]
            steps += len(segment.instructions)
            if steps > limit:
                raise EmulationError(
                    f"{_at(segment.instructions[0])}: more than {limit} instructions were run: the loop around this "
                    "one does not end, or the limit needs to be raised"
                )
            self._run(segment, number)

    def executed(self) -> Counter[str]:
        """How often each opcode was run, counted once per lane."""
        counts = Counter(self._machine.predicated)
        for segment in self._segments:
            for instruction in segment.instructions:
                if instruction.predicate is None:
                    counts[instruction.opcode] += segment.runs
        return +counts

    def _run(self, segment: Segment, number: int) -> None:
        active = self._next == number
        count = int(np.count_nonzero(active))
        segment.runs += count
        mask: Mask = None if count == self._machine.lanes else active
        step: Step | None = None
        try:
            for step in segment.steps:
                step(mask)
        except FaultError as fault:
            instruction = next(i for s, i in zip(segment.steps, segment.instructions, strict=False) if s is step)
            raise EmulationError(f"{_at(instruction)}: {self._place(fault.lane)}: {fault}") from None
        following = number + 1 if number + 1 < len(self._segments) else _EXITED
        np.copyto(self._next, np.int32(following), where=active)
        self._control(segment, number, active)

    def _control(self, segment: Segment, number: int, active: NDArray[np.bool_]) -> None:
        if segment.control is None:
            return
        if segment.holds is not None:
            active = segment.holds() & active
            self._machine.predicated[segment.instructions[-1].opcode] += int(np.count_nonzero(active))
        if segment.control == "barrier":
            np.copyto(self._barrier, np.int32(number), where=active)
        destination = {"branch": segment.target, "barrier": _WAITING, "exit": _EXITED}[segment.control]
        np.copyto(self._next, np.int32(destination), where=active)

    def _release_barriers(self) -> None:
        """Nobody can run: every lane that has not ended waits, which is right if those of a block wait at one place."""
        waiting = self._next == _WAITING
        at = np.where(waiting, self._barrier, _WAITING).reshape(-1, self._threads)
        first = at.min(axis=1, keepdims=True)
        if (elsewhere := np.flatnonzero((at != first) & (at != _WAITING))).size:
            lane = int(elsewhere[0])
            here = self._segments[int(self._barrier[lane])].instructions[-1]
            other = self._segments[int(first[lane // self._threads, 0])].instructions[-1]
            raise EmulationError(
                f"{_at(other)}: only a part of the block waits at this barrier: "
                f"{self._place(lane)} waits at line {here.line}"
            )
        following = self._barrier + 1
        following[following == len(self._segments)] = _EXITED
        np.copyto(self._next, following, where=waiting)
        self._machine.shared.publish()


def _at(instruction: Instruction) -> str:
    return f"line {instruction.line}: `{' '.join(instruction.text.split())}`"


def _segments(machine: Machine, entry: Entry) -> list[Segment]:
    starts: dict[int, int] = {}
    segments: list[Segment] = []
    for start, instructions in _straight_runs(entry):
        starts[start] = len(segments)
        segments.append(Segment(instructions))
    starts[len(entry.instructions)] = len(segments)
    # A label at the very end is an exit of its own.
    if not segments or len(entry.instructions) in entry.labels.values():
        segments.append(Segment(control="exit"))
    for segment in segments:
        for instruction in segment.instructions:
            try:
                _decode(machine, entry, segment, instruction, starts)
            except UnsupportedError as reason:
                raise EmulationError(f"{_at(instruction)}: {reason}") from None
    return segments


def _straight_runs(entry: Entry) -> Iterator[tuple[int, list[Instruction]]]:
    labels = set(entry.labels.values())
    start = 0
    for end, instruction in enumerate(entry.instructions, start=1):
        if end in labels or end == len(entry.instructions) or _control_of(instruction):
            yield start, list(entry.instructions[start:end])
            start = end


def _decode(machine: Machine, entry: Entry, segment: Segment, instruction: Instruction, starts: dict[int, int]) -> None:
    control = _control_of(instruction)
    if control is None:
        segment.steps.append(make_step(machine, instruction))
        return
    segment.control = control
    if instruction.predicate is not None:
        segment.holds = guard(machine, instruction.predicate)
    if control == "branch":
        (label,) = expect(instruction.operands, 1)
        if not isinstance(label, Symbol) or label.name not in entry.labels:
            raise UnsupportedError("no such label")
        segment.target = starts[entry.labels[label.name]]
    elif control == "barrier":
        (identifier,) = expect(instruction.operands, 1)
        if not isinstance(identifier, Immediate):
            raise UnsupportedError("a barrier whose number is in a register")


def _control_of(instruction: Instruction) -> _Control | None:
    match instruction.opcode.split("."):
        case ["bra"] | ["bra", "uni"]:
            return "branch"
        case ["ret"] | ["ret", "uni"] | ["exit"]:
            return "exit"
        case ["bar" | "barrier", "sync"] | ["bar" | "barrier", "sync", "aligned"] | ["bar" | "barrier", "cta", "sync"]:
            return "barrier"
        case ["barrier", "cta", "sync", "aligned"]:
            return "barrier"
    return None

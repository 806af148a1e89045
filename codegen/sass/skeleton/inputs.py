"""Inputs of a template's loop: their loads, and the bounds or gates that some layers prepare them with."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from codegen.errors import MachineCodeError
from codegen.ptx.template import RolledForm
from codegen.ptx.template_lines import Bound, GateLoad, PreparedInput

TURN_WORDS = 4
"""Most inputs with gates that are prepared together, in one place of the operand ring."""
_WORD_BYTES = 4


@dataclass(frozen=True, eq=False)
class InputLoads:
    """The loads of a loop's inputs, [loads] each."""

    pointer: NDArray[np.int64]
    offset: NDArray[np.int64]
    """Bytes from the pointer."""
    words: NDArray[np.int64]

    @staticmethod
    def of(loads: Iterable[tuple[int, int, int]]) -> InputLoads:
        """From the pointer, offset and number of words of each load."""
        pointer, offset, words = np.array(list(loads), dtype=np.int64).reshape(-1, 3).T
        return InputLoads(pointer, offset, words)

    def joined(
        self, slot_load: NDArray[np.int64], slot_element: NDArray[np.int64]
    ) -> tuple[InputLoads, NDArray[np.int64], NDArray[np.int64]]:
        """Neighbouring loads joined into one, as ptxas does; and for each slot its load and the word in that.

        A load of several words shows how its pointer is aligned. Loads within one aligned piece of memory are joined if
        together they load the whole piece.
        """
        number, start, words = np.arange(len(self.words)), self.offset.copy(), self.words.copy()
        for pointer in np.unique(self.pointer).tolist():
            own = np.flatnonzero(self.pointer == pointer)
            widest = own[np.argmax(self.words[own])]
            size = _WORD_BYTES * int(self.words[widest])
            piece = (self.offset[own] - self.offset[widest]) // size * size + self.offset[widest]
            for begin in np.unique(piece).tolist():
                together = own[piece == begin]
                loaded = {
                    offset + _WORD_BYTES * i
                    for offset, count in zip(self.offset[together].tolist(), self.words[together].tolist(), strict=True)
                    for i in range(count)
                }
                if loaded == set(range(begin, begin + size, _WORD_BYTES)):
                    number[together], start[together], words[together] = together[0], begin, size // _WORD_BYTES
        element = slot_element + (self.offset - start)[slot_load] // _WORD_BYTES
        return InputLoads(self.pointer, start, words), number[slot_load], element


@dataclass(frozen=True, eq=False)
class Bounds:
    """The inputs of a loop that are brought within bounds."""

    sources: tuple[str, ...]
    """[inputs]: the register that each is loaded into."""
    of_slot: NDArray[np.int64]
    """[slots]: the input of each."""

    @staticmethod
    def of(form: RolledForm) -> Bounds:
        """Reads them from a template. Raises MachineCodeError unless each bound is one instruction."""
        inputs = _prepared(form, "bounds")
        bounds = [line for line in form.turn.typed if isinstance(line, Bound)]
        if inputs is None or not all(bound.is_one_instruction for bound in bounds):
            raise MachineCodeError("input bounds are not max.NaN and min.NaN: sm_80 has those first")
        return Bounds(tuple(each.source for each in inputs), form.input_of_slot)


@dataclass(frozen=True, eq=False)
class Gates:
    """The inputs of a loop that are multiplied by gates, and the loads of these."""

    sources: tuple[str, ...]
    """[inputs]: the register that each is loaded into."""
    of_slot: NDArray[np.int64]
    """[slots]: the input of each."""
    statement: NDArray[np.int64]
    """[inputs]: the statement that each is in."""
    word: NDArray[np.int64]
    """[inputs]: its number in the statement."""
    statement_words: int
    """1, 2 or 4: words of the ring that each statement takes."""
    load: NDArray[np.int64]
    """[inputs]: the load of its gate."""
    element: NDArray[np.int64]
    """[inputs]: the word of that load."""
    pointers: tuple[str, ...]
    """[loads of gates]: registers."""
    offsets: NDArray[np.int64]
    """[loads of gates]: bytes from the pointer."""
    load_words: NDArray[np.int64]

    @staticmethod
    def of(form: RolledForm) -> Gates:
        """Reads them from a template. Raises MachineCodeError for gates that the assembler does not support."""
        inputs = _prepared(form, "gate")
        loads = [line for line in form.turn.typed if isinstance(line, GateLoad)]
        addresses = [load.address for load in loads if load.address]
        if inputs is None or len(addresses) != len(loads):
            raise MachineCodeError("the assembler does not support gates of packed inputs")
        # A statement begins where inputs follow a line that is not another input.
        begins = np.diff(form.input_lines, prepend=-2) != 1
        statement = np.cumsum(begins) - 1
        number = np.arange(len(inputs)) - np.flatnonzero(begins)[statement]
        most = int(number.max()) + 1
        if most > TURN_WORDS:
            raise MachineCodeError(f"a statement has {most} inputs with gates: more than {TURN_WORDS}")
        first = np.array([load.first for load in loads], dtype=np.int64)
        of_input = np.searchsorted(first, np.arange(len(inputs)), side="right") - 1
        return Gates(
            sources=tuple(each.source for each in inputs),
            of_slot=form.input_of_slot,
            statement=statement,
            word=number,
            statement_words=next(room for room in (1, 2, 4) if room >= most),
            load=of_input,
            element=np.arange(len(inputs)) - first[of_input],
            pointers=tuple(address.pointer for address in addresses),
            offsets=np.array([address.offset for address in addresses], dtype=np.int64),
            load_words=np.array([load.count for load in loads], dtype=np.int64),
        )


def _prepared(form: RolledForm, by: str) -> list[PreparedInput] | None:
    """The prepared inputs of a loop by number; None unless all are prepared in this way."""
    lines = [form.turn.typed[line] for line in form.input_lines.tolist()]
    found = [line for line in lines if isinstance(line, PreparedInput) and line.by == by]
    return found if len(found) == len(lines) else None

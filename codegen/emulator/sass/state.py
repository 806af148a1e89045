"""The state of the lanes of a SASS run, and the operands of one word."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from codegen.emulator.alu.arithmetic import Lanes, Mask
from codegen.emulator.alu.fused import FusedMultiplyAdd
from codegen.emulator.faults import FaultError, UnsupportedError
from codegen.emulator.memory.clusters import Clusters
from codegen.emulator.memory.global_memory import GlobalMemory
from codegen.emulator.memory.shared_memory import AsyncCopies, SharedMemory
from codegen.emulator.memory.uninitialized import JUNK
from codegen.sass.isa.architecture import Architecture
from codegen.sass.isa.encoding import ALWAYS, OPCODE, ZERO_REGISTER
from codegen.sass.isa.opcodes import LAST, UNIFORM_REGISTERS, Form, Opcode

LITERALS: Final = 2
"""The bank of constants that fit no instruction."""
_OPCODE_MASK: Final = (1 << OPCODE.bits) - 1
UNIFORM_ZERO: Final = LAST[UNIFORM_REGISTERS]
"""URZ: reads as zero."""


@dataclass(frozen=True, eq=False)
class Memories:
    """The memories that lanes load from and store to."""

    buffers: GlobalMemory
    shared: SharedMemory
    copies: AsyncCopies
    constants: NDArray[np.uint8]
    """Bank 0: sizes of the block and grid, the stack pointer, the arguments."""
    known: NDArray[np.bool_]
    """Mask of the known bytes of bank 0."""
    literals: bytes
    """Bank 2."""
    local: NDArray[np.uint8]
    """[lanes, bytes]: each lane's stack."""
    clusters: Clusters
    fenced: NDArray[np.bool_]
    """[lanes]: whether the lane has written nothing since its last MEMBAR."""


class State:
    """The lanes of all blocks, or a window of them, block after block. Registers are allocated when first named."""

    def __init__(
        self, lanes: int, memories: Memories, special: Mapping[str, Lanes], architecture: Architecture
    ) -> None:
        self.lanes, self.first = lanes, 0
        self.memories, self.special, self.architecture = memories, special, architecture
        self.fused = FusedMultiplyAdd(lanes)
        self._all = lanes
        self._rows: dict[int, Lanes] = {}
        self._uniform: dict[int, Lanes] = {}
        self._undefined: dict[int, NDArray[np.bool_]] = {}
        """Lanes in which a register was loaded from unwritten shared memory."""
        self._predicates = np.zeros((2, 8, lanes), dtype=np.bool_)
        self._predicates[:, ALWAYS] = True

    def window(self, first: int, end: int) -> State:
        """This state for the lanes `first` to `end` only."""
        if (first, end) == (self.first, self.first + self.lanes):
            return self
        part = copy(self)
        part.first, part.lanes, part.fused = first, end - first, self.fused.window(end - first)
        return part

    def read(self, number: int, *, uniform: bool = False) -> Lanes:
        """The 32 bits of a register; zeros for RZ and URZ."""
        rows, zero = (self._uniform, UNIFORM_ZERO) if uniform else (self._rows, ZERO_REGISTER)
        if number == zero:
            return np.zeros(self.lanes, dtype=np.uint32)
        if number in self._undefined and not uniform:
            self._check_defined(number)
        return self._row(rows, number)

    def write(self, number: int, value: Lanes, mask: Mask, *, uniform: bool = False) -> None:
        """Writes values of any 32-bit type in the lanes of the mask."""
        rows, zero = (self._uniform, UNIFORM_ZERO) if uniform else (self._rows, ZERO_REGISTER)
        if number != zero:
            where = True if mask is None else mask
            np.copyto(self._row(rows, number), value.view(np.uint32), where=where)
            if number in self._undefined and not uniform:
                np.copyto(self._window(self._undefined[number]), False, where=where)

    def leave_undefined(self, number: int, lanes: NDArray[np.intp]) -> None:
        """Makes reading a register a fault in these lanes until they write it again."""
        row = self._undefined.setdefault(number, np.zeros(self._all, dtype=np.bool_))
        self._window(row)[lanes] = True

    def _check_defined(self, number: int) -> None:
        if (lanes := np.flatnonzero(self._window(self._undefined[number]))).size:
            raise FaultError(
                int(lanes[0]) + self.first,
                f"R{number} was loaded from shared memory that was never written, "
                "or written by another thread since the last barrier",
            )

    def _window(self, row: NDArray[np.bool_]) -> NDArray[np.bool_]:
        return row[self.first : self.first + self.lanes]

    def put(self, word: Instruction, value: Lanes | Any, mask: Mask) -> None:
        """Writes a 32-bit array or scalar to the result register of the word."""
        self.write(word.to, np.asarray(value), mask, uniform=word.uniform)

    def _row(self, rows: dict[int, Lanes], number: int) -> Lanes:
        if (row := rows.get(number)) is None:
            row = rows[number] = np.full(self._all, JUNK[4], dtype=np.uint32)
        return row[self.first : self.first + self.lanes]

    def predicate(self, number: int, *, negated: bool = False, uniform: bool = False) -> NDArray[np.bool_]:
        """A copy of a predicate or its opposite."""
        row = self._predicates[int(uniform), number, self.first : self.first + self.lanes]
        return ~row if negated else row.copy()

    def set_predicate(self, number: int, value: Lanes, mask: Mask, *, uniform: bool = False) -> None:
        if number != ALWAYS:
            row = self._predicates[int(uniform), number, self.first : self.first + self.lanes]
            np.copyto(row, value, where=True if mask is None else mask)

    def constant(self, bank: int, offset: int, size: int) -> bytes:
        """Bytes of constant memory. Raises UnsupportedError for unknown ones."""
        memories = self.memories
        if bank == LITERALS and offset + size <= len(memories.literals):
            return memories.literals[offset : offset + size]
        if bank or offset + size > len(memories.known) or not memories.known[offset : offset + size].all():
            raise UnsupportedError(f"constant memory c[{bank:#x}][{offset:#x}], whose content is unknown")
        return memories.constants[offset : offset + size].tobytes()


class Decoder:
    """Decodes words of an architecture; the facts of each opcode are looked up once."""

    def __init__(self, architecture: Architecture) -> None:
        self._architecture = architecture
        self._known: dict[int, tuple[Opcode, Form, int]] = {}
        """Facts, form and understood bits by the twelve bits of an opcode."""

    def decode(self, bits: int) -> Instruction:
        """Raises UnsupportedError if the emulator does not know the instruction, or a bit that is set."""
        opcode = bits & _OPCODE_MASK
        if (known := self._known.get(opcode)) is None:
            known = self._known[opcode] = self._look_up(opcode)
        kind, form, understood = known
        if (rest := bits & ~understood) not in kind.fixed:
            raise UnsupportedError(f"bits of the instruction that this emulator does not know, {rest:#034x}")
        return Instruction(bits, self._architecture, kind, form)

    def _look_up(self, opcode: int) -> tuple[Opcode, Form, int]:
        kind = self._architecture.opcode(opcode)
        if kind is None or kind.understood is None:
            raise UnsupportedError("this emulator does not know the instruction")
        form = kind.form_in(opcode)
        return kind, form, kind.understood_mask(form)


@dataclass(frozen=True)
class Instruction:
    """One word as a number of 128 bits, and its decoded operands."""

    bits: int
    architecture: Architecture
    kind: Opcode
    form: Form
    """Sources of its operands."""

    def field(self, first: int, count: int = 1) -> int:
        return self.bits >> first & (1 << count) - 1

    @property
    def uniform(self) -> bool:
        """Whether its result and predicates are uniform."""
        return self.kind.uniform

    @property
    def to(self) -> int:
        return self.field(16, 6 if self.uniform else 8)

    def signed(self, first: int, count: int) -> int:
        """A field in two's complement."""
        value = self.field(first, count)
        return value - (value >> (count - 1) << count)

    def guard(self, state: State) -> Mask:
        """The lanes in which it runs; None: all."""
        if (number := self.field(12, 3)) == ALWAYS and not self.field(15):
            return None
        return state.predicate(number, negated=bool(self.field(15)), uniform=self.uniform)

    def input_predicate(self, state: State, first: int = 87) -> NDArray[np.bool_]:
        """The predicate among its operands."""
        return state.predicate(self.field(first, 3), negated=bool(self.field(first + 3)), uniform=self.uniform)

    def a(self, state: State) -> Lanes:
        return state.read(self.field(24, 6 if self.uniform else 8), uniform=self.uniform)

    def b(self, state: State) -> Lanes | Any:
        """The second operand: an array, or a scalar."""
        return self._high(state) if self.form.swapped else self._low(state)

    def c(self, state: State) -> Lanes | Any:
        """The third operand: an array, or a scalar."""
        return self._low(state) if self.form.swapped else self._high(state)

    def b_sign(self) -> tuple[bool, bool]:
        """Whether the second operand is negated, and whether it is made positive before that."""
        return self._high_sign if self.form.swapped else self._low_sign

    def c_sign(self) -> tuple[bool, bool]:
        return self._low_sign if self.form.swapped else self._high_sign

    def a_sign(self) -> tuple[bool, bool]:
        return bool(self.field(72)), bool(self.field(73))

    def _low(self, state: State) -> Lanes | Any:
        """The operand in bits 32 to 63."""
        if self.form.low == "immediate":
            return np.uint32(self.field(32, 32))
        if self.form.low == "constant":
            data = state.constant(self.field(54, 5), self.field(38, 16), 4)
            return np.frombuffer(data, dtype=np.uint32)[0]
        uniform = self.uniform or self.form.low == "uniform"
        return state.read(self.field(32, 6 if uniform else 8), uniform=uniform)

    def _high(self, state: State) -> Lanes:
        return state.read(self.field(64, 6 if self.uniform else 8), uniform=self.uniform)

    @property
    def _low_sign(self) -> tuple[bool, bool]:
        if self.form.low == "immediate":
            return False, False
        return bool(self.field(63)), bool(self.field(62))

    @property
    def _high_sign(self) -> tuple[bool, bool]:
        return bool(self.field(75)), bool(self.field(74))

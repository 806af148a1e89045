"""Whether a kernel may still read what an instruction left in a register."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Final

from codegen.ptx.instruction import Address, Instruction, Operand, Register, Symbol, Vector
from codegen.ptx.module import Entry

_WITHOUT_RESULT: Final = ("st", "red", "bar", "barrier", "bra", "cp", "prefetch", "prefetchu")
"""Opcodes whose first operand is read."""


class Liveness:
    """The paths through a kernel. Instructions are decoded when a path first comes to them."""

    def __init__(self, entry: Entry) -> None:
        self._entry = entry
        self.is_read_after = cache(self._is_read_after)
        """Whether any path from the instruction after this position reads the register before writing it."""

    def _is_read_after(self, position: int, register: str) -> bool:
        instructions, paths, seen = self._entry.instructions, [position + 1], {position + 1}
        while paths:
            at = paths.pop()
            if at >= len(instructions):
                continue
            instruction = instructions[at]
            if register in _reads(instruction):
                return True
            if register in _writes(instruction):
                continue
            for following in self._following(at, instruction):
                if following not in seen:
                    seen.add(following)
                    paths.append(following)
        return False

    def _following(self, at: int, instruction: Instruction) -> Iterator[int]:
        root = instruction.opcode.partition(".")[0]
        if root == "bra" and isinstance(label := instruction.operands[0], Symbol):
            yield self._entry.labels[label.name]
        if root not in ("bra", "ret", "exit") or instruction.predicate is not None:
            yield at + 1


def _reads(instruction: Instruction) -> set[str]:
    first = 0 if instruction.opcode.partition(".")[0] in _WITHOUT_RESULT else 1
    found = {name for operand in instruction.operands[first:] for name in _names(operand)}
    found |= {
        name for operand in instruction.operands[:first] if isinstance(operand, Address) for name in _names(operand)
    }
    return found | ({instruction.predicate.name} if instruction.predicate else set())


def _writes(instruction: Instruction) -> set[str]:
    """Registers that it writes in every lane."""
    if instruction.predicate is not None or instruction.opcode.partition(".")[0] in _WITHOUT_RESULT:
        return set()
    return {
        name for operand in instruction.operands[:1] if not isinstance(operand, Address) for name in _names(operand)
    }


def _names(operand: Operand) -> Iterator[str]:
    if isinstance(operand, Register):
        yield operand.name
    elif isinstance(operand, Address) and isinstance(operand.base, Register):
        yield operand.base.name
    elif isinstance(operand, Vector):
        for each in operand.elements:
            yield from _names(each)

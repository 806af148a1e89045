"""PTX instructions: one instruction into opcode, registers and immediates. Whole files: module.py."""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from codegen.errors import PtxError

TYPE_BYTES: Mapping[str, int] = {f"{kind}{8 * size}": size for kind in "busf" for size in (1, 2, 4, 8)}
"""Bytes of each scalar type, without `pred`."""


@dataclass(frozen=True, slots=True)
class Register:
    """A register, also a special one such as `%tid.x`; `negated` is the `!` of a predicate."""

    name: str
    negated: bool = False


@dataclass(frozen=True, slots=True)
class Immediate:
    """A literal: an integer, or the bits of a float."""

    value: int
    kind: Literal["integer", "f32", "f64"] = "integer"


@dataclass(frozen=True, slots=True)
class Symbol:
    """A label, a variable or a parameter."""

    name: str


@dataclass(frozen=True, slots=True)
class Address:
    """`[base + offset]` in bytes; without a base the offset is the address."""

    base: Register | Symbol | None
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Vector:
    """`{a, b}` or `{a, b, c, d}`."""

    elements: tuple[Register | Immediate | Symbol, ...]


Operand = Register | Immediate | Symbol | Address | Vector


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction: `@predicate opcode operands;`."""

    opcode: str
    """The opcode with every suffix, as written."""
    operands: tuple[Operand, ...] = ()
    predicate: Register | None = None
    line: int = 1
    """Line in the text, from 1."""
    text: str = ""
    """The instruction as written, without the semicolon."""


_INSTRUCTION = re.compile(r"(?:@(!?)([\w$%.]+)\s+)?([a-z][\w.:]*)\s*(.*)", re.DOTALL)
_OPERAND = re.compile(r"\{[^}]*\}|\[[^\]]*\]|[^,\s](?:[^,]*[^,\s])?")
_NAME = re.compile(r"[%A-Za-z_$][\w$]*(?:\.[xyz])?")
_INTEGER = re.compile(r"([+-]?)\s*(0[xX][0-9a-fA-F]+|0[bB][01]+|\d+)U?")
_FLOAT = re.compile(r"0[fF]([0-9a-fA-F]{8})|0[dD]([0-9a-fA-F]{16})")
_DECIMAL = re.compile(r"[+-]?\d+(?:\.\d*)?(?:[eE][+-]?\d+)?")
_ADDRESS = re.compile(r"\[\s*(?:([%A-Za-z_$][\w$]*)\s*(?:\+\s*(-?\s*\w+))?|(\d\w*))\s*\]")


def _integer(text: str) -> int | None:
    if (match := _INTEGER.fullmatch(text)) is None:
        return None
    sign, digits = match.groups()
    octal = len(digits) > 1 and digits.isdigit() and digits[0] == "0"
    value = int(digits, 8 if octal else 0)
    return -value if sign == "-" else value


def _immediate(text: str) -> Immediate | None:
    if match := _FLOAT.fullmatch(text):
        single, double = match.groups()
        return Immediate(int(single, 16), "f32") if single else Immediate(int(double, 16), "f64")
    if (value := _integer(text)) is not None:
        return Immediate(value)
    if _DECIMAL.fullmatch(text):
        return Immediate(struct.unpack("<Q", struct.pack("<d", float(text)))[0], "f64")
    return None


class _UnknownOperandError(Exception):
    """An operand of unknown form; the argument is its text."""


class Scope:
    """The names that a block declares, and a cache of its operands without numbers, most of which are weights."""

    def __init__(self, outer: Scope | None = None) -> None:
        self.outer = outer
        self.names: dict[str, Register | Symbol] = {}
        self.operands: dict[str, Operand] = {}

    def declare(self, name: str, operand: Register | Symbol) -> None:
        """Makes `name` mean `operand` from here on."""
        self.names[name] = operand
        self.operands.clear()

    def resolve(self, name: str) -> Register | Symbol:
        """The register or symbol of a name, as the innermost block declares it."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope.names:
                return scope.names[name]
            scope = scope.outer
        return Register(name) if name.startswith("%") else Symbol(name)

    def operand(self, text: str) -> Operand:
        """Reads one operand."""
        if not self.names and self.outer is not None:
            return self.outer.operand(text)
        if (known := self.operands.get(text)) is None:
            known = self._parse(text)
            if not isinstance(known, Immediate):
                self.operands[text] = known
        return known

    def _parse(self, text: str) -> Operand:
        if text[0] == "{":
            return Vector(tuple(self._element(part) for part in _OPERAND.findall(text[1:-1])))
        if text[0] == "[":
            return self._address(text)
        if text[0] == "!" and isinstance(register := self._parse(text[1:].strip()), Register):
            return Register(register.name, negated=True)
        if (immediate := _immediate(text)) is not None:
            return immediate
        if _NAME.fullmatch(text):
            return self.resolve(text)
        raise _UnknownOperandError(text)

    def _element(self, text: str) -> Register | Immediate | Symbol:
        if isinstance(operand := self.operand(text), Address | Vector):
            raise _UnknownOperandError(text)
        return operand

    def _address(self, text: str) -> Address:
        if (match := _ADDRESS.fullmatch(text)) is None:
            raise _UnknownOperandError(text)
        name, offset, absolute = match.groups()
        if (value := _integer(offset or absolute or "0")) is None:
            raise _UnknownOperandError(text)
        return Address(self.resolve(name) if name else None, value)


def parse_instruction(text: str, line: int = 1, scope: Scope | None = None) -> Instruction:
    """Reads one instruction, its semicolon optional. Raises PtxError, which names the line.

    Without a scope that declares it, a name is a register if it begins with `%` and a symbol otherwise.
    """
    text = text.strip().removesuffix(";").rstrip()
    scope = scope or Scope()
    if (match := _INSTRUCTION.fullmatch(text)) is None:
        raise PtxError(f"line {line}: not an instruction: {text!r}")
    negated, guard, opcode, rest = match.groups()
    try:
        operands = tuple(scope.operand(part) for part in _OPERAND.findall(rest))
    except _UnknownOperandError as error:
        raise PtxError(f"line {line}: unknown operand {str(error)!r} in {text!r}") from None
    predicate = Register(scope.resolve(guard).name, negated == "!") if guard else None
    return Instruction(opcode, operands, predicate, line, text)

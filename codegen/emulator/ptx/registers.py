"""The registers of all lanes: one array for each register; operands are views of it."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from typing import Any

import numpy as np

from codegen.emulator.alu.arithmetic import DTYPES, Lanes
from codegen.emulator.faults import UnsupportedError
from codegen.emulator.memory.uninitialized import JUNK
from codegen.ptx.instruction import Immediate, Operand, Register, Symbol


class Registers:
    """Rows of `lanes` values, allocated when first named; a row holds junk until it is written."""

    def __init__(
        self, types: Mapping[str, str], special: Mapping[str, Lanes], symbols: Mapping[str, int], lanes: int
    ) -> None:
        self._types = types
        self._rows: dict[str, Lanes] = dict(special)
        self._special = special
        self._symbols = symbols
        self._lanes = lanes
        self._views = self._rows
        self._typed: dict[tuple[str, str], Lanes] = {}
        self._window = slice(0, lanes)

    def window(self, lanes: slice) -> Registers:
        """These registers for some lanes only, in the same memory."""
        part = copy(self)
        part._views, part._typed, part._window = {}, {}, lanes
        return part

    def row(self, name: str) -> Lanes:
        """The bits of a register, or booleans. Raises UnsupportedError for an undeclared one."""
        if (view := self._views.get(name)) is None:
            view = self._views[name] = self._row(name)[self._window]
        return view

    def _row(self, name: str) -> Lanes:
        if (row := self._rows.get(name)) is None:
            kind = self._types.get(name)
            if kind not in DTYPES:
                raise UnsupportedError(f"register {name} is unknown" if kind is None else f"registers of type .{kind}")
            size = DTYPES[kind].itemsize
            row = np.full(self._lanes, True if kind == "pred" else JUNK[size], "?" if kind == "pred" else f"u{size}")
            self._rows[name] = row
        return row

    def source(self, operand: Operand, kind: str, *, narrowing: bool = False) -> Lanes | Any:
        """An operand read as type `kind`: a view that shows later writes too, or a scalar.

        `narrowing` allows registers wider than the type, whose upper bits are ignored.
        """
        if isinstance(operand, Register):
            if operand.negated:
                raise UnsupportedError("unexpected negated predicate")
            if not narrowing:
                return self._exact(operand, kind)
            row, dtype = self.row(operand.name), DTYPES[kind]
            if kind != "pred" and row.dtype.kind == "u" and row.dtype.itemsize > dtype.itemsize:
                # The lower bytes come first: NumPy and PTX are both little-endian here.
                return row.view(f"u{dtype.itemsize}")[:: row.dtype.itemsize // dtype.itemsize].view(dtype)
            return self._exact(operand, kind)
        if isinstance(operand, Immediate):
            return _constant(operand, kind)
        if isinstance(operand, Symbol):
            if operand.name not in self._symbols:
                raise UnsupportedError(f"{operand.name} is not a shared variable")
            return DTYPES[kind].type(self._symbols[operand.name])
        raise UnsupportedError("unexpected operand")

    def destination(self, operand: Operand, kind: str, *, widening: bool = False) -> Lanes:
        """A register to write values of type `kind` to; `widening` allows wider registers, for the extended value."""
        if not isinstance(operand, Register) or operand.name in self._special:
            raise UnsupportedError("a destination must be a register")
        if not widening:
            return self._exact(operand, kind)
        row, dtype = self.row(operand.name), DTYPES[kind]
        if dtype.kind in "ui" and row.dtype.kind == "u" and row.dtype.itemsize > dtype.itemsize:
            return row.view(f"{dtype.kind}{row.dtype.itemsize}")
        return self._exact(operand, kind)

    def _exact(self, register: Register, kind: str) -> Lanes:
        # Cached, as thousands of instructions name the same few registers.
        if (view := self._typed.get((register.name, kind))) is None:
            view = self._typed[register.name, kind] = self._view_as(register, kind)
        return view

    def _view_as(self, register: Register, kind: str) -> Lanes:
        row, dtype = self.row(register.name), DTYPES[kind]
        if row.dtype.itemsize != dtype.itemsize or (row.dtype.kind == "b") != (kind == "pred"):
            raise UnsupportedError(f"{register.name} read as .{kind}, but declared as another type")
        return row.view(dtype)


def _constant(immediate: Immediate, kind: str) -> Any:
    dtype = DTYPES[kind]
    if "16" in kind and "f" in kind:
        raise UnsupportedError(f"an immediate as .{kind}: PTX has these in registers only")
    if kind == "pred":
        return np.bool_(immediate.value != 0)
    bits = 8 * dtype.itemsize
    if dtype.kind == "f" and immediate.kind != kind:
        if immediate.kind != "f64":
            raise UnsupportedError(f"an immediate of this kind as .{kind}")
        return np.uint64(immediate.value).view(np.float64).astype(dtype)
    if immediate.kind != "integer" and immediate.kind != f"f{bits}":
        raise UnsupportedError(f"an immediate of this kind as .{kind}")
    return np.dtype(f"u{dtype.itemsize}").type(immediate.value % (1 << bits)).view(dtype)

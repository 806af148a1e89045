"""Lines of a template that have a meaning, typed: the one reader of what the operators' CUDA sources write.

Most end in a comment `// farm.`, which nvcc passes on; loads and multiply-adds are known by their form. All other lines
are None.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Address:
    """A pointer's register and an offset in bytes."""

    pointer: str
    offset: int


@dataclass(frozen=True, slots=True)
class Load:
    """A load of inputs, from shared memory or straight from global memory."""

    registers: tuple[str, ...]
    address: Address | None
    """In shared memory, through a register; None of all others."""


@dataclass(frozen=True, slots=True)
class GateLoad:
    """A load of the gates of `count` inputs from the number `first` on."""

    first: int
    count: int
    address: Address | None
    """None if it is not a register and an offset."""


@dataclass(frozen=True, slots=True)
class PreparedInput:
    """An input in a register of its own, `x` and its number: brought within bounds, or multiplied by its gate."""

    number: int
    source: str
    """The register it is loaded into."""
    by: Literal["bounds", "gate", "packed gate"]


@dataclass(frozen=True, slots=True)
class Bound:
    """The lowest (side 0) or highest (side 1) value of an input."""

    number: int
    side: int
    column: int
    """Column of the value's eight hexadecimal digits."""
    is_one_instruction: bool
    """Whether it is max.NaN or min.NaN, which the machine has as one instruction."""


@dataclass(frozen=True, slots=True)
class MultiplyAdd:
    """The multiplication of an input by a placeholder, added to an accumulator."""

    accumulator: str
    addend: str
    multiplicand: str
    """A register, or `x` and the number of a prepared input."""
    bits: int
    """The placeholder."""
    column: int
    """Column of the placeholder's eight hexadecimal digits."""


@dataclass(frozen=True, slots=True)
class Accumulation:
    """The addition of a packed float16 accumulator to two of float32, or its conversion to them."""

    row: int
    number: int
    """Number of the accumulator in its row."""
    packed: str
    wide: tuple[str, str]
    """Lower half, upper half; empty names where the packed accumulator becomes those of its halves. `packed` is empty
    too where the accumulator is not begun anew."""


@dataclass(frozen=True, slots=True)
class Bias:
    """The addition of a bias placeholder to an accumulator."""

    register: str
    bits: int
    column: int
    """Column of the placeholder's eight hexadecimal digits."""
    number: int
    """Number of the accumulator in its row."""


@dataclass(frozen=True, slots=True)
class Store:
    """The last steps of one output and its store."""

    number: int
    """Number of the accumulator in its row."""
    output: Address | None
    residual: Address | None
    """Address of the value added to the output; None without a residual."""


@dataclass(frozen=True, slots=True)
class Group:
    """The register of the K group's number."""

    register: str


@dataclass(frozen=True, slots=True)
class FirstGroup:
    """The move of the first K group's number, 0, into a register."""

    register: str

    @property
    def text(self) -> str:
        """The line."""
        return f"mov.u32 {self.register},0; // farm.first_group"


@dataclass(frozen=True, slots=True)
class Turn:
    """The move of a block's first listed column into a register, and the register of the step to its next one."""

    column: str
    first: str
    step: str

    @property
    def text(self) -> str:
        """The line."""
        return f"mov.u32 {self.column},{self.first}; // farm.turn {self.step}"


@dataclass(frozen=True, slots=True)
class TableAddress:
    """The move of the weight table's address into a register."""

    register: str


@dataclass(frozen=True, slots=True)
class Body:
    """The begin or end of the loop's multiply-adds."""

    at: Literal["begin", "end"]


@dataclass(frozen=True, slots=True)
class Label:
    """A label of the kernel's own control flow."""

    name: str


@dataclass(frozen=True, slots=True)
class Branch:
    """A branch to a label, outside of inline assembly."""

    target: str


Line = (
    Load
    | GateLoad
    | PreparedInput
    | Bound
    | MultiplyAdd
    | Accumulation
    | Bias
    | Store
    | Group
    | FirstGroup
    | Turn
    | TableAddress
    | Body
    | Label
    | Branch
)

_LOAD = re.compile(
    r"ld\.(?:shared|global\.nc)(?:\.v[24])?\.[fub]32\s+(%[fr]\d+|\{[^}]*\}),(?:\s*\[(%\w+)(?:\+(-?\d+))?\];$)?"
)
_GATES = re.compile(r"ld\.shared.*?(?:,\[(%\w+)\+(\d+)\];)? // farm\.gates (\d+) (\d+)$")
_REGISTER = re.compile(r"%[fr]\d+")
_BOUNDED = re.compile(r"mov\.f32 x(\d+),(%f\d+);$")
_GATED = re.compile(r"mul\.rn\.(f32|f16x2) x(\d+),(%[fr]\d+),g\2;$")
_BOUND = re.compile(
    r"mov\.f32 b,0f([0-9A-F]{8}); (?:((?:max|min)\.NaN\.f32) x(\d+),x\3,b; |.*)// farm\.(low|high) (\d+)$"
)
_BOUND_INSTRUCTIONS = ("max.NaN.f32", "min.NaN.f32")
_MULTIPLY_ADD = re.compile(r"fma\.rn\.f32 (%f\d+),(%f\d+|x\d+),0f([0-9A-F]{8}),(%f\d+);$")
_PACKED_MULTIPLY_ADD = re.compile(r"mov\.b32 w,0x([0-9A-F]{8}); fma\.rn\.f16x2 (%r\d+),(%r\d+|x\d+),w,(%r\d+);$")
_ACCUMULATION = re.compile(
    r"\{(?:.*mov\.b32 \{l,h\},(%r\d+);(?:.*add\.rn\.f32 (%f\d+),\2,a; add\.rn\.f32 (%f\d+),\3,b;)?)?"
    r".*\} // farm\.accumulate (\d+) (\d+)$"
)
_BIAS = re.compile(r"add\.rn\.f32 (%f\d+),\1,0f([0-9A-F]{8}); // farm\.bias (\d+)$")
_STORE = re.compile(r"\{.*st\.(?:global|volatile\.shared).*\} // farm\.store (\d+)$")
_OUTPUT = re.compile(r"st\.global\.cs\.[fb]\d+ \[(%\w+)(?:\+(-?\d+))?\]")
_RESIDUAL = re.compile(r"ld\.global\.nc\.[fb]\d+ \w+,\[(%\w+)(?:\+(-?\d+))?\]")
_FIRST_GROUP = re.compile(r"mov\.u32 (%r\d+),0; // farm\.first_group$")
_TURN = re.compile(r"mov\.u32 (%r\d+),(%r\d+); // farm\.turn (%r\d+)$")
_TABLE = re.compile(r"mov\.u64 (%rd\d+),0; // farm\.table$")
"""The table is not declared yet, and from compute_90 on nvcc has ptxas read its PTX."""
_LABEL = re.compile(r"(\$\w+):$")
_BRANCH = re.compile(r"\bbra\b")
_GROUP = "// farm.group "
_BODY = "// farm.body."


def read_line(line: str) -> Line | None:
    """The meaning of one line; None for lines that the rewriter and the assembler leave as they are."""
    # A dense template has hundreds of thousands of lines: the first letters tell which patterns to try.
    if line.startswith("fma."):
        return _multiply_add(line)
    if line.startswith("ld."):
        return _load(line)
    if line.startswith("{"):
        return _block(line)
    if line.startswith(("mov.", "mul.", "add.")) and (found := _arithmetic(line)):
        return found
    if line.startswith(_GROUP):
        return Group(line.split()[-1])
    if line == f"{_BODY}begin":
        return Body("begin")
    if line == f"{_BODY}end":
        return Body("end")
    if match := _LABEL.match(line):
        return Label(match[1])
    if _BRANCH.search(line):
        return Branch(line.removesuffix(";").split()[-1])
    return None


def _multiply_add(line: str) -> MultiplyAdd | None:
    if match := _MULTIPLY_ADD.match(line):
        accumulator, multiplicand, bits, addend = match.groups()
        return MultiplyAdd(accumulator, addend, multiplicand, int(bits, 16), match.start(3))
    return None


def _load(line: str) -> Load | GateLoad | None:
    if match := _GATES.match(line):
        pointer, offset, first, count = match.groups()
        return GateLoad(int(first), int(count), Address(pointer, int(offset)) if pointer else None)
    if match := _LOAD.match(line):
        shared = line.startswith("ld.shared") and match[2] is not None
        address = Address(match[2], int(match[3] or 0)) if shared else None
        return Load(tuple(_REGISTER.findall(match[1])), address)
    return None


def _block(line: str) -> Accumulation | Store | None:
    if match := _STORE.match(line):
        return Store(int(match[1]), _address(_OUTPUT, line), _address(_RESIDUAL, line))
    if match := _ACCUMULATION.match(line):
        return Accumulation(int(match[4]), int(match[5]), match[1] or "", (match[2] or "", match[3] or ""))
    return None


def _address(pattern: re.Pattern[str], line: str) -> Address | None:
    match = pattern.search(line)
    return None if match is None else Address(match[1], int(match[2] or 0))


def _arithmetic(line: str) -> Line | None:
    if match := _PACKED_MULTIPLY_ADD.match(line):
        bits, accumulator, multiplicand, addend = match.groups()
        return MultiplyAdd(accumulator, addend, multiplicand, int(bits, 16), match.start(1))
    if match := _BIAS.match(line):
        return Bias(match[1], int(match[2], 16), match.start(2), int(match[3]))
    if match := _BOUNDED.match(line):
        return PreparedInput(int(match[1]), match[2], "bounds")
    if match := _GATED.match(line):
        return PreparedInput(int(match[2]), match[3], "gate" if match[1] == "f32" else "packed gate")
    if match := _BOUND.match(line):
        _, instruction, of, side, number = match.groups()
        is_high = side == "high"
        is_one = instruction == _BOUND_INSTRUCTIONS[is_high] and of == number
        return Bound(int(number), int(is_high), match.start(1), is_one)
    if match := _FIRST_GROUP.match(line):
        return FirstGroup(match[1])
    if match := _TURN.match(line):
        return Turn(match[1], match[2], match[3])
    if match := _TABLE.match(line):
        return TableAddress(match[1])
    return None

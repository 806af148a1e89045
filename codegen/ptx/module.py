"""PTX files: modules, entries and their declarations. Instructions are read on access.

Comments, `.pragma`, `.loc` and `.file` are left out. A block `{ .reg .pred p; ... }` inside a body, from inline
assembly, is dissolved: the names that it declares get a `#` and a number, which no name in PTX can have.
"""

from __future__ import annotations

import re
from bisect import bisect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod

import numpy as np
from numpy.typing import NDArray

from codegen.errors import PtxError
from codegen.ptx.data_table import numbers
from codegen.ptx.instruction import TYPE_BYTES, Instruction, Register, Scope, Symbol, parse_instruction


@dataclass(frozen=True)
class Variable:
    """A variable in the state space `space`; `size_bytes` is 0 for an extern one."""

    name: str
    space: str
    size_bytes: int
    alignment: int
    extern: bool
    numbers: NDArray[np.uint64] | None = field(default=None, compare=False)
    """Initial values of eight bytes each; None for a variable without."""


@dataclass(frozen=True)
class Parameter:
    """A scalar parameter of an entry."""

    name: str
    type: str


class Instructions:
    """The instructions of a body. Opcodes are read at once, operands on access: much code is never executed."""

    def __init__(self, text: str) -> None:
        self.opcodes: list[str] = []
        """Opcodes with every suffix, in order."""
        self._text = text
        self._places: list[tuple[int, int, Scope]] = []

    def append(self, opcode: str, start: int, end: int, scope: Scope) -> None:
        """Adds the instruction text[start:end], whose names are resolved in `scope`."""
        self.opcodes.append(opcode)
        self._places.append((start, end, scope))

    def __len__(self) -> int:
        return len(self.opcodes)

    def guarded(self, number: int) -> bool:
        """Whether the instruction has a predicate."""
        return self._text[self._places[number][0]] == "@"

    def __getitem__(self, number: int) -> Instruction:
        """Reads one instruction. Raises PtxError, which names the line."""
        start, end, scope = self._places[number]
        return parse_instruction(self._text[start:end], bisect(self._newlines, start) + 1, scope)

    def __iter__(self) -> Iterator[Instruction]:
        return (self[number] for number in range(len(self)))

    @cached_property
    def _newlines(self) -> list[int]:
        return [match.start() for match in re.finditer("\n", self._text)]


@dataclass(frozen=True)
class Entry:
    """A kernel; a label is the position of the instruction that follows it."""

    name: str
    parameters: tuple[Parameter, ...]
    instructions: Instructions
    labels: Mapping[str, int]
    registers: Mapping[str, str]
    """Types by name."""
    variables: tuple[Variable, ...]
    """Variables declared in the body."""
    max_threads: int | None = None
    """Most threads of a block (`.maxntid`)."""
    cluster: tuple[int, int, int] = (1, 1, 1)
    """Blocks of a cluster (`.reqnctapercluster`)."""


@dataclass(frozen=True)
class Module:
    """A PTX file."""

    version: str
    target: str
    variables: tuple[Variable, ...]
    entries: Mapping[str, Entry] = field(default_factory=dict)


def parse_module(text: str | bytes) -> Module:
    """Reads a PTX file without the operands of its instructions. Raises PtxError, which names the line."""
    return _ModuleParser(text if isinstance(text, str) else text.decode()).parse()


_NOISE = re.compile(
    r'\.pragma\s+"[^"\n]*"\s*;|//[^\n]*|/\*.*?\*/|^[ \t]*\.(?:loc|file)\b[^\n]*', re.DOTALL | re.MULTILINE
)
_SPACE = re.compile(r"\s*")
_HEADER = re.compile(r"\.(version|target|address_size)\s+([^\n]*)")
_BLOCK_TOKEN = re.compile(r"[{}]|([\w$%]+)\s*:(?!:)")
_STATEMENT = re.compile(
    r"\s*+(?:([{}])|([\w$%]++)\s*+:(?!:)|((?:@!?+[\w$%.]++\s++)?+([a-z][\w.:]*+)[^;]*+);|(\.[^;]*+);|;|(\S))"
)
"""A brace, a label, an instruction and its opcode, a directive, or something else."""
_REGISTERS = re.compile(r"([\w$%]+)(?:\s*<\s*(\d+)\s*>)?")
_VARIABLE = re.compile(
    r"((?:\.(?:visible|extern|weak)\s+)*)\.(shared|global|const|local)\s+(?:\.align\s+(\d+)\s+)?"
    r"\.(\w+)\s+([\w$%]+)((?:\s*\[\s*\d*\s*\])*)"
)
_PARAMETER = re.compile(r"\.param\s+\.(\w+)(?:\s+\.\w+(?:\s+\d+)?)*\s+([\w$%]+)")
_ENTRY = re.compile(r"(?:\.(?:visible|weak)\s+)?\.entry\s+([\w$%]+)\s*(?:\(([^)]*)\))?([^{;]*)")
_CLUSTER = re.compile(r"\.reqnctapercluster\s+(\d+)\s*(?:,\s*(\d+))?\s*(?:,\s*(\d+))?")
_MAX_THREADS = re.compile(r"\.(?:maxntid|reqntid)\s+(\d+)\s*(?:,\s*(\d+))?\s*(?:,\s*(\d+))?")


@dataclass
class _Body:
    """The body of an entry under construction."""

    instructions: Instructions
    labels: dict[str, int] = field(default_factory=dict)
    registers: dict[str, str] = field(default_factory=dict)
    variables: list[Variable] = field(default_factory=list)
    scopes: list[Scope] = field(default_factory=list)
    declared: int = 0
    _opened_at: int | None = None
    """Number of instructions before the innermost scope; None after the end of a block."""

    def open(self, labels: list[str]) -> None:
        outer = self.scopes[-1] if self.scopes else None
        self.scopes.append(Scope(outer))
        self._opened_at = len(self.instructions)
        for label in labels:
            self.declare(label)

    def close(self) -> None:
        self.scopes.pop()
        self._opened_at = None

    def declare(self, name: str, kind: str | None = None) -> str:
        """Makes a name known in the innermost scope, a register if it has a type; gives the name to use for it."""
        if self._opened_at != len(self.instructions):
            # Instructions are read later: earlier ones must not see this declaration.
            self.scopes[-1] = Scope(self.scopes[-1])
            self._opened_at = len(self.instructions)
        unique = name
        if len(self.scopes) > 1:
            self.declared += 1
            unique = f"{name}#{self.declared}"
        self.scopes[-1].declare(name, Register(unique) if kind else Symbol(unique))
        if kind:
            self.registers[unique] = kind
        return unique

    def directive(self, text: str) -> bool:
        """Declares registers or a variable; False if it does neither."""
        if text.startswith(".reg"):
            kind, names = text[4:].strip().split(None, 1)
            for name, count in _REGISTERS.findall(names):
                for each in (f"{name}{i}" for i in range(int(count))) if count else (name,):
                    self.declare(each, kind.removeprefix("."))
        elif variable := _variable(text):
            self.variables.append(replace(variable, name=self.declare(variable.name)))
        else:
            return False
        return True


def _variable(text: str) -> Variable | None:
    declaration, equals, braced = text.partition(" = ")
    if (match := _VARIABLE.fullmatch(declaration)) is None:
        return None
    linkage, space, alignment, kind, name, dimensions = match.groups()
    size = TYPE_BYTES[kind]
    extern = "extern" in linkage
    lengths = [int(length or 0) for length in re.findall(r"\[\s*(\d*)\s*\]", dimensions)]
    values = numbers(braced.removeprefix("{\n").removesuffix("}").encode()) if equals else None
    if values is not None and 8 * len(values) != size * prod(lengths):
        raise PtxError(f"{name} has {len(values)} numbers of 8 bytes, and is declared for {size * prod(lengths)} bytes")
    return Variable(name, space, 0 if extern else size * prod(lengths), int(alignment or size), extern, values)


class _ModuleParser:
    """A position in a text without comments and ignored directives."""

    def __init__(self, text: str) -> None:
        self.text = _NOISE.sub(_without_noise, text)
        self.position = 0

    def parse(self) -> Module:
        header = {"version": "", "target": "", "address_size": ""}
        variables: list[Variable] = []
        entries: dict[str, Entry] = {}
        while self._skip_space():
            if directive := self._match(_HEADER):
                header[directive[1]] = directive[2].strip()
            elif match := self._match(_ENTRY):
                entries[match[1]] = self._entry(match)
            else:
                start = self.position
                text = self._until_semicolon()
                if (variable := _variable(text)) is None:
                    raise self._error(start, f"unknown directive {text!r}")
                variables.append(variable)
        if not header["version"]:
            raise PtxError("line 1: no .version: this is not a PTX file")
        return Module(header["version"], header["target"], tuple(variables), entries)

    def _entry(self, match: re.Match[str]) -> Entry:
        name, parameters, directives = match.groups()
        body = self._body()
        limit, cluster = _MAX_THREADS.search(directives), _CLUSTER.search(directives)
        x, y, z = (int(size or 1) for size in cluster.groups()) if cluster else (1, 1, 1)
        return Entry(
            name,
            tuple(Parameter(each[2], each[1]) for each in _PARAMETER.finditer(parameters or "")),
            body.instructions,
            body.labels,
            body.registers,
            tuple(body.variables),
            prod(int(size or 1) for size in limit.groups()) if limit else None,
            (x, y, z),
        )

    def _body(self) -> _Body:
        body = _Body(Instructions(self.text))
        for token in _STATEMENT.finditer(self.text, self.position):
            brace, label, instruction, opcode, directive, _ = token.groups()
            self.position = token.end()
            if instruction:
                body.instructions.append(opcode, *token.span(3), body.scopes[-1])
            elif label:
                body.labels[body.scopes[-1].resolve(label).name] = len(body.instructions)
            elif brace == "{":
                body.open(self._labels_ahead() if body.scopes else [])
            elif brace:
                body.close()
                if not body.scopes:
                    return body
            elif directive:
                if not body.directive(directive.rstrip()):
                    raise self._error(token.start(5), f"unknown directive {directive!r}")
            elif token[6]:
                self.position = token.start(6)
                rest = self._until_semicolon()
                raise self._error(token.start(6), f"not an instruction: {rest!r}")
        raise self._error(len(self.text), "the file ends within a body")

    def _labels_ahead(self) -> list[str]:
        """The labels of the block that begins here, not those of blocks within it."""
        depth, labels, position = 1, [], self.position
        for token in _BLOCK_TOKEN.finditer(self.text, position):
            depth += {"{": 1, "}": -1}.get(token[0], 0)
            if depth == 0:
                break
            if depth == 1 and token[1]:
                labels.append(token[1])
        return labels

    def _skip_space(self) -> bool:
        """Moves to the next token; False at the end."""
        self._match(_SPACE)
        return self.position < len(self.text)

    def _match(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        if match := pattern.match(self.text, self.position):
            self.position = match.end()
        return match

    def _until_semicolon(self) -> str:
        if (end := self.text.find(";", self.position)) < 0:
            raise self._error(self.position, f"no semicolon after {self.text[self.position : self.position + 40]!r}")
        text = self.text[self.position : end].strip()
        self.position = end + 1
        return text

    def _error(self, position: int, what: str) -> PtxError:
        line = self.text.count("\n", 0, position) + 1
        return PtxError(f"line {line}: {what}")


def _without_noise(match: re.Match[str]) -> str:
    return " " + "\n" * match[0].count("\n")

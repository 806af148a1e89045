"""A model's nodes in plain values, and what they are called."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count

from codegen.errors import CheckpointError

ONNX_DOMAINS = ("", "ai.onnx")


@dataclass(frozen=True)
class Node:
    """A node of an ONNX graph; an optional input or output that is left out is an empty name."""

    operator: str
    domain: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    integers: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Attributes that hold integers; one integer is a list of one."""
    floats: Mapping[str, float] = field(default_factory=dict)
    strings: Mapping[str, str] = field(default_factory=dict)
    owner: str = ""
    """The sub-graph or function that the node is in; empty for the main graph."""
    position: int = -1
    """In the main graph."""

    def input(self, index: int) -> str:
        """An input's name, empty if it is left out."""
        return self.inputs[index] if index < len(self.inputs) else ""

    def integer(self, name: str, default: int) -> int:
        """An attribute that is one integer. Raises CheckpointError if it is not one."""
        values = self.integers.get(name, (default,))
        if len(values) != 1:
            raise CheckpointError(f"its {name} are {list(values)}, not 1 number: export the model again")
        return values[0]

    def __str__(self) -> str:
        return f"{self.operator} {self.name or next(filter(None, self.outputs), '')}".rstrip()


def text(name: str | bytes) -> str:
    """Protobuf hands out what is not UTF-8 as bytes. Raises CheckpointError for that."""
    if isinstance(name, bytes):
        raise CheckpointError(
            f"a name in it is not text ({name!r}), the file is damaged: export or copy the model again"
        )
    return name


def unique_names(nodes: Sequence[Node]) -> list[str]:
    """Each node's own name; an empty or shared one gives way to the name of the node's output."""
    bearers = Counter(node.name for node in nodes)
    taken = {name for name, number in bearers.items() if name and number == 1}
    names = []
    candidates: dict[str, Iterator[str]] = {}
    for node in nodes:
        name = node.name
        if name not in taken or bearers[name] > 1:
            output = next(filter(None, node.outputs), node.operator)
            name = next(each for each in candidates.setdefault(output, _numbered(output)) if each not in taken)
            taken.add(name)
        names.append(name)
    return names


def _numbered(name: str) -> Iterator[str]:
    yield name
    yield from (f"{name}_{i}" for i in count(2))

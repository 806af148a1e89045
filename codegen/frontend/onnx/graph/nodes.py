"""Nodes of an ONNX model in plain values, and their unique names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count

from codegen.errors import CheckpointError

ONNX_DOMAINS = ("", "ai.onnx")


@dataclass(frozen=True)
class Node:
    """A node of an ONNX graph; an omitted optional input or output has an empty name."""

    operator: str
    domain: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    integers: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Integer attributes; a single integer is a tuple of one."""
    floats: Mapping[str, float] = field(default_factory=dict)
    strings: Mapping[str, str] = field(default_factory=dict)
    owner: str = ""
    """The sub-graph that the node is in, in words for messages; empty for the main graph."""
    position: int = -1
    """Index in the main graph; -1 for nodes of sub-graphs."""

    def input(self, index: int) -> str:
        """An input's name; empty if omitted."""
        return self.inputs[index] if index < len(self.inputs) else ""

    def integer(self, name: str, default: int) -> int:
        """An attribute of one integer. Raises CheckpointError if it holds another number of them."""
        values = self.integers.get(name, (default,))
        if len(values) != 1:
            raise CheckpointError(f"its {name} are {list(values)}, not 1 number: export the model again")
        return values[0]

    def __str__(self) -> str:
        return f"{self.operator} {self.name or next(filter(None, self.outputs), '')}".rstrip()


def text(name: str | bytes) -> str:
    """A name as text. Raises CheckpointError for a name that is not UTF-8, which protobuf gives as bytes."""
    if isinstance(name, bytes):
        raise CheckpointError(
            f"a name in it is not text ({name!r}), the file is damaged: export or copy the model again"
        )
    return name


def unique_names(nodes: Sequence[Node]) -> list[str]:
    """A unique name for each node: its own, or its output's name if its own is empty or shared."""
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

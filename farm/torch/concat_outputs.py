"""Concat without copies: layers write their outputs directly into channels of the Concat's output."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from codegen.frontend.onnx.export.network import Network, NetworkNode

MOST_COPIES = 1
"""Most inputs of a Concat that no layer can write into its output; each is copied by one launch."""
MOST_READERS = 1
"""Most layers that read a tensor which lies within another; for several images they copy it, to make it contiguous."""


@dataclass(frozen=True)
class Place:
    """A range of channels of a Concat's output."""

    tensor: str
    """Name of the Concat's output."""
    first: int
    count: int


@dataclass(frozen=True)
class Places:
    """The tensors of a network that lie within others."""

    channels: Mapping[str, int]
    """Number of channels of each containing tensor."""
    written: Mapping[str, Place]
    """Place of each layer output that the layer writes directly."""
    joined: Mapping[str, tuple[Place, Mapping[str, Place]]]
    """Place of each Concat output, with the places of its inputs."""


@dataclass(frozen=True)
class _Parts:
    """The inputs of a Concat: their names, and the first channel of each followed by the total."""

    names: tuple[str, ...]
    starts: tuple[int, ...]

    def run(self, others: Sequence[str]) -> int | None:
        """Index at which `others` occur as consecutive inputs; None if they do not."""
        count = len(others)
        places = range(len(self.names) - count + 1)
        return next((i for i in places if self.names[i : i + count] == tuple(others)), None)


def plan_places(network: Network, writes_among_others: Callable[[str], bool]) -> Places:
    """Plan the places of a network's tensors.

    `writes_among_others` tells whether a compiled layer can write into channels of a larger tensor.
    """
    return _Planner(network, writes_among_others).places()


class _Planner:
    def __init__(self, network: Network, writes_among_others: Callable[[str], bool]) -> None:
        self._network = network
        self._writes = writes_among_others
        self._makers = {name: node for node in network.nodes for name in node.outputs if name}
        self._outputs = {each.name for each in network.outputs}
        self._layer_readers = Counter(name for node in network.nodes if node.layer for name in set(node.inputs))
        self._readers = Counter(name for node in network.nodes for name in node.inputs)
        self._homes: dict[str, _Parts] = {}
        self._written: dict[str, Place] = {}
        self._joined: dict[str, tuple[Place, Mapping[str, Place]]] = {}

    def places(self) -> Places:
        concats = [node for node in self._network.nodes if node.operator == "Concat" and not node.layer]
        # Largest first: smaller ones may be part of it, as in networks where each layer reads all earlier outputs.
        for node in sorted(concats, key=lambda node: -len(node.inputs)):
            if parts := self._parts(node):
                self._place(node.outputs[0], parts)
        channels = {home: parts.starts[-1] for home, parts in self._homes.items()}
        return Places(channels, self._written, self._joined)

    def _place(self, output: str, parts: _Parts) -> None:
        """Place a Concat within a larger one that contains it, or make it a container if layers can write it."""
        if output not in self._outputs and self._layer_readers[output] <= MOST_READERS:
            for home, whole in self._homes.items():
                if (start := whole.run(parts.names)) is not None:
                    self._join(output, home, whole, start, len(parts.names))
                    return
        own = [name for name in parts.names if name not in self._written and self._can_be_written(name)]
        if own and len(parts.names) - len(own) <= MOST_COPIES:
            self._homes[output] = parts
            self._join(output, output, parts, 0, len(parts.names))
            inputs = self._joined[output][1]
            self._written |= {name: inputs[name] for name in own}

    def _join(self, output: str, home: str, whole: _Parts, start: int, count: int) -> None:
        places = {
            whole.names[i]: Place(home, whole.starts[i], whole.starts[i + 1] - whole.starts[i])
            for i in range(start, start + count)
        }
        first, end = whole.starts[start], whole.starts[start + count]
        self._joined[output] = Place(home, first, end - first), places

    def _parts(self, node: NetworkNode) -> _Parts | None:
        """The parts of a Concat along known channels; None for any other. All outputs of a Split count as its input."""
        names: list[str] = []
        for name in node.inputs:
            names.append(name)
            maker = self._makers.get(name)
            if maker is not None and self._is_split(maker) and tuple(names[-len(maker.outputs) :]) == maker.outputs:
                names[-len(maker.outputs) :] = [maker.inputs[0]]
        shapes = [self._shape(name) for name in names]
        ranks = {len(shape) for shape in shapes}
        if len(ranks) > 1 or not ranks <= {3, 4} or len(set(names)) < len(names):
            return None
        counts = [shape[1] for shape in shapes if isinstance(shape[1], int)]
        if len(counts) < len(shapes) or int(node.attributes["axis"]) % ranks.pop() != 1:
            return None
        return _Parts(tuple(names), (0, *accumulate(counts)))

    def _is_split(self, node: NetworkNode) -> bool:
        """Whether a node splits the channels of a layer's output that nothing else reads."""
        source = node.inputs[0] if node.inputs else ""
        rank = len(self._shape(source))
        return (
            node.operator == "Split"
            and rank > 1
            and int(node.attributes.get("axis", 0)) % rank == 1
            and self._readers[source] == 1
            and self._can_be_written(source)
        )

    def _can_be_written(self, name: str) -> bool:
        """Whether a layer can write the tensor within another one without extra copies for its readers."""
        maker = self._makers.get(name)
        return (
            maker is not None
            and bool(maker.layer)
            and self._writes(maker.layer)
            and name not in self._outputs
            and self._layer_readers[name] <= MOST_READERS
        )

    def _shape(self, name: str) -> tuple[int | str | None, ...]:
        """Shape of a tensor; empty if unknown."""
        constant = self._network.constants.get(name)
        return tuple(constant.shape) if constant is not None else self._network.shapes.get(name, ())

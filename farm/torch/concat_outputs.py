"""Where layers write what a Concat puts side by side: at once into its output, so that little is left to copy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from codegen.frontend.onnx.export.network import Network, NetworkNode

MOST_COPIES = 1
"""Tensors of a Concat that no layer writes into its output: each is copied there by a launch of its own."""
MOST_READERS = 1
"""Layers that read a tensor within another: they take contiguous ones, and copy it if it is of several images."""


@dataclass(frozen=True)
class Place:
    """Consecutive channels of a tensor."""

    tensor: str
    """The output of a Concat."""
    first: int
    count: int


@dataclass(frozen=True)
class Places:
    """Which tensors of a network lie within others."""

    channels: Mapping[str, int]
    """Of the tensors that others lie in."""
    written: Mapping[str, Place]
    """Outputs of layers, which write them there."""
    joined: Mapping[str, tuple[Place, Mapping[str, Place]]]
    """Outputs of Concats: each with its inputs, which have to be in their places."""


@dataclass(frozen=True)
class _Parts:
    """What a Concat joins: names, and where each begins, with the end as the last."""

    names: tuple[str, ...]
    starts: tuple[int, ...]

    def run(self, others: Sequence[str]) -> int | None:
        """From which part on these are the same; None if they are none of its runs."""
        count = len(others)
        places = range(len(self.names) - count + 1)
        return next((i for i in places if self.names[i : i + count] == tuple(others)), None)


def places_of(network: Network, writes_among_others: Callable[[str], bool]) -> Places:
    """Plans a network, given which compiled layers can write among the channels of a larger tensor."""
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
        # The largest first: others may be a part of it, as where each layer reads all before it.
        for node in sorted(concats, key=lambda node: -len(node.inputs)):
            if parts := self._parts(node):
                self._place(node.outputs[0], parts)
        channels = {home: parts.starts[-1] for home, parts in self._homes.items()}
        return Places(channels, self._written, self._joined)

    def _place(self, output: str, parts: _Parts) -> None:
        """Within a larger tensor if it is a part of one, else as a tensor that layers write into, if they can."""
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
        """Of a Concat of channels, of images of known channels; all outputs of a Split are its input."""
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
        """Whether it cuts the channels of a layer's output, which nothing else reads."""
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
        """Whether a layer can write it in another tensor, and those that read it lose nothing."""
        maker = self._makers.get(name)
        return (
            maker is not None
            and bool(maker.layer)
            and self._writes(maker.layer)
            and name not in self._outputs
            and self._layer_readers[name] <= MOST_READERS
        )

    def _shape(self, name: str) -> tuple[int | str | None, ...]:
        """Empty if it is not known."""
        constant = self._network.constants.get(name)
        return tuple(constant.shape) if constant is not None else self._network.shapes.get(name, ())

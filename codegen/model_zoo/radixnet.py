"""Layers of the sparse DNN challenge: RadiX-Nets, and random patterns with real values, of as many edges a neuron.

The challenge (Kepner et al. 2019, arXiv 1909.05631) computes Y <- min(32, max(0, Y W + b)) layer after layer. Its
networks come from RadiX-Net (Robinett and Kepner, arXiv 1905.00416): of the mixed radices 2, 2, ..., 2, whose product
is the number of nodes, layer l adds digit l, so that node n has edges to n and to n + 2^l, modulo that number. Each
node is 16 neurons, all of them connected where their nodes are: a neuron has 32 edges, all of weight 1/16.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from codegen.ir.checkpoint import FloatArray

RADIX = 2
"""Of every digit: edges of a node."""
WIDTH = 16
"""Neurons of a node: the Kronecker product with a matrix of ones of this size. Those of node n are n, n + nodes, ..."""
EDGES = RADIX * WIDTH
"""Of a neuron, to the next layer and from the last."""
WEIGHT = 1 / 16
CLIP = 32.0
BLOCK = 512
"""Neurons whose edges are drawn at a time."""
BIASES = {1024: -0.3, 4096: -0.35, 16384: -0.4, 65536: -0.45}
"""By the number of neurons."""


@dataclass(frozen=True, eq=False)
class SparseMatrix:
    """A layer's weights as triples: `values[i]` is that of the edge from neuron `sources[i]` to neuron `targets[i]`."""

    sources: NDArray[np.int64]
    targets: NDArray[np.int64]
    values: FloatArray

    def kernel(self, inputs: int, outputs: int) -> FloatArray:
        """The dense weights [outputs, inputs]."""
        dense = np.zeros((outputs, inputs), dtype=np.float32)
        dense[self.targets, self.sources] = self.values
        return dense


def digits(neurons: int) -> int:
    """Layers after which a RadiX-Net of so many neurons repeats itself. Raises ValueError for other sizes."""
    count = 0
    while WIDTH * RADIX**count < neurons:
        count += 1
    if count < 1 or neurons != WIDTH * RADIX**count:
        raise ValueError(f"no RadiX-Net has {neurons} neurons: give {WIDTH} times a power of two, such as 1024")
    return count


def radix_net(neurons: int, seed: int | None = 0) -> list[SparseMatrix]:
    """The layers of a RadiX-Net until they repeat.

    With a seed the neurons between two layers are shuffled, each time in another way; with None they are not. Raises
    ValueError for sizes that there are none of.
    """
    count = digits(neurons)
    rng = np.random.default_rng(seed)
    plain = np.arange(neurons)
    places = [plain if seed is None else rng.permutation(neurons) for _ in range(count)]
    nodes = np.arange(neurons // WIDTH)
    within = np.arange(WIDTH) * len(nodes)
    layers = []
    for layer in range(count):
        # [nodes, RADIX]: the nodes that each has edges to
        reached = (nodes[:, None] + RADIX**layer * np.arange(RADIX)) % len(nodes)
        sources = np.broadcast_to((nodes[:, None] + within)[:, :, None, None], (len(nodes), WIDTH, RADIX, WIDTH))
        targets = np.broadcast_to((reached[:, :, None] + within)[:, None], sources.shape)
        values = np.full(sources.size, WEIGHT, dtype=np.float32)
        before, after = places[layer], places[(layer + 1) % count]
        layers.append(SparseMatrix(before[sources.ravel()], after[targets.ravel()], values))
    return layers


def random_layers(neurons: int, count: int, seed: int = 0, edges: int = EDGES) -> list[SparseMatrix]:
    """Layers in which each neuron has edges from `edges` others, drawn at random, with normal values.

    Their variance is He's, 2 / edges: rows stay alive and different from each other. Raises ValueError for more edges
    than neurons.
    """
    if not 0 < edges <= neurons:
        raise ValueError(f"{edges} edges a neuron do not fit {neurons} neurons: give 1 to {neurons}")
    rng = np.random.default_rng(seed)
    layers = []
    for _ in range(count):
        blocks = [min(BLOCK, neurons - first) for first in range(0, neurons, BLOCK)]
        sources = np.concatenate([_drawn(rng, rows, neurons, edges) for rows in blocks])
        values = rng.standard_normal((neurons, edges), dtype=np.float32) * np.float32(np.sqrt(2 / edges))
        targets = np.repeat(np.arange(neurons), edges)
        layers.append(SparseMatrix(sources.ravel(), targets, values.ravel()))
    return layers


def _drawn(rng: np.random.Generator, rows: int, neurons: int, edges: int) -> NDArray[np.int64]:
    """[rows, edges]: different numbers below `neurons` in each row."""
    drawn: NDArray[np.int64] = np.argpartition(rng.random((rows, neurons), dtype=np.float32), edges - 1, axis=1)
    return drawn[:, :edges]

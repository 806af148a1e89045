"""Layers of the sparse DNN Graph Challenge: RadiX-Nets, and random patterns with as many edges per neuron.

The challenge (Kepner et al. 2019, arXiv 1909.05631) computes Y <- min(32, max(0, Y W + b)) layer after layer. Its
networks are RadiX-Nets (Robinett and Kepner, arXiv 1905.00416) with radix 2: in layer l, node n has edges to the
nodes n and n + 2^l, modulo the number of nodes. Each node stands for 16 neurons, which have edges to all neurons of the
nodes that it has edges to: a neuron has 32 edges, all of weight 1/16.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from codegen.frontend.tsv.matrix import SparseMatrix

RADIX = 2
"""Radix of every digit: edges per node."""
WIDTH = 16
"""Neurons per node (the Kronecker product with ones): n, n + nodes, n + 2 nodes, ..."""
EDGES = RADIX * WIDTH
"""Edges per neuron in each direction."""
WEIGHT = 1 / 16
"""Weight of every edge."""
BLOCK = 512
"""Neurons whose random edges are drawn at a time, to bound memory."""


def digits(neurons: int) -> int:
    """Number of digits of a RadiX-Net's nodes: the layers until it repeats. Raises ValueError for invalid sizes."""
    count = 0
    while WIDTH * RADIX**count < neurons:
        count += 1
    if count < 1 or neurons != WIDTH * RADIX**count:
        raise ValueError(f"no RadiX-Net has {neurons} neurons: give {WIDTH} times a power of two, such as 1024")
    return count


def radix_net(neurons: int, seed: int | None = 0) -> list[SparseMatrix]:
    """The layers of a RadiX-Net until they repeat.

    A seed shuffles the neurons between layers, None keeps their order. Raises ValueError for invalid sizes.
    """
    count = digits(neurons)
    rng = np.random.default_rng(seed)
    plain = np.arange(neurons)
    places = [plain if seed is None else rng.permutation(neurons) for _ in range(count)]
    nodes = np.arange(neurons // WIDTH)
    within = np.arange(WIDTH) * len(nodes)
    layers = []
    for layer in range(count):
        # [nodes, RADIX]: the nodes that each node has edges to
        reached = (nodes[:, None] + RADIX**layer * np.arange(RADIX)) % len(nodes)
        sources = np.broadcast_to((nodes[:, None] + within)[:, :, None, None], (len(nodes), WIDTH, RADIX, WIDTH))
        targets = np.broadcast_to((reached[:, :, None] + within)[:, None], sources.shape)
        values = np.full(sources.size, WEIGHT, dtype=np.float32)
        before, after = places[layer], places[(layer + 1) % count]
        layers.append(SparseMatrix(before[sources.ravel()], after[targets.ravel()], values))
    return layers


def random_layers(neurons: int, count: int, seed: int = 0, edges: int = EDGES) -> list[SparseMatrix]:
    """Layers in which each neuron has edges from `edges` random neurons, with normal weights.

    The variance is He's, 2 / edges, which keeps rows alive and distinct. Raises ValueError for more edges than neurons.
    """
    if not 0 < edges <= neurons:
        raise ValueError(f"{edges} edges per neuron do not fit {neurons} neurons: give 1 to {neurons}")
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
    """Random distinct numbers below `neurons` in each row, [rows, edges]."""
    drawn: NDArray[np.int64] = np.argpartition(rng.random((rows, neurons), dtype=np.float32), edges - 1, axis=1)
    return drawn[:, :edges]

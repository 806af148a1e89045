"""A network of the sparse DNN challenge with its inputs, and what it computes in float64. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from codegen.frontend.tsv.manifest import BIASES, CLIP
from codegen.frontend.tsv.matrix import SparseMatrix
from codegen.frontend.tsv.network import read_matrices, shared_input_order, sparse_network
from codegen.ir.checkpoint import Checkpoint, FloatArray
from codegen.kernels.register_budget import REGISTERS, allocated
from codegen.model_zoo.radixnet import radix_net, random_layers
from farm.errors import UsageError

KINDS = ("radix-net", "random")
MOST_RANDOM = 120
"""Random layers that are different; a deeper network has them in turn."""
COMPACTED = 10
"""Layers after which the rows that are left are put side by side, from the first on: by then most of them are dead."""
MULTIPROCESSORS = 132
"""Of an H200."""
LAUNCHED_THREADS = 1024
"""Of a launch that goes over all rows, about, for each of them: as many as run with 64 registers each."""
BUFFERS = 7
"""As large as the inputs: those themselves and two for layers in tiles; those and three in lots, or for cuSPARSE."""
REFERENCE_BYTES = 2**30
"""Of the rows that are computed in float64 at once, and of the dense layers for it, unless one alone is larger."""


@dataclass(frozen=True)
class Cycle:
    """Layers of which the first `kept` are different; from then on those from number `again` on take turns."""

    kept: int
    again: int

    def number_of(self, layer: int) -> int:
        """Which of the first ones a layer is."""
        return layer if layer < self.kept else self.again + (layer - self.again) % (self.kept - self.again)


@dataclass(frozen=True, eq=False)
class Challenge:
    """Y <- min(clip, max(0, Y W + bias)), layer after layer."""

    name: str
    neurons: int
    """Of the input and of every layer."""
    matrices: tuple[SparseMatrix, ...]
    """Of each layer; those that repeat are the same value."""
    biases: tuple[float, ...]
    clip: float
    rows: FloatArray
    """[rows, neurons]: the inputs."""
    together: int = 1
    """Layers before rows go for the first time."""

    @property
    def edges(self) -> int:
        """Of all layers."""
        return sum(len(matrix.values) for matrix in self.matrices)

    @property
    def gpu_bytes(self) -> int:
        """That a GPU holds at once: inputs and what layers pass on, in tiles and as cuSPARSE has them."""
        return BUFFERS * self.rows.nbytes + REFERENCE_BYTES + 2 * max(REFERENCE_BYTES, 8 * self.neurons**2)

    def checkpoint(self) -> Checkpoint:
        """Its layers as the farm compiles them, but the outputs in `output_order`."""
        sizes = (self.neurons,) * (len(self.matrices) + 1)
        return sparse_network(self.name, self.name, sizes, self.matrices, self.biases, self.clip, in_order=False)

    @cached_property
    def output_order(self) -> NDArray[np.int64]:
        """Which output each of the checkpoint's is."""
        return shared_input_order(self.matrices[-1], self.neurons)

    def compacts(self, layer: int) -> bool:
        """Whether dead rows go after this layer."""
        return self.together - 1 <= layer < COMPACTED or layer == len(self.matrices) - 1

    def forgets(self, layer: int) -> bool:
        """Whether what layers before this one marked, after which no rows went, is to be forgotten."""
        return layer > 0 and self.compacts(layer) and not self.compacts(layer - 1)

    @cached_property
    def runs(self) -> list[range]:
        """Layers that one launch may compute: rows go only after the last of a run."""
        count = len(self.matrices)
        begins = [i for i in range(1, count) if self.compacts(i - 1)]
        return [range(*each) for each in pairwise([0, *begins, count])]


def cycle_of(checkpoint: Checkpoint) -> Cycle:
    """After how many of its layers they come again, and from which on."""
    names = [layer.weights.digest for layer in checkpoint.layers]
    count = len(names)
    return next(
        Cycle(kept, again)
        for kept in range(1, count + 1)
        for again in range(kept)
        if all(names[i] == names[i - kept + again] for i in range(kept, count))
    )


def made_challenge(kind: str, neurons: int, layers: int, rows: FloatArray, seed: int) -> Challenge:
    """One of KINDS. Raises UsageError for sizes that there are none of."""
    if kind not in KINDS:
        raise UsageError(f"there is no network {kind}: it is {' or '.join(KINDS)}, or a folder of TSV files")
    if kind == "radix-net" and neurons not in BIASES:
        raise UsageError(f"the challenge has no network of {neurons} neurons: give {', '.join(map(str, BIASES))}")
    made = radix_net(neurons, seed) if kind == "radix-net" else random_layers(neurons, min(layers, MOST_RANDOM), seed)
    bias = BIASES[neurons] if kind == "radix-net" else 0.0
    in_turn = tuple(made[i % len(made)] for i in range(layers))
    return Challenge(f"{kind} {neurons} x {layers}", neurons, in_turn, (bias,) * layers, CLIP, rows)


def read_challenge(path: Path, rows: FloatArray) -> Challenge:
    """A network of TSV files. Raises CheckpointError, and UsageError for one whose layers differ in size."""
    manifest, matrices = read_matrices(path)
    if len(set(manifest.neurons)) > 1 or manifest.clip is None:
        raise UsageError(f"{path}: the challenge's networks have a clip, and layers of one size: farm compile takes it")
    return Challenge(manifest.name, manifest.neurons[0], matrices, manifest.biases, manifest.clip, rows)


@dataclass(frozen=True, eq=False)
class Outcome:
    """What a network gives for its inputs, and how many rows were alive on the way."""

    alive: NDArray[np.int64]
    """Numbers of the rows of which something is left."""
    values: NDArray[np.float64]
    """[rows left, neurons]."""
    live_rows: tuple[int, ...]
    """That each layer was given and were not zero."""
    converged_rows: tuple[int, ...]
    """Of those, the ones that the layer left as they were."""

    def live_edges(self, challenge: Challenge) -> int:
        """Multiply-adds of rows that are not zero."""
        counts = (len(matrix.values) for matrix in challenge.matrices)
        return sum(rows * edges for rows, edges in zip(self.live_rows, counts, strict=True))

    @property
    def converged_share(self) -> float:
        """Of all live rows of all layers, those that the layer left as they were."""
        return sum(self.converged_rows) / max(1, sum(self.live_rows))


@dataclass(frozen=True)
class Launching:
    """How the layers of a network are launched."""

    across: int
    """Blocks a K group. Once most rows are dead, fewer of them, each fetching its code, are no faster."""
    overlapping: bool
    """Whether a layer's blocks take the places of the last layer's as these end."""

    def __str__(self) -> str:
        return f"{self.across} blocks a group{', overlapping' if self.overlapping else ''}"


def launchings(threads: int, groups: int, registers: int = 64) -> list[Launching]:
    """Those that are tried for blocks of so many threads with so many registers each.

    As many blocks as there are usually, and only those that run at once, where large groups take many registers.
    """
    at_once = max(1, REGISTERS // (allocated(registers) * threads)) * threads
    launched = {LAUNCHED_THREADS, min(LAUNCHED_THREADS, at_once)}
    across = {max(1, MULTIPROCESSORS * each // threads // groups) for each in launched}
    return [Launching(each, overlapping) for each in sorted(across, reverse=True) for overlapping in (False, True)]


@dataclass(frozen=True)
class Run:
    """What one way to compute the network gave."""

    microseconds: float
    """Median of single replays."""
    rows: int
    """That are left."""
    same_rows: bool
    """As in float64."""
    relative_error: float
    """Norm of the difference over norm of the reference; NaN where the rows are others."""


def outcome_of(challenge: Challenge) -> Outcome:
    """In float64, by NumPy: for few rows."""
    alive = np.flatnonzero(challenge.rows.any(axis=1))
    values = challenge.rows[alive].astype(np.float64)
    live, converged = [], []
    for matrix, bias in zip(challenge.matrices, challenge.biases, strict=True):
        live.append(len(values))
        dense = matrix.kernel(challenge.neurons, challenge.neurons).T.astype(np.float64)
        after = np.clip(values @ dense + bias, 0, challenge.clip)
        converged.append(int((after == values).all(axis=1).sum()))
        left = after.any(axis=1)
        alive, values = alive[left], after[left]
    return Outcome(alive, values, tuple(live), tuple(converged))


def in_tiles(rows: FloatArray, width: int) -> FloatArray:
    """[rows, neurons] to [tiles, neurons, width]: each row a column, zeros behind the last."""
    count, neurons = rows.shape
    tiles = -(-count // width)
    padded = np.zeros((tiles * width, neurons), dtype=np.float32)
    padded[:count] = rows
    return np.ascontiguousarray(padded.reshape(tiles, width, neurons).transpose(0, 2, 1))


@dataclass(frozen=True, eq=False)
class IndexTable:
    """A layer as its index kernels read it: what each group of outputs, or each output, reads and multiplies."""

    first: NDArray[np.int32]
    inputs: NDArray[np.int32]
    weights: FloatArray
    """[entries, group] of groups, [entries] of outputs."""
    most: int
    """Entries of a group of outputs."""


def grouped_table(kernel: FloatArray, group: int) -> IndexTable:
    """Of [outputs, inputs]: for each group its inputs, and the weights that each has in all outputs of the group."""
    parts = [kernel[i : i + group] for i in range(0, len(kernel), group)]
    inputs = [np.flatnonzero(part.any(axis=0)) for part in parts]
    weights = [part[:, used].T for part, used in zip(parts, inputs, strict=True)]
    return _table(inputs, np.concatenate(weights), max(map(len, inputs)))


def edge_table(kernel: FloatArray, group: int) -> IndexTable:
    """Of [outputs, inputs]: for each output its inputs and their weights."""
    inputs = [np.flatnonzero(row) for row in kernel]
    weights = np.concatenate([row[used] for row, used in zip(kernel, inputs, strict=True)])
    counts = np.array([len(used) for used in inputs]).reshape(-1, group)
    return _table(inputs, weights, int(counts.sum(axis=1).max()))


def _table(inputs: Sequence[NDArray[np.int64]], weights: FloatArray, most: int) -> IndexTable:
    first = np.concatenate([[0], np.cumsum([len(used) for used in inputs])])
    together = np.concatenate(inputs).astype(np.int32)
    return IndexTable(first.astype(np.int32), together, np.ascontiguousarray(weights, dtype=np.float32), most)

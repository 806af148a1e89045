"""Networks of the sparse DNN challenge: layers, inputs, float64 reference, launch shapes and index tables."""

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
MAX_RANDOM = 120
"""Most distinct random layers; a deeper network repeats them."""
COMPACTED = 10
"""Leading layers after each of which live rows are compacted: most rows are dead by then."""
MULTIPROCESSORS = 132
"""Multiprocessors of an H200."""
LAUNCHED_THREADS = 1024
"""Threads launched per multiprocessor for a layer over all rows: as many as are resident with 64 registers each."""
BUFFERS = 7
"""Most buffers of the inputs' size: inputs and two for tiled layers, plus inputs and three for batches or cuSPARSE."""
REFERENCE_BYTES = 2**30
"""Memory of the rows computed in float64 at once, and of the dense layers cached for it."""


@dataclass(frozen=True)
class Cycle:
    """Repetition of layers: the first `kept` are distinct; then those from number `again` on repeat."""

    kept: int
    again: int

    def number_of(self, layer: int) -> int:
        """Number of the distinct layer that a layer repeats."""
        return layer if layer < self.kept else self.again + (layer - self.again) % (self.kept - self.again)


@dataclass(frozen=True, eq=False)
class ChallengeNetwork:
    """A network and its input rows: Y <- min(clip, max(0, Y W + bias)), layer after layer."""

    name: str
    neurons: int
    """Size of the input and of every layer."""
    matrices: tuple[SparseMatrix, ...]
    """Weights per layer; repeated layers are the same object."""
    biases: tuple[float, ...]
    clip: float
    rows: FloatArray
    """Inputs, [rows, neurons]."""
    uncompacted: int = 1
    """Layers computed before the first compaction."""

    @property
    def edges(self) -> int:
        """Non-zero weights of all layers."""
        return sum(len(matrix.values) for matrix in self.matrices)

    @property
    def gpu_bytes(self) -> int:
        """GPU memory of a measurement: inputs and activations, in tiles and in cuSPARSE's form."""
        return BUFFERS * self.rows.nbytes + REFERENCE_BYTES + 2 * max(REFERENCE_BYTES, 8 * self.neurons**2)

    def checkpoint(self) -> Checkpoint:
        """The layers as the farm compiles them, with the last outputs in `output_order`."""
        sizes = (self.neurons,) * (len(self.matrices) + 1)
        return sparse_network(self.name, self.name, sizes, self.matrices, self.biases, self.clip, in_order=False)

    @cached_property
    def output_order(self) -> NDArray[np.int64]:
        """Number of the network's output for each output of the checkpoint."""
        return shared_input_order(self.matrices[-1], self.neurons)

    def compacts(self, layer: int) -> bool:
        """Whether live rows are compacted after this layer."""
        return self.uncompacted - 1 <= layer < COMPACTED or layer == len(self.matrices) - 1

    def clears_marks(self, layer: int) -> bool:
        """Whether marks of earlier layers must be cleared before this layer, as no compaction used them."""
        return layer > 0 and self.compacts(layer) and not self.compacts(layer - 1)

    @cached_property
    def segments(self) -> list[range]:
        """Layers between compactions, which one launch may compute."""
        count = len(self.matrices)
        begins = [i for i in range(1, count) if self.compacts(i - 1)]
        return [range(*each) for each in pairwise([0, *begins, count])]


def cycle_of(checkpoint: Checkpoint) -> Cycle:
    """The repetition of a checkpoint's layers."""
    names = [layer.weights.digest for layer in checkpoint.layers]
    count = len(names)
    return next(
        Cycle(kept, again)
        for kept in range(1, count + 1)
        for again in range(kept)
        if all(names[i] == names[i - kept + again] for i in range(kept, count))
    )


def make_network(kind: str, neurons: int, layers: int, rows: FloatArray, seed: int) -> ChallengeNetwork:
    """Makes a network of one of KINDS. Raises UsageError for an unknown kind or size."""
    if kind not in KINDS:
        raise UsageError(f"unknown network {kind}: expected {' or '.join(KINDS)}, or a folder of TSV files")
    if kind == "radix-net" and neurons not in BIASES:
        raise UsageError(f"no RadiX-Net of {neurons} neurons: expected {', '.join(map(str, BIASES))}")
    made = radix_net(neurons, seed) if kind == "radix-net" else random_layers(neurons, min(layers, MAX_RANDOM), seed)
    bias = BIASES[neurons] if kind == "radix-net" else 0.0
    in_turn = tuple(made[i % len(made)] for i in range(layers))
    return ChallengeNetwork(f"{kind} {neurons} x {layers}", neurons, in_turn, (bias,) * layers, CLIP, rows)


def read_network(path: Path, rows: FloatArray) -> ChallengeNetwork:
    """Reads a network of TSV files. Raises CheckpointError, and UsageError for another kind of network."""
    manifest, matrices = read_matrices(path)
    if len(set(manifest.neurons)) > 1 or manifest.clip is None:
        raise UsageError(f"{path}: not a challenge network (a clip, layers of one size): use farm compile")
    return ChallengeNetwork(manifest.name, manifest.neurons[0], matrices, manifest.biases, manifest.clip, rows)


@dataclass(frozen=True, eq=False)
class Outcome:
    """Reference result of a network, and the number of live rows at each layer."""

    alive: NDArray[np.int64]
    """Numbers of the rows with a non-zero output."""
    values: NDArray[np.float64]
    """Outputs of those rows, [live rows, neurons]."""
    live_rows: tuple[int, ...]
    """Non-zero input rows of each layer."""
    converged_rows: tuple[int, ...]
    """Live rows that each layer left unchanged."""

    def live_edges(self, network: ChallengeNetwork) -> int:
        """Multiply-adds of live rows."""
        counts = (len(matrix.values) for matrix in network.matrices)
        return sum(rows * edges for rows, edges in zip(self.live_rows, counts, strict=True))

    @property
    def converged_share(self) -> float:
        """Share of live rows over all layers that the layer left unchanged."""
        return sum(self.converged_rows) / max(1, sum(self.live_rows))


@dataclass(frozen=True)
class LaunchPlan:
    """Launch of each layer of a network."""

    group_blocks: int
    """Blocks per K group; fewer are no faster once most rows are dead, as each fetches its code."""
    overlapping: bool
    """Whether a layer's blocks start while the previous layer's end (programmatic dependent launch)."""

    def __str__(self) -> str:
        return f"{self.group_blocks} blocks a group{', overlapping' if self.overlapping else ''}"


def launch_plans(threads: int, groups: int, registers: int = 64) -> list[LaunchPlan]:
    """Launch plans to measure for blocks of `threads` threads with `registers` registers each.

    One launches LAUNCHED_THREADS per multiprocessor, and one only as many blocks as are resident at once.
    """
    at_once = max(1, REGISTERS // (allocated(registers) * threads)) * threads
    launched = {LAUNCHED_THREADS, min(LAUNCHED_THREADS, at_once)}
    group_blocks = {max(1, MULTIPROCESSORS * each // threads // groups) for each in launched}
    return [
        LaunchPlan(each, overlapping) for each in sorted(group_blocks, reverse=True) for overlapping in (False, True)
    ]


@dataclass(frozen=True)
class VariantRun:
    """Measured run of a variant."""

    microseconds: float
    """Median of single replays."""
    rows: int
    """Rows left at the end."""
    same_rows: bool
    """Whether they are the rows of the float64 reference."""
    relative_error: float
    """Norm of the difference over norm of the reference; NaN if the rows differ."""


def outcome_of(network: ChallengeNetwork) -> Outcome:
    """Reference result in float64 by NumPy, for few rows."""
    alive = np.flatnonzero(network.rows.any(axis=1))
    values = network.rows[alive].astype(np.float64)
    live, converged = [], []
    for matrix, bias in zip(network.matrices, network.biases, strict=True):
        live.append(len(values))
        dense = matrix.kernel(network.neurons, network.neurons).T.astype(np.float64)
        after = np.clip(values @ dense + bias, 0, network.clip)
        converged.append(int((after == values).all(axis=1).sum()))
        left = after.any(axis=1)
        alive, values = alive[left], after[left]
    return Outcome(alive, values, tuple(live), tuple(converged))


def in_tiles(rows: FloatArray, width: int) -> FloatArray:
    """Rows [rows, neurons] as tiles [tiles, neurons, width]: each row is a column, padded with zeros."""
    count, neurons = rows.shape
    tiles = -(-count // width)
    padded = np.zeros((tiles * width, neurons), dtype=np.float32)
    padded[:count] = rows
    return np.ascontiguousarray(padded.reshape(tiles, width, neurons).transpose(0, 2, 1))


@dataclass(frozen=True, eq=False)
class IndexTable:
    """A layer for the index kernels: inputs and weights of each group of outputs, or of each output."""

    first: NDArray[np.int32]
    inputs: NDArray[np.int32]
    weights: FloatArray
    """[entries, group] for groups, [entries] for outputs."""
    most: int
    """Most entries of a group of outputs."""


def grouped_table(kernel: FloatArray, group: int) -> IndexTable:
    """Table of a kernel [outputs, inputs]: the inputs of each group, each with its weights for all its outputs."""
    parts = [kernel[i : i + group] for i in range(0, len(kernel), group)]
    inputs = [np.flatnonzero(part.any(axis=0)) for part in parts]
    weights = [part[:, used].T for part, used in zip(parts, inputs, strict=True)]
    return _table(inputs, np.concatenate(weights), max(map(len, inputs)))


def edge_table(kernel: FloatArray, group: int) -> IndexTable:
    """Table of a kernel [outputs, inputs]: the inputs of each output, with their weights."""
    inputs = [np.flatnonzero(row) for row in kernel]
    weights = np.concatenate([row[used] for row, used in zip(kernel, inputs, strict=True)])
    counts = np.array([len(used) for used in inputs]).reshape(-1, group)
    return _table(inputs, weights, int(counts.sum(axis=1).max()))


def _table(inputs: Sequence[NDArray[np.int64]], weights: FloatArray, most: int) -> IndexTable:
    first = np.concatenate([[0], np.cumsum([len(used) for used in inputs])])
    together = np.concatenate(inputs).astype(np.int32)
    return IndexTable(first.astype(np.int32), together, np.ascontiguousarray(weights, dtype=np.float32), most)

"""Reading of a TSV network into a Checkpoint, and writing.

The layout is transposed: an image is a tile of batch rows, [neurons][rows of the tile], and a layer is a 1x1
convolution of it. The lanes of a warp are then rows, and their loads coalesce. The order of neurons between two layers
is free: neurons that read the same inputs become neighbours, so that a K group loads few inputs.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from codegen.errors import CheckpointError
from codegen.frontend.onnx.export.layer_sequence import LayerSequence
from codegen.frontend.tsv.files import read_inside
from codegen.frontend.tsv.manifest import Manifest, read_manifest, write_manifest
from codegen.frontend.tsv.matrix import SparseMatrix
from codegen.frontend.tsv.triples import MOST_BYTES, parse_triples, write_triples
from codegen.ir.checkpoint import Checkpoint, FloatArray, Layer, Weights
from codegen.ir.layer_spec import Clip, Conv2d
from codegen.keys import digest_fields

TILE_ROWS = 256
"""Rows of the batch per image, unless the network is so wide that addresses exceed OFFSET_BYTES."""
OFFSET_BYTES = 2**23
"""Largest offset of an address in machine code."""
LEAST_ROOM = 2**28
"""Dense weights that any network may have: 1 GB."""
ROOM_PER_TRIPLE = 2**12
"""Further ones for each triple, twice as many as in the emptiest matrix of the Graph Challenge."""
LEAST_TILE_ROWS = 32
"""Least rows per image: the lanes of a warp."""


def read_tsv_network(path: Path | str) -> Checkpoint:
    """Reads a TSV network from a manifest or a folder. Raises CheckpointError, naming the file."""
    manifest, matrices = read_matrices(Path(path))
    return sparse_network(manifest.name, str(path), manifest.neurons, matrices, manifest.biases, manifest.clip)


def read_matrices(path: Path) -> tuple[Manifest, tuple[SparseMatrix, ...]]:
    """The manifest and one matrix per layer; equal files share a matrix. Raises CheckpointError."""
    manifest = read_manifest(path)
    keys: dict[str, tuple[bytes, int, int]] = {}
    read: dict[tuple[bytes, int, int], SparseMatrix] = {}
    layers = []
    for i, name in enumerate(manifest.files):
        path, sizes = manifest.folder / name, (manifest.neurons[i], manifest.neurons[i + 1])
        if name not in keys:
            data = read_inside(manifest.folder, name, MOST_BYTES)
            keys[name] = (hashlib.sha256(data).digest(), *sizes)
            if keys[name] not in read:
                read[keys[name]] = parse_triples(path, data, *sizes)
        elif keys[name][1:] != sizes:
            raise CheckpointError(f"{path} is given for layers of several sizes: give each size a file of its own")
        layers.append(read[keys[name]])
    return manifest, tuple(layers)


def sparse_network(
    name: str,
    path: str,
    neurons: Sequence[int],
    matrices: Sequence[SparseMatrix],
    biases: Sequence[float],
    clip: float | None,
    *,
    in_order: bool = True,
) -> Checkpoint:
    """The checkpoint of these layers; `neurons` are the sizes of the input, then of each layer.

    Layers of equal matrix, bias and order share their weights. With `in_order` the last layer's outputs keep their
    order; without it they come in `shared_input_order`, which gives less code. Raises CheckpointError for matrices
    that are too empty for their dense weights to be held.
    """
    rows = tile_rows(max(neurons))
    distinct = {id(each): each for each in matrices}.values()
    room = LEAST_ROOM + ROOM_PER_TRIPLE * sum(len(each.values) for each in distinct)
    orders: dict[int, NDArray[np.int64]] = {}
    made: dict[tuple[int, int, float, bool], Weights] = {}
    layers = []
    before = -1
    """Id of the matrix whose output order the inputs have; -1 for their own order."""
    for i, (matrix, bias) in enumerate(zip(matrices, biases, strict=True)):
        inputs, outputs, plain = neurons[i], neurons[i + 1], in_order and i == len(matrices) - 1
        if id(matrix) not in orders:
            orders[id(matrix)] = shared_input_order(matrix, outputs)
        key = (id(matrix), before, bias, plain)
        if key not in made:
            if (room := room - inputs * outputs) < 0:
                raise CheckpointError(
                    f"{path}: its dense weights take too much memory: layer {i + 1} has {len(matrix.values):,} "
                    f"triples in a matrix of {inputs} x {outputs}. Correct the number of neurons"
                )
            kernel = matrix.kernel(inputs, outputs)
            kernel = kernel if plain else kernel[orders[id(matrix)]]
            kernel = kernel if before == -1 else kernel[:, orders[before]]
            made[key] = _weights(kernel, bias)
        spec = Conv2d(inputs, 1, rows, outputs, 1, 1, epilogue=(Clip(0.0, clip),))
        tensors = (
            "input" if i == 0 else f"layer{i}.output",
            "output" if i == len(matrices) - 1 else f"layer{i + 1}.output",
        )
        layers.append(Layer(f"layer{i + 1}", spec, made[key], *tensors, operator="TSV"))
        before = id(matrix)
    return Checkpoint(name, path, _digest(layers), tuple(layers), residual_graph=LayerSequence(layers))


def tile_rows(neurons: int) -> int:
    """Rows per image of a network whose widest layer has this many neurons."""
    rows = TILE_ROWS
    while rows > LEAST_TILE_ROWS and 4 * rows * neurons > OFFSET_BYTES:
        rows //= 2
    return rows


def shared_input_order(matrix: SparseMatrix, outputs: int) -> NDArray[np.int64]:
    """An order of the outputs in which those that read the same inputs are neighbours.

    Greedy: each output is followed by the unplaced one that shares the most inputs with it.
    """
    order = np.lexsort((matrix.sources, matrix.targets))
    sources, targets = matrix.sources[order], matrix.targets[order]
    ends = np.searchsorted(targets, np.arange(outputs + 1))
    alike: dict[tuple[int, ...], list[int]] = {}
    for output, (begin, end) in enumerate(pairwise(ends.tolist())):
        alike.setdefault(tuple(sources[begin:end].tolist()), []).append(output)
    read = list(alike)
    readers: dict[int, set[int]] = {}
    for number, inputs in enumerate(read):
        for each in inputs:
            readers.setdefault(each, set()).add(number)
    left = dict.fromkeys(range(len(read)))
    placed: list[int] = []
    shared: Counter[int] = Counter()
    while left:
        number = min(shared, key=lambda other: (-shared[other], other)) if shared else next(iter(left))
        del left[number]
        placed += alike[read[number]]
        for each in read[number]:
            readers[each].discard(number)
        shared = Counter(other for each in read[number] for other in readers[each])
    return np.array(placed, dtype=np.int64)


def write_tsv_network(
    folder: Path, matrices: Sequence[SparseMatrix], neurons: int, layers: int, bias: float, clip: float | None
) -> Path:
    """Writes each matrix once, and a manifest of `layers` layers that cycles through them; returns its path."""
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for i, matrix in enumerate(matrices):
        files.append(f"n{neurons}-l{i + 1}.tsv")
        write_triples(folder / files[-1], matrix)
    in_turn = tuple(files[i % len(files)] for i in range(layers))
    return write_manifest(Manifest(folder.name, (neurons,) * (layers + 1), folder, in_turn, (bias,) * layers, clip))


def _weights(kernel: FloatArray, bias: float) -> Weights:
    values = np.full(len(kernel), bias, dtype=np.float32)
    return Weights(np.ascontiguousarray(kernel)[:, :, None, None], values)


def _digest(layers: Sequence[Layer]) -> str:
    read = [[layer.name, layer.spec.to_json(), layer.weights.digest, layer.input, layer.output] for layer in layers]
    return digest_fields({"layers": json.dumps(read)})

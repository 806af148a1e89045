"""A small network of the Graph ChallengeNetwork, and files of inputs."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from codegen.frontend.tsv.manifest import CLIP
from codegen.frontend.tsv.matrix import SparseMatrix
from codegen.frontend.tsv.triples import write_triples
from codegen.ir.checkpoint import FloatArray
from codegen.model_zoo.radixnet import radix_net
from farm.bench.graphchallenge.network import ChallengeNetwork

NEURONS = 64


def challenge(layers: int = 8, rows: int = 50) -> ChallengeNetwork:
    matrices = radix_net(NEURONS)
    x = (np.random.default_rng(0).random((rows, NEURONS)) < 0.25).astype(np.float32)
    in_turn = tuple(matrices[i % len(matrices)] for i in range(layers))
    return ChallengeNetwork("small", NEURONS, in_turn, (-0.3,) * layers, CLIP, x)


def write_rows(path: Path, rows: FloatArray) -> None:
    """Writes inputs [count, neurons] as triples."""
    sources, targets = np.nonzero(rows)
    write_triples(path, SparseMatrix(sources, targets, rows[sources, targets]))

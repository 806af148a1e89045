"""A network of the challenge that is small enough to be computed at once."""

from __future__ import annotations

import numpy as np

from codegen.model_zoo.radixnet import CLIP, radix_net
from farm.bench.graphchallenge.network import Challenge

NEURONS = 64


def challenge(layers: int = 8, rows: int = 50) -> Challenge:
    matrices = radix_net(NEURONS)
    x = (np.random.default_rng(0).random((rows, NEURONS)) < 0.25).astype(np.float32)
    in_turn = tuple(matrices[i % len(matrices)] for i in range(layers))
    return Challenge("small", NEURONS, in_turn, (-0.3,) * layers, CLIP, x)

"""What a network of the sparse DNN challenge computes in float64, on a GPU: as `outcome_of`, for many rows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from codegen.ir.checkpoint import FloatArray
from farm.bench.graphchallenge.network import REFERENCE_BYTES, Challenge, Outcome


@dataclass(frozen=True, eq=False)
class Reference:
    """The end of a network, with its rows on the GPU too."""

    outcome: Outcome
    alive: torch.Tensor
    """Numbers of the rows of which something is left."""
    values: torch.Tensor
    """[rows left, neurons], float64."""


def reference_of(challenge: Challenge) -> Reference:
    """Computes some rows at a time."""
    rows, layers = challenge.rows, len(challenge.matrices)
    step = max(1, REFERENCE_BYTES // (8 * challenge.neurons))
    alive, values = [], []
    counts = np.zeros((2, layers), dtype=np.int64)
    for first in range(0, len(rows), step):
        left, end = _some(challenge, rows[first : first + step], counts)
        alive.append(left + first)
        values.append(end)
    all_alive, all_values = torch.cat(alive), torch.cat(values)
    live, converged = (tuple(each.tolist()) for each in counts)
    return Reference(Outcome(all_alive.cpu().numpy(), all_values.cpu().numpy(), live, converged), all_alive, all_values)


def _some(challenge: Challenge, rows: FloatArray, counts: NDArray[np.int64]) -> tuple[torch.Tensor, torch.Tensor]:
    """Which of these rows are left, and as what; adds to the counts [2, layers] of live and of converged rows."""
    neurons = challenge.neurons
    values = torch.from_numpy(rows).cuda().double()
    alive = torch.arange(len(values), device="cuda")[values.any(dim=1)]
    values = values[alive]
    dense: dict[int, torch.Tensor] = {}
    for i, (matrix, bias) in enumerate(zip(challenge.matrices, challenge.biases, strict=True)):
        if id(matrix) not in dense:
            if len(dense) >= max(1, REFERENCE_BYTES // (8 * neurons**2)):
                dense.clear()
            dense[id(matrix)] = torch.from_numpy(matrix.kernel(neurons, neurons)).cuda().double().t()
        counts[0, i] += len(values)
        after = (values @ dense[id(matrix)] + bias).clamp_(0, challenge.clip)
        counts[1, i] += int((after == values).all(dim=1).sum())
        left = after.any(dim=1)
        alive, values = alive[left], after[left]
    return alive, values

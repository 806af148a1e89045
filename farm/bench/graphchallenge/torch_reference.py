"""Float64 reference of a network of the sparse DNN challenge on a GPU, for many rows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from codegen.ir.checkpoint import FloatArray
from farm.bench.graphchallenge.network import REFERENCE_BYTES, ChallengeNetwork, Outcome


@dataclass(frozen=True, eq=False)
class Reference:
    """Reference result of a network, with the live rows on the GPU."""

    outcome: Outcome
    alive: torch.Tensor
    """Numbers of the rows with a non-zero output."""
    values: torch.Tensor
    """Outputs of those rows, [live rows, neurons], float64."""


def reference_of(network: ChallengeNetwork) -> Reference:
    """Computes the reference, some rows at a time."""
    rows, layers = network.rows, len(network.matrices)
    step = max(1, REFERENCE_BYTES // (8 * network.neurons))
    alive, values = [], []
    counts = np.zeros((2, layers), dtype=np.int64)
    for first in range(0, len(rows), step):
        left, end = _some(network, rows[first : first + step], counts)
        alive.append(left + first)
        values.append(end)
    all_alive, all_values = torch.cat(alive), torch.cat(values)
    live, converged = (tuple(each.tolist()) for each in counts)
    return Reference(Outcome(all_alive.cpu().numpy(), all_values.cpu().numpy(), live, converged), all_alive, all_values)


def _some(network: ChallengeNetwork, rows: FloatArray, counts: NDArray[np.int64]) -> tuple[torch.Tensor, torch.Tensor]:
    """Live rows among these and their outputs; adds to the counts [2, layers] of live and converged rows."""
    neurons = network.neurons
    values = torch.from_numpy(rows).cuda().double()
    alive = torch.arange(len(values), device="cuda")[values.any(dim=1)]
    values = values[alive]
    dense: dict[int, torch.Tensor] = {}
    for i, (matrix, bias) in enumerate(zip(network.matrices, network.biases, strict=True)):
        if id(matrix) not in dense:
            if len(dense) >= max(1, REFERENCE_BYTES // (8 * neurons**2)):
                dense.clear()
            dense[id(matrix)] = torch.from_numpy(matrix.kernel(neurons, neurons)).cuda().double().t()
        counts[0, i] += len(values)
        after = (values @ dense[id(matrix)] + bias).clamp_(0, network.clip)
        counts[1, i] += int((after == values).all(dim=1).sum())
        left = after.any(dim=1)
        alive, values = alive[left], after[left]
    return alive, values

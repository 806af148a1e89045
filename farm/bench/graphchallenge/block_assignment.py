"""Assignment of output groups to blocks, so that a block reuses the inputs it computed in the layer before."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from codegen.errors import TemplateError
from codegen.ir.checkpoint import Weights


def groups_of_blocks(layers: Sequence[Weights], again: int | None, groups: int, size: int) -> list[NDArray[np.int64]]:
    """For each layer, the group that each block computes: one that reads much of the block's previous output.

    After the last layer comes number `again`; layers before `again` share the last layer's assignment, so that layer
    `again` finds the same one after either. Raises TemplateError for layers that are not of whole groups, or whose
    inputs and outputs differ in number.
    """
    if any(weights.kernel.shape[:2] != (groups * size, groups * size) for weights in layers):
        raise TemplateError("layers need whole groups, and as many inputs as outputs")
    found = [np.arange(groups)]
    for weights in layers[(again or 0) + 1 :]:
        shared = _shared_inputs(weights, groups, size)[:, found[-1]].T
        if again is not None and weights is layers[-1]:
            shared = shared + _shared_inputs(layers[again], groups, size)
        found.append(_matched(shared))
    return [found[-1]] * (again or 0) + found


def _shared_inputs(weights: Weights, groups: int, size: int) -> NDArray[np.int64]:
    """Number of inputs that each group reads from each group of the previous layer, [groups, groups]."""
    read = weights.kernel.reshape(groups, size, -1).any(axis=1)
    found: NDArray[np.int64] = read.reshape(groups, groups, size).sum(axis=2)
    return found


def _matched(shared: NDArray[np.int64]) -> NDArray[np.int64]:
    """Maximum bipartite matching of blocks to groups, given shared inputs [blocks, groups].

    Matched blocks get a group with which they share the most inputs; the others get the rest in order.
    """
    count = len(shared)
    wanted = [np.flatnonzero(row == row.max()) if row.max() else np.zeros(0, np.int64) for row in shared]
    owner = np.full(count, -1)

    def place(block: int, seen: set[int]) -> bool:
        for group in wanted[block].tolist():
            if group not in seen:
                seen.add(group)
                if owner[group] < 0 or place(int(owner[group]), seen):
                    owner[group] = block
                    return True
        return False

    left = [block for block in range(count) if not place(block, set())]
    owner[owner < 0] = left
    found = np.empty(count, np.int64)
    found[owner] = np.arange(count)
    return found

"""The blocks of a launch that run, and the special registers of their threads."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codegen.emulator.alu.arithmetic import Lanes
from codegen.errors import EmulationError
from codegen.ir.launch import MOST_BLOCKS

Dimensions = tuple[int, int, int]
"""x, y, z."""


def chosen_blocks(
    grid: Dimensions, blocks: Sequence[Dimensions] | NDArray[Any] | None, cluster: Dimensions = (1, 1, 1)
) -> NDArray[np.int64]:
    """The chosen blocks, or all [blocks, 3]; the blocks of a cluster are neighbours, in the order of their ranks.

    Raises EmulationError for a grid that no GPU takes, a block outside the grid, and an incomplete cluster.
    """
    if any(size > most for size, most in zip(grid, MOST_BLOCKS, strict=True)):
        raise EmulationError(f"a grid of {grid}: no GPU takes more than {MOST_BLOCKS} blocks")
    if blocks is None:
        x, y, z = (range(size) for size in grid)
        chosen = np.array([(i, j, k) for k, j, i in itertools.product(z, y, x)], dtype=np.int64).reshape(-1, 3)
    else:
        chosen = np.asarray(blocks, dtype=np.int64).reshape(-1, 3)
        # Blocks of one K group have one z and run the same code: as neighbours they are one window of lanes.
        chosen = chosen[np.lexsort(chosen.T)]
    if cluster != (1, 1, 1):
        chosen = _by_cluster(grid, chosen, cluster)
    if (outside := np.flatnonzero(((chosen < 0) | (chosen >= np.array(grid))).any(axis=1))).size:
        raise EmulationError(f"block {tuple(chosen[outside[0]].tolist())} is outside of the grid {grid}")
    return chosen


def _by_cluster(grid: Dimensions, chosen: NDArray[np.int64], cluster: Dimensions) -> NDArray[np.int64]:
    if any(size % of for size, of in zip(grid, cluster, strict=True)):
        raise EmulationError(f"a grid of {grid} cannot be cut into clusters of {cluster} blocks")
    of_cluster = chosen // np.array(cluster)
    chosen = chosen[np.lexsort((*chosen.T, *of_cluster.T))]
    _, counts = np.unique(chosen // np.array(cluster), axis=0, return_counts=True)
    if (counts != prod(cluster)).any():
        raise EmulationError(f"a part of a cluster of {cluster} blocks cannot run without the others")
    return chosen


def special_registers(grid: Dimensions, block: Dimensions, blocks: NDArray[np.int64]) -> dict[str, Lanes]:
    """%tid, %ctaid, %ntid, %nctaid and %laneid of each lane of these blocks [blocks, 3], block after block."""
    x, y, _ = block
    lanes = len(blocks) * prod(block)
    thread = np.arange(lanes) % prod(block)
    threads = (thread % x, thread // x % y, thread // (x * y))
    special = {"%laneid": thread % 32}
    for axis, name in enumerate("xyz"):
        special[f"%tid.{name}"] = threads[axis]
        special[f"%ctaid.{name}"] = np.repeat(blocks[:, axis], prod(block))
        special[f"%ntid.{name}"] = np.full(lanes, block[axis])
        special[f"%nctaid.{name}"] = np.full(lanes, grid[axis])
    return {name: values.astype(np.uint32) for name, values in special.items()}


def place(special: Mapping[str, Lanes], lane: int) -> str:
    """A lane as an error message names it."""
    thread, block = (tuple(int(special[f"%{name}.{axis}"][lane]) for axis in "xyz") for name in ("tid", "ctaid"))
    return f"thread {thread} of block {block}"

"""Verification: a kernel's outputs against the reference, within a bound from the number of terms."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from codegen import emulate
from codegen.layers import FloatArray, Weights
from codegen.operators import operator_of
from codegen.operators.region import Region
from codegen.reference import convolve_region, error_bound_region
from codegen.rewrite import Kernel
from codegen.spec import LayerSpec
from codegen.tiling import Tiling

Block = tuple[int, int, int]

SMALL_GRID = 48
"""A grid of up to this many blocks is run whole."""
PLACES_OF_GROUP = 3
"""At least so many blocks of each K group."""


@dataclass(frozen=True)
class Verification:
    """What was checked and how far it was off."""

    blocks_run: int
    blocks_total: int
    outputs_checked: int
    relative_error: float
    """Norm of the difference over norm of the reference."""
    bound_share: float
    """Largest error of one output as a share of its bound: at most 1 is right."""
    message: str = ""
    """What is wrong, empty if nothing is."""

    @property
    def ok(self) -> bool:
        return not self.message


def sample_blocks(spec: LayerSpec, tiling: Tiling, grid: Block, seed: int) -> list[Block]:
    """Blocks that see every stream and every kind of border: all of a small grid, else the corners of the tile grid,
    the middle of each edge, and some of the interior, over the images in turn. Every K group runs; where there are
    many, they share the places among them."""
    down, across = operator_of(spec).tiles(spec, tiling)
    _, images, groups = grid
    if down * across * images * groups <= SMALL_GRID:
        return [(x, y, z) for z in range(groups) for y in range(images) for x in range(down * across)]
    rng = np.random.default_rng(seed)
    marked = {(r, c) for r in (0, down // 2, down - 1) for c in (0, across // 2, across - 1)}
    blocks = []
    for z in range(groups):
        random = zip(rng.integers(0, down, 2).tolist(), rng.integers(0, across, 2).tolist(), strict=True)
        places = sorted(marked | set(random))
        share = max(PLACES_OF_GROUP, SMALL_GRID // groups)
        for i in range(min(share, len(places))):
            row, column = places[(i + z * share) % len(places)]
            blocks.append((row * across + column, (i + z) % images, z))
    return blocks


def verify_kernel(
    kernel: Kernel, spec: LayerSpec, tiling: Tiling, weights: Weights, *, batch: int = 2, seed: int = 0
) -> Verification:
    """Runs the kernel's PTX in the emulator on sampled blocks and compares with the reference. No GPU is needed."""
    x = random_input(spec, batch, seed)
    output = np.full((batch, *spec.output_shape), np.nan, dtype=np.float32)
    grid = kernel.launch.grid_at(batch)
    blocks = sample_blocks(spec, tiling, grid, seed)
    emulate.run(kernel.ptx, grid, kernel.launch.block, kernel.launch.shared_bytes, [x, output], blocks=blocks)
    regions = [operator_of(spec).block_region(spec, tiling, block) for block in blocks]
    written = np.isfinite(output) | np.isinf(output)
    for region in regions:
        written[region.index] = False
    message = f"{int(written.sum())} outputs written outside the blocks that ran" if written.any() else ""
    return compare(spec, weights, x, output, regions, len(blocks), grid[0] * grid[1] * grid[2], message)


def verify_output(
    spec: LayerSpec, tiling: Tiling, weights: Weights, x: FloatArray, output: FloatArray, grid: Block, seed: int = 0
) -> Verification:
    """Checks the output of a whole run on a GPU: every element written, sampled blocks against the reference."""
    missing = int(np.isnan(output).sum())
    message = f"{missing} outputs were not written" if missing else ""
    blocks = sample_blocks(spec, tiling, grid, seed)
    regions = [operator_of(spec).block_region(spec, tiling, block) for block in blocks]
    return compare(spec, weights, x, output, regions, len(blocks), grid[0] * grid[1] * grid[2], message)


def random_input(spec: LayerSpec, batch: int, seed: int) -> FloatArray:
    """Normal values, fresh for each seed: [batch, C, H, W]."""
    return np.random.default_rng(seed).standard_normal((batch, *spec.input_shape), dtype=np.float32)


def compare(
    spec: LayerSpec,
    weights: Weights,
    x: FloatArray,
    output: FloatArray,
    regions: Iterable[Region],
    blocks_run: int,
    blocks_total: int,
    message: str = "",
) -> Verification:
    """Compares regions of an output with the float64 reference; an output that was not written is NaN and fails."""
    checked = 0
    square_error = square_reference = share = 0.0
    for region in regions:
        arguments = (spec, weights, x[region.image : region.image + 1], region.rows, region.columns, region.kernels)
        reference = convolve_region(*arguments)[0]
        bound = error_bound_region(*arguments)[0]
        got = output[region.index].astype(np.float64)
        error = np.where(got == reference, 0.0, np.abs(got - reference))
        with np.errstate(divide="ignore", invalid="ignore"):
            worst = float(np.max(np.where(error == 0, 0.0, error / bound)))
        checked += got.size
        square_error += float(np.sum(error**2))
        square_reference += float(np.sum(reference**2))
        share = worst if np.isnan(worst) else max(share, worst)
        if not worst <= 1 and not message:
            message = f"image {region.image}, kernels from {region.kernels.start}, rows from {region.rows.start}, "
            message += f"columns from {region.columns.start}: an output is off by {worst:.3g} times its error bound"
    relative = float(np.sqrt(square_error / square_reference)) if square_reference else float(np.sqrt(square_error))
    return Verification(blocks_run, blocks_total, checked, relative, share, message)

"""Verification: a kernel's outputs against the reference, within a bound from the number of terms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codegen.emulator.ptx import emulate
from codegen.emulator.sass.emulate import run as run_words
from codegen.errors import EmulationError
from codegen.ir.checkpoint import Weights
from codegen.ir.dtypes import from_float32, numpy_dtype, to_float32
from codegen.ir.launch import Launch
from codegen.ir.layer_spec import AddResidual, LayerSpec, is_gated, plain
from codegen.ir.tiling import Part, Tiling
from codegen.kernels import AnyTiled, products_together, tiled
from codegen.kernels.block_order import launched_block
from codegen.kernels.output_region import Region
from codegen.ptx.rewrite import rewrite
from codegen.ptx.template import Template
from codegen.sass.cubin import CubinFile
from codegen.sass.verify.hazards import prove
from codegen.verification.dot_products import gated_input
from codegen.verification.reference import outcomes

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


def sample_blocks(layer: AnyTiled, grid: Block, seed: int) -> list[Block]:
    """Blocks that see every stream and every kind of border: all of a small grid, else the corners of the tile grid,
    the middle of each edge, and some of the interior, over the images in turn. Every K group runs; where there are
    many, they share the places among them."""
    across = layer.tiles[1]
    cluster = layer.tiling.cluster
    down, images, groups = grid[0] // across, grid[1], grid[2] // cluster
    if down * across * images * grid[2] <= SMALL_GRID:
        return [(x, y, z) for z in range(grid[2]) for y in range(images) for x in range(down * across)]
    rng = np.random.default_rng(seed)
    marked = {(r, c) for r in (0, down // 2, down - 1) for c in (0, across // 2, across - 1)}
    blocks = []
    for z in range(groups):
        random = zip(rng.integers(0, down, 2).tolist(), rng.integers(0, across, 2).tolist(), strict=True)
        places = sorted(marked | set(random))
        share = max(PLACES_OF_GROUP, SMALL_GRID // groups)
        for i in range(min(share, len(places))):
            row, column = places[(i + z * share) % len(places)]
            place = row * across + column, (i + z) % images
            blocks += [(*place, z * cluster + rank) for rank in range(cluster)]  # one cannot run without the others
    return blocks


def verify_layer(
    template: Template,
    weights: Weights,
    parts: Sequence[Part],
    launches: Sequence[Launch] | None = None,
    *,
    cubins: Sequence[bytes] | None = None,
    batch: int = 2,
    seed: int = 0,
) -> Verification:
    """Runs the PTX of these parts of a layer in the emulator, on sampled blocks, and compares with the reference.

    `launches` are those of the parts' cubins, if these were made before. With `cubins`, their machine code runs instead
    of the PTX, once it is proved to wait for what it uses. No GPU is needed. `batch` is in images, or in rows of a
    Linear. Raises EmulationError, and MachineCodeError for machine code that is refused.
    """
    layer = tiled(template.spec, template.tiling)
    spec, tiling = layer.spec, layer.tiling
    x, residual = random_input(spec, batch, seed), random_residual(spec, batch, seed)
    gate = random_gate(spec, batch, seed)
    output = poisoned(spec, batch)
    arrays: dict[str, Any] = {"input": x, "output": output, "residual": residual, "gate": gate}
    arrays |= layer.launch.numbers(batch)
    grid = layer.launch.grid_at(batch)
    chosen = sample_blocks(layer, grid, seed)
    run: list[Block] = []
    for number, part in enumerate(parts):
        kernel = rewrite(template, weights, part)
        launch = kernel.launch if launches is None else launches[number]
        if launch.grid != kernel.launch.grid:
            raise EmulationError(
                "this version of farm divides the layer into other blocks than the one that compiled it, so nobody "
                "knows what a block should compute: run farm compile again, or verify the cubins with --gpu"
            )
        blocks = [block for block in chosen if part.first <= block[2] < part.end]
        here = launch.grid_at(batch)
        places = [launched_block(layer, (i, j, k - part.first), here) for i, j, k in blocks]
        given = [arrays[name] for name in launch.arguments]
        if cubins is None:
            emulate.run(kernel.ptx, launch.grid_at(batch), launch.block, launch.shared_bytes, given, blocks=places)
        else:
            cubin = CubinFile.read(cubins[number])
            prove(cubin)
            run_words(cubin, launch.grid_at(batch), launch.block, launch.shared_bytes, given, places)
        run += blocks
    regions = [layer.block_region(block) for block in run]
    written = is_written(output)
    for region in regions:
        written[region.index(written.ndim)] = False
    message = f"{int(written.sum())} outputs written outside the blocks that ran" if written.any() else ""
    x = x if gate is None else gated_input(spec, x, gate)
    return compare(plain(spec), tiling, weights, x, output, residual, regions, grid[0] * grid[1] * grid[2], message)


def verify_output(
    spec: LayerSpec,
    tiling: Tiling,
    weights: Weights,
    x: NDArray[Any],
    output: NDArray[Any],
    *,
    residual: NDArray[Any] | None = None,
    gate: NDArray[Any] | None = None,
    seed: int = 0,
) -> Verification:
    """Checks the output of a whole run on a GPU: every element written, sampled blocks against the reference."""
    missing = int((~is_written(output)).sum())
    message = f"{missing} outputs were not written" if missing else ""
    layer = tiled(spec, tiling)
    spec = layer.spec
    x, output = x.reshape(-1, *spec.input_shape), output.reshape(-1, *spec.output_shape)
    residual = None if residual is None else residual.reshape(output.shape)
    grid = layer.launch.grid_at(len(x))
    blocks = sample_blocks(layer, grid, seed)
    regions = [layer.block_region(block) for block in blocks]
    x = x if gate is None else gated_input(spec, x, gate)
    return compare(plain(spec), tiling, weights, x, output, residual, regions, grid[0] * grid[1] * grid[2], message)


def random_input(spec: LayerSpec, batch: int, seed: int) -> NDArray[Any]:
    """Normal values, fresh for each seed: [batch, *input_shape], held as `numpy_dtype` says."""
    values = np.random.default_rng(seed).standard_normal((batch, *spec.input_shape), dtype=np.float32)
    return from_float32(values, spec.data_type)


def random_residual(spec: LayerSpec, batch: int, seed: int) -> NDArray[Any] | None:
    """Normal values for a layer that adds a residual: [batch, *output_shape]; None for others."""
    if AddResidual() not in spec.epilogue:
        return None
    values = np.random.default_rng(seed + 1).standard_normal((batch, *spec.output_shape), dtype=np.float32)
    return from_float32(values, spec.data_type)


def random_gate(spec: LayerSpec, batch: int, seed: int) -> NDArray[Any] | None:
    """Normal values for a gated layer: [batch, channels]; None for others."""
    if not is_gated(spec):
        return None
    values = np.random.default_rng(seed + 2).standard_normal((batch, spec.channels), dtype=np.float32)
    return from_float32(values, spec.data_type)


def poisoned(spec: LayerSpec, batch: int) -> NDArray[Any]:
    """An output in which every element is NaN: what the kernel does not write stays one."""
    bits = np.full((batch, *spec.output_shape), -1, dtype=f"i{numpy_dtype(spec.data_type).itemsize}")
    return bits.view(numpy_dtype(spec.data_type))


def is_written(output: NDArray[Any]) -> NDArray[np.bool_]:
    """Which elements of an output are no longer as `poisoned` left them: no arithmetic gives that very NaN."""
    written: NDArray[np.bool_] = np.ascontiguousarray(output).view(f"i{output.dtype.itemsize}") != -1
    return written


def compare(
    spec: LayerSpec,
    tiling: Tiling,
    weights: Weights,
    x: NDArray[Any],
    output: NDArray[Any],
    residual: NDArray[Any] | None,
    regions: Sequence[Region],
    blocks_total: int,
    message: str = "",
) -> Verification:
    """Compares regions of an output, one a block, with the float64 reference.

    What `outcomes` allows beyond the reference, after an overflow, is right and has no part in the errors. An output
    that was not written fails.
    """
    together = products_together(weights, tiling)
    checked = 0
    square_error = square_reference = share = 0.0
    for region in regions:
        index = region.index(output.ndim)
        expected, *others = outcomes(spec, weights, x, region, residual, together)
        got = to_float32(output[index], spec.data_type).astype(np.float64)
        overflowed = np.zeros(got.shape, dtype=np.bool_)
        for other in others:
            overflowed |= other.is_met_by(got)
        overflowed &= ~expected.is_met_by(got) & is_written(output[index])
        with np.errstate(divide="ignore", invalid="ignore"):
            error = np.where((got == expected.value) | overflowed, 0.0, np.abs(got - expected.value))
            shares = np.where(error == 0, 0.0, error / expected.error)
        worst = float(np.max(shares, initial=0.0))
        checked += got.size
        square_error += float(np.sum(error**2))
        square_reference += float(np.sum(expected.value[~overflowed] ** 2))
        share = worst if np.isnan(worst) else max(share, worst)
        if not worst <= 1 and not message:
            place = ", ".join(str(each.start or 0) for each in region.index(output.ndim))
            of = np.unravel_index(np.argmax(shares), shares.shape)
            wrong = f"is {got[of]:.3g} instead of {expected.value[of]:.3g}"
            wrong += f", off by {worst:.3g} times its error bound" if np.isfinite(worst) else ""
            message = f"in the block of outputs from [{place}]: one {wrong}"
    relative = float(np.sqrt(square_error / square_reference)) if square_reference else float(np.sqrt(square_error))
    return Verification(len(regions), blocks_total, checked, relative, share, message)

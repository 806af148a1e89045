"""Verification of a layer's outputs against the float64 reference, within error bounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
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
from codegen.ptx.rewrite import rewrite
from codegen.ptx.template import Template
from codegen.sass.cubin import CubinFile
from codegen.sass.verify.hazards import check_cubin
from codegen.verification.dot_products import gated_input
from codegen.verification.reference import outcomes

Block = tuple[int, int, int]

SMALL_GRID = 48
"""Grids of up to this many blocks run whole."""
MIN_BLOCKS_OF_GROUP = 3
"""Fewest sampled blocks of a K group."""


@dataclass(frozen=True)
class LayerRun:
    """One execution of a layer: its arrays, held as `numpy_dtype` says."""

    spec: LayerSpec
    tiling: Tiling
    weights: Weights
    x: NDArray[Any]
    """Input, [batch, *input_shape]."""
    output: NDArray[Any]
    """Output, [batch, *output_shape]; `poisoned` where a kernel has not written."""
    residual: NDArray[Any] | None = None
    """Residual of the epilogue, shaped as the output; None for a layer without one."""
    gate: NDArray[Any] | None = None
    """Channel gates, [batch, channels]; None for a layer without gates."""
    seed: int = 0
    """Seed of the sampled blocks."""
    groups: int | None = None
    """Most K groups to sample; None: all, so that every instruction runs."""

    def arrays(self) -> dict[str, NDArray[Any] | None]:
        """Arrays by the names of a launch's arguments."""
        return {"input": self.x, "output": self.output, "residual": self.residual, "gate": self.gate}


def random_run(spec: LayerSpec, tiling: Tiling, weights: Weights, batch: int = 2, seed: int = 0) -> LayerRun:
    """A run on random arrays, with a poisoned output; `batch` counts images, or rows of a Linear."""
    x, residual, gate = (
        random_input(spec, batch, seed),
        random_residual(spec, batch, seed),
        random_gate(spec, batch, seed),
    )
    return LayerRun(spec, tiling, weights, x, poisoned(spec, batch), residual, gate, seed)


@dataclass(frozen=True)
class Verification:
    """Result of a comparison with the reference."""

    blocks_run: int
    blocks_total: int
    outputs_checked: int
    relative_error: float
    """Norm of the difference over norm of the reference."""
    bound_share: float
    """Largest error of an output as a share of its bound; at most 1 for a correct output."""
    message: str = ""
    """The first defect found; empty if there is none."""

    @property
    def ok(self) -> bool:
        return not self.message


def sample_blocks(layer: AnyTiled, grid: Block, seed: int, most_groups: int | None = None) -> list[Block]:
    """Blocks that cover every instruction stream, or `most_groups` drawn ones, and every kind of border.

    A small grid is taken whole. In a larger one each K group gets some of the tile grid's corners, edge centres and
    random interior tiles, on different images; many K groups share these places among them. K groups of one block count
    as one.
    """
    across = layer.tiles[1]
    cluster = layer.tiling.cluster
    down, images, groups = grid[0] // across, grid[1], grid[2] // cluster
    rng = np.random.default_rng(seed)
    drawn = list(range(groups))
    if most_groups is not None and most_groups < groups:
        drawn = sorted(rng.choice(groups, most_groups, replace=False).tolist())
    if down * across * images * grid[2] <= SMALL_GRID:
        ranks = (z * cluster + rank for z in drawn for rank in range(cluster))
        return [(x, y, z) for z in ranks for y in range(images) for x in range(down * across)]
    marked = {(r, c) for r in (0, down // 2, down - 1) for c in (0, across // 2, across - 1)}
    blocks = []
    for z in drawn:
        random = zip(rng.integers(0, down, 2).tolist(), rng.integers(0, across, 2).tolist(), strict=True)
        places = sorted(marked | set(random))
        share = max(MIN_BLOCKS_OF_GROUP, SMALL_GRID // len(drawn))
        for i in range(min(share, len(places))):
            row, column = places[(i + z * share) % len(places)]
            place = row * across + column, (i + z) % images
            blocks += [
                (*place, z * cluster + rank) for rank in range(cluster)
            ]  # the blocks of a cluster run together only
    return blocks


def verify_layer(
    template: Template,
    run: LayerRun,
    parts: Sequence[Part],
    launches: Sequence[Launch] | None = None,
    cubins: Sequence[bytes] | None = None,
) -> Verification:
    """Emulates parts of a layer on sampled blocks, which write `run.output`, and compares the output.

    The emulator runs the rewritten PTX or, with `cubins`, their machine code, one cubin per part, after the hazard
    check. `launches` are the recorded launches of the parts; the default is those of the rewritten PTX. Raises
    EmulationError, and MachineCodeError for machine code that the hazard checker or the emulator refuses.
    """
    layer = tiled(run.spec, run.tiling)
    run = _lowered(run, layer)
    batch = len(run.x)
    arrays: dict[str, Any] = {**run.arrays(), **layer.launch.numbers(batch)}
    sampled = sample_blocks(layer, layer.launch.grid_at(batch), run.seed, run.groups)
    blocks_run: list[Block] = []
    for number, part in enumerate(parts):
        kernel = rewrite(template, run.weights, part)
        launch = kernel.launch if launches is None else launches[number]
        if launch.grid != kernel.launch.grid:
            raise EmulationError(
                "another version of farm divided this layer into other blocks: run farm compile again, or verify the "
                "cubins with --gpu"
            )
        grid = launch.grid_at(batch)
        first, end = part.first // layer.tiling.block_groups, part.end // layer.tiling.block_groups
        blocks = [block for block in sampled if first <= block[2] < end]
        if not blocks:
            continue
        launched = [launched_block(layer, (i, j, k - first), grid) for i, j, k in blocks]
        arguments = [arrays[name] for name in launch.arguments]
        if cubins is None:
            emulate.run(kernel.ptx, grid, launch.block, launch.shared_bytes, arguments, blocks=launched)
        else:
            cubin = CubinFile.read(cubins[number])
            check_cubin(cubin)
            run_words(cubin, grid, launch.block, launch.shared_bytes, arguments, launched)
        blocks_run += blocks
    written = is_written(run.output)
    for block in blocks_run:
        for region in layer.block_regions(block):
            written[region.index(written.ndim)] = False
    message = f"{int(written.sum())} outputs written outside the blocks that ran" if written.any() else ""
    return _compare(run, layer, blocks_run, message)


def verify_output(run: LayerRun) -> Verification:
    """Verifies the output of a whole run on a GPU: every element is written, and sampled blocks are compared."""
    missing = int((~is_written(run.output)).sum())
    message = f"{missing} outputs were not written" if missing else ""
    layer = tiled(run.spec, run.tiling)
    run = _lowered(run, layer)
    return _compare(run, layer, sample_blocks(layer, layer.launch.grid_at(len(run.x)), run.seed), message)


def _lowered(run: LayerRun, layer: AnyTiled) -> LayerRun:
    """The run with the lowered layer's spec and views of the arrays in its shapes."""
    output = run.output.reshape(-1, *layer.spec.output_shape)
    residual = None if run.residual is None else run.residual.reshape(output.shape)
    x = run.x.reshape(-1, *layer.spec.input_shape)
    return replace(run, spec=layer.spec, tiling=layer.tiling, x=x, output=output, residual=residual)


def random_input(spec: LayerSpec, batch: int, seed: int) -> NDArray[Any]:
    """Normal values of a seed, [batch, *input_shape], held as `numpy_dtype` says."""
    values = np.random.default_rng(seed).standard_normal((batch, *spec.input_shape), dtype=np.float32)
    return from_float32(values, spec.data_type)


def random_residual(spec: LayerSpec, batch: int, seed: int) -> NDArray[Any] | None:
    """Normal values, [batch, *output_shape], for a layer that adds a residual; else None."""
    if AddResidual() not in spec.epilogue:
        return None
    values = np.random.default_rng(seed + 1).standard_normal((batch, *spec.output_shape), dtype=np.float32)
    return from_float32(values, spec.data_type)


def random_gate(spec: LayerSpec, batch: int, seed: int) -> NDArray[Any] | None:
    """Normal values, [batch, channels], for a gated layer; else None."""
    if not is_gated(spec):
        return None
    values = np.random.default_rng(seed + 2).standard_normal((batch, spec.channels), dtype=np.float32)
    return from_float32(values, spec.data_type)


def poisoned(spec: LayerSpec, batch: int) -> NDArray[Any]:
    """An output filled with one NaN bit pattern that marks elements no kernel has written."""
    bits = np.full((batch, *spec.output_shape), -1, dtype=f"i{numpy_dtype(spec.data_type).itemsize}")
    return bits.view(numpy_dtype(spec.data_type))


def is_written(output: NDArray[Any]) -> NDArray[np.bool_]:
    """Mask of elements that differ from the poison pattern, which arithmetic never produces."""
    written: NDArray[np.bool_] = np.ascontiguousarray(output).view(f"i{output.dtype.itemsize}") != -1
    return written


def _compare(run: LayerRun, layer: AnyTiled, blocks: Sequence[Block], message: str) -> Verification:
    """Compares the outputs of blocks with the float64 reference.

    After an overflow, any outcome that `outcomes` allows is correct and does not count as an error. An output that was
    not written is wrong. A non-empty `message` is kept as the first defect.
    """
    spec, output = plain(run.spec), run.output
    x = run.x if run.gate is None else gated_input(run.spec, run.x, run.gate)
    grid = layer.launch.grid_at(len(x))
    regions = [region for block in blocks for region in layer.block_regions(block)]
    together = products_together(run.weights, run.tiling)
    checked = 0
    square_error = square_reference = share = 0.0
    for region in regions:
        index = region.index(output.ndim)
        expected, *others = outcomes(spec, run.weights, x, region, run.residual, together)
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
            place = ", ".join(str(each.start or 0) for each in index)
            of = np.unravel_index(np.argmax(shares), shares.shape)
            wrong = f"is {got[of]:.3g} instead of {expected.value[of]:.3g}"
            wrong += f", off by {worst:.3g} times its error bound" if np.isfinite(worst) else ""
            message = f"in the block of outputs from [{place}]: one {wrong}"
    relative = float(np.sqrt(square_error / square_reference)) if square_reference else float(np.sqrt(square_error))
    return Verification(len(blocks), grid[0] * grid[1] * grid[2], checked, relative, share, message)

"""A layer as its kernel computes it: lowered once, and passed on to all that ask about it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from codegen.ir.checkpoint import Weights
from codegen.ir.launch import Launch
from codegen.ir.layer_spec import Conv2d, ConvTranspose2d, LayerSpec, Linear
from codegen.ir.tiling import Part, Tiling
from codegen.kernels.fp16_packing import Pairing, pairing
from codegen.kernels.geometry import Geometry, Streams
from codegen.kernels.output_region import Region
from codegen.kernels.shared_input_tile import InputTile, input_tile
from codegen.kernels.workload import Work

Spec = TypeVar("Spec", bound=LayerSpec, covariant=True)


class Operator(Protocol):
    """What an operator's module holds: how layers of its specs are divided, and the text of their kernels."""

    SOURCE: str
    """The .cu file of this folder that its templates are made from."""

    def sources(self, layer: Tiled[Any]) -> dict[str, str]:
        """The generated headers that the .cu includes."""

    def launch_of(self, layer: Tiled[Any], part: Part | None = None) -> Launch:
        """Grid, block and shared memory of the kernel of a part; of all K groups without one."""

    def block_region(self, layer: Tiled[Any], block: tuple[int, int, int]) -> Region:
        """The outputs that a block writes: blockIdx.x, blockIdx.y and the number of its K group in the layer."""

    def work(self, layer: Tiled[Any]) -> Work:
        """What one stream does."""

    def candidates(self, layer: Lowered[Any]) -> Iterator[Tiling]:
        """Tilings worth a look, in a fixed order, whether they fit or not."""


class TabledOperator(Operator, Protocol):
    """An operator of kernels whose weights are a table beside the code."""

    def table(self, layer: Tiled[Any], weights: Weights) -> NDArray[np.uint64]:
        """The weights as its kernels read them."""

    def table_bytes(self, layer: Tiled[Any], nonzeros: float) -> float:
        """About how large that is, were the non-zeros spread evenly."""


class GeneralOperator(Operator, Protocol):
    """An operator that every layer of its specs can be given to; the others are for layers that suit them."""

    def last_resort(self, layer: Lowered[Any]) -> Iterator[Tiling]:
        """Tilings of layers that the limits leave no other."""


@dataclass(frozen=True)
class Lowered(Generic[Spec]):
    """A layer, whatever its tiling: `codegen.kernels.lower` makes it."""

    spec: Spec
    """Canonical."""
    geometry: Geometry
    operator: GeneralOperator = field(repr=False)
    unstaged: Operator | None = field(default=None, repr=False)
    """The operator of tilings without stages, for layers that have them."""
    stationary: Operator | None = field(default=None, repr=False)
    """The operator of tilings with clusters, for layers that have them."""
    tabled: TabledOperator | None = field(default=None, repr=False)
    """The operator of tilings whose weights are a table, for layers that have them."""
    _input_tiles: dict[tuple[object, ...], InputTile] = field(default_factory=dict, repr=False, compare=False)
    """Input tiles of earlier tilings: hundreds of candidates share the same input."""
    _streams: dict[tuple[int, int, int], Streams] = field(default_factory=dict, repr=False, compare=False)
    """Likewise, by the kernels of a group, the channels of a chunk and the blocks of a cluster."""
    _works: dict[tuple[object, ...], Work] = field(default_factory=dict, repr=False, compare=False)
    """What streams do, by all of their tilings but stages and order: chunks in flight, and which blocks are first, do
    not matter to it."""

    def tiled(self, tiling: Tiling) -> Tiled[Spec]:
        """The layer divided."""
        return Tiled(self, tiling)

    def candidates(self) -> Iterator[Tiling]:
        """Tilings worth a look, in a fixed order, whether they fit or not."""
        return self.operator.candidates(self)

    def last_resort(self) -> Iterator[Tiling]:
        """Tilings of layers that the limits leave no other."""
        return self.operator.last_resort(self)


@dataclass(frozen=True)
class Tiled(Generic[Spec]):
    """A lowered layer and how a tiling divides it; each quantity is computed once, when somebody asks for it."""

    layer: Lowered[Spec]
    tiling: Tiling

    @property
    def spec(self) -> Spec:
        return self.layer.spec

    @property
    def geometry(self) -> Geometry:
        return self.layer.geometry

    @property
    def operator(self) -> Operator:
        """What generates its kernels."""
        layer, tiling = self.layer, self.tiling
        if tiling.form == "table":
            return layer.tabled or layer.operator
        special = layer.unstaged if not tiling.stages else layer.stationary if tiling.cluster > 1 else None
        return special or layer.operator

    @cached_property
    def streams(self) -> Streams:
        tiling, all_streams = self.tiling, self.layer._streams
        key = (tiling.group_outputs, tiling.chunk_channels, tiling.cluster)
        if (streams := all_streams.get(key)) is None:
            streams = all_streams[key] = Streams.of(self.geometry, tiling)
        return streams

    @property
    def sums(self) -> int:
        """Sums per row of a thread: one for each phase of each output channel of the group."""
        return self.tiling.group_outputs * self.geometry.phase_count

    @cached_property
    def work(self) -> Work:
        """What one stream does."""
        if not self.tiling.stages or self.tiling.cluster > 1:
            return self.operator.work(self)
        tiling, works = self.tiling, self.layer._works
        block = (tiling.tile_width, tiling.tile_height, tiling.rows, tiling.images)
        key = (*block, tiling.group_outputs, tiling.chunk_channels, tiling.accumulate, tiling.form, tiling.listed)
        if (work := works.get(key)) is None:
            work = works[key] = self.operator.work(self)
        return work

    @cached_property
    def launch(self) -> Launch:
        """How to launch one kernel that has all K groups."""
        return self.operator.launch_of(self)

    def launch_of(self, part: Part) -> Launch:
        """How to launch the kernel that has this part's K groups."""
        return self.operator.launch_of(self, part)

    @property
    def tiles(self) -> tuple[int, int]:
        """Blocks per image and K group: down and across. The rows of a Linear's batch are images, of one tile each."""
        geometry, (rows, columns) = self.geometry, self.tile_steps
        down = -(-(geometry.positions_height - geometry.overlap) // rows)
        return down, -(-(geometry.positions_width - geometry.overlap) // columns)

    @property
    def tile_steps(self) -> tuple[int, int]:
        """Positions from a tile to the next, down and across."""
        geometry, tiling = self.geometry, self.tiling
        rows = tiling.rows if tiling.form == "table" and geometry.is_pointwise else 1  # side by side in the one row
        columns = tiling.tile_width * rows * self.pairing.columns
        return geometry.step_of(tiling.tile_height * tiling.rows), geometry.step_of(columns)

    def block_region(self, block: tuple[int, int, int]) -> Region:
        """The outputs that a block writes: blockIdx.x, blockIdx.y and the number of its K group in the layer."""
        return self.operator.block_region(self, block)

    def sources(self) -> dict[str, str]:
        """The generated headers that the operator's .cu includes."""
        return self.operator.sources(self)

    # Of convolutions:

    @cached_property
    def pairing(self) -> Pairing:
        """Which outputs a lane computes at once."""
        return pairing(self.spec.data_type, self.tiling, self.geometry.neighbours)

    @property
    def adds_up_in_float32(self) -> bool:
        """Whether packed sums are added to float32 ones along the way; the blocks of a cluster do that at the end."""
        return self.pairing.halves == 2 and self.tiling.accumulate == "float32" and self.tiling.cluster == 1

    @property
    def word_images(self) -> int:
        """Images of a block, counting two that share their words once."""
        return self.tiling.images // self.pairing.images

    @property
    def threads(self) -> int:
        """Threads per block."""
        return self.tiling.tile_width * self.tiling.tile_height * self.word_images

    @cached_property
    def input_tile(self) -> InputTile:
        """The input of a block in shared memory."""
        tiling, tiles, span = self.tiling, self.layer._input_tiles, self.streams.span_channels
        block = (tiling.tile_width, tiling.tile_height, tiling.rows, tiling.images)
        key = (*block, tiling.chunk_channels, tiling.form, span)
        if (tile := tiles.get(key)) is None:
            tile = tiles[key] = input_tile(self.geometry, tiling, span, self.pairing)
        return tile


LoweredConvolution = Lowered[Conv2d | ConvTranspose2d]
LoweredLinear = Lowered[Linear]
TiledConvolution = Tiled[Conv2d | ConvTranspose2d]
TiledLinear = Tiled[Linear]
AnyTiled = Tiled[LayerSpec]

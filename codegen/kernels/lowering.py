"""A layer as its kernels compute it: lowered once, then divided by a tiling."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from codegen.errors import TilingError
from codegen.ir.checkpoint import Weights
from codegen.ir.launch import Launch
from codegen.ir.layer_spec import Conv2d, ConvTranspose2d, LayerSpec, Linear
from codegen.ir.tiling import KernelName, Part, Tiling
from codegen.kernels.fp16_packing import Pairing, pairing
from codegen.kernels.geometry import Geometry
from codegen.kernels.output_region import Region
from codegen.kernels.shared_input_tile import InputTile, input_tile
from codegen.kernels.streams import Streams
from codegen.kernels.workload import WARP, Workload

Spec = TypeVar("Spec", bound=LayerSpec, covariant=True)


class KernelModule(Protocol):
    """The module of one kernel: which layers it computes, how they are divided, and its generated text."""

    ENTRY: str
    """Name of the kernel function in the CUDA source and the cubin."""
    SOURCE: str
    """The .cu file in `cuda/` that templates are made from."""

    def unsuitable(self, spec: LayerSpec, geometry: Geometry) -> str:
        """Why the kernel cannot compute a layer, whatever the tiling; empty if it can."""

    def refusal(self, layer: Lowered[Any], tiling: Tiling) -> str:
        """Why the kernel cannot have this combination of stages, clusters, groups, order and form; empty if it can."""

    def sources(self, layer: Tiled[Any]) -> dict[str, str]:
        """The generated headers that the .cu includes."""

    def launch_of(self, layer: Tiled[Any], part: Part | None = None) -> Launch:
        """Grid, block and shared memory of the kernel of a part; of all K groups without one."""

    def block_region(self, layer: Tiled[Any], block: tuple[int, int, int]) -> Region:
        """Outputs of a block, given by blockIdx.x, blockIdx.y and stream, or blockIdx.z for a linear layer."""

    def workload(self, layer: Tiled[Any]) -> Workload:
        """The work of one instruction stream."""


class TableKernelModule(KernelModule, Protocol):
    """The module of a kernel that reads its weights from a table in global memory."""

    def table(self, layer: Tiled[Any], weights: Weights) -> NDArray[np.uint64]:
        """The weights in the kernel's layout."""

    def table_bytes(self, layer: Tiled[Any], nonzeros: float) -> float:
        """Expected size of the table if the non-zeros were spread evenly."""


_WAITING: Final[tuple[KernelName, ...]] = ("conv2d", "cluster_conv2d", "linear", "table_linear")


def can_wait(tiling: Tiling) -> bool:
    """Whether the tiling's kernel begins before the one ahead of it has ended if the tiling says so."""
    return tiling.kernel in _WAITING and tiling.form == "rolled"


@dataclass(frozen=True)
class Lowered(Generic[Spec]):
    """A layer before it is divided: `codegen.kernels.lower` makes it."""

    spec: Spec
    """Canonical."""
    geometry: Geometry
    kernels: Mapping[KernelName, KernelModule] = field(repr=False, compare=False)
    """The modules of the kernels that can compute the layer."""
    unsuitable: Mapping[KernelName, str] = field(repr=False, compare=False)
    """Why the other kernels cannot."""
    _input_tiles: dict[tuple[object, ...], InputTile] = field(default_factory=dict, repr=False, compare=False)
    """Input tiles of earlier tilings: hundreds of candidates share the same input."""
    _streams: dict[tuple[int, int, int, bool, int], Streams] = field(default_factory=dict, repr=False, compare=False)
    """Streams of earlier tilings, by the fields that `Streams.of` reads."""
    _workloads: dict[tuple[object, ...], Workload] = field(default_factory=dict, repr=False, compare=False)
    """Workloads of earlier tilings without clusters: they depend on neither stages nor order."""

    def tiled(self, tiling: Tiling) -> Tiled[Spec]:
        """The layer divided. Raises TilingError if the tiling's kernel cannot compute it so."""
        name = tiling.kernel
        if (module := self.kernels.get(name)) is None:
            raise TilingError(f"{name} cannot compute {self.spec}: {self.unsuitable.get(name, 'no such kernel')}")
        if tiling.groups > 1 and name != "conv2d":
            raise TilingError(f"{name} cannot compute {self.spec} so: only conv2d has several K groups in a block")
        if tiling.waits and not can_wait(tiling):
            raise TilingError(f"{name} cannot compute {self.spec} so: it cannot wait for the kernel ahead of it")
        if reason := module.refusal(self, tiling):
            raise TilingError(f"{name} cannot compute {self.spec} so: {reason}")
        return Tiled(self, tiling)


@dataclass(frozen=True)
class Tiled(Generic[Spec]):
    """A lowered layer and how a tiling divides it; each quantity is computed once, on demand."""

    layer: Lowered[Spec]
    tiling: Tiling

    @property
    def spec(self) -> Spec:
        return self.layer.spec

    @property
    def geometry(self) -> Geometry:
        return self.layer.geometry

    @property
    def module(self) -> KernelModule:
        """The module of the tiling's kernel."""
        return self.layer.kernels[self.tiling.kernel]

    @cached_property
    def streams(self) -> Streams:
        """The instruction streams of the K groups."""
        tiling, all_streams = self.tiling, self.layer._streams
        key = (tiling.group_outputs, tiling.chunk_channels, tiling.cluster, tiling.is_large, tiling.block_groups)
        if (streams := all_streams.get(key)) is None:
            streams = all_streams[key] = Streams.of(self.geometry, tiling)
        return streams

    @property
    def sums(self) -> int:
        """Sums per row of a thread: one for each phase of each output channel of the group."""
        return self.tiling.group_outputs * self.geometry.phase_count

    @cached_property
    def workload(self) -> Workload:
        """The work of one instruction stream."""
        if self.tiling.cluster > 1:
            return self.module.workload(self)
        tiling, workloads = self.tiling, self.layer._workloads
        block = (tiling.kernel, tiling.tile_width, tiling.tile_height, tiling.rows, tiling.images, tiling.groups)
        key = (*block, tiling.group_outputs, tiling.chunk_channels, tiling.accumulate, tiling.form, tiling.listed)
        if (workload := workloads.get(key)) is None:
            workload = workloads[key] = self.module.workload(self)
        return workload

    @cached_property
    def launch(self) -> Launch:
        """The launch of one kernel that has all K groups."""
        return self.module.launch_of(self)

    def launch_of(self, part: Part) -> Launch:
        """The launch of the kernel that has this part's K groups."""
        return self.module.launch_of(self, part)

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
        # table_conv2d puts the positions of a thread side by side where a map is one row.
        beside = tiling.rows if tiling.kernel == "table_conv2d" and geometry.is_pointwise else 1
        columns = tiling.tile_width * beside * self.pairing.columns
        return geometry.step_of(tiling.tile_height * tiling.rows), geometry.step_of(columns)

    def block_regions(self, block: tuple[int, int, int]) -> list[Region]:
        """The outputs that a block writes: blockIdx.x, blockIdx.y and its number among the blocks of all K groups."""
        (x, y, z), groups, shares = block, self.tiling.groups, self.streams.shares
        first = z // shares * groups
        return [self.module.block_region(self, (x, y, (first + n) * shares + z % shares)) for n in range(groups)]

    def sources(self) -> dict[str, str]:
        """The generated headers that the kernel's .cu includes."""
        return self.module.sources(self)

    @cached_property
    def pairing(self) -> Pairing:
        """Outputs of a convolution that a lane computes at once."""
        return pairing(self.spec.data_type, self.tiling, self.geometry.neighbours)

    @property
    def adds_up_in_float32(self) -> bool:
        """Whether a convolution adds packed sums to float32 ones chunk by chunk; clusters do so once, at the end."""
        return self.pairing.halves == 2 and self.tiling.accumulate == "float32" and self.tiling.cluster == 1

    @property
    def word_images(self) -> int:
        """Images of a convolution's block; two that share their words count once."""
        return self.tiling.images // self.pairing.images

    @property
    def threads(self) -> int:
        """Threads per block of a convolution or linear layer."""
        return self.tiling.groups * self.group_threads

    @property
    def group_threads(self) -> int:
        """Threads of a K group of a block: whole warps if the block has several."""
        threads = self.tiling.tile_width * self.tiling.tile_height * self.word_images
        return threads if self.tiling.groups == 1 else -(-threads // WARP) * WARP

    @cached_property
    def input_tile(self) -> InputTile:
        """The input of a block of conv2d in shared memory."""
        tiling, tiles, span = self.tiling, self.layer._input_tiles, self.streams.span_channels
        block = (tiling.tile_width, tiling.tile_height, tiling.rows, tiling.images)
        key = (*block, tiling.chunk_channels, tiling.form, span, tiling.groups)
        if (tile := tiles.get(key)) is None:
            tile = tiles[key] = input_tile(self.geometry, tiling, span, self.pairing, self.threads)
        return tile


LoweredConvolution = Lowered[Conv2d | ConvTranspose2d]
LoweredLinear = Lowered[Linear]
TiledConvolution = Tiled[Conv2d | ConvTranspose2d]
TiledLinear = Tiled[Linear]
AnyTiled = Tiled[LayerSpec]

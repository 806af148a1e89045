"""A launch whose time is predicted, and the circumstances."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property

from codegen.ir.tiling import Order
from codegen.kernels import AnyTiled
from codegen.kernels.workload import Workload
from codegen.selection.costs.scaling import multiply_add_slots
from codegen.selection.costs.stream import Stream
from codegen.target.device_model import REFERENCE, DeviceModel


@dataclass(frozen=True)
class PlannedLaunch:
    """A divided layer, how much it computes, and where its code comes from."""

    layer: AnyTiled
    batch: int
    """Images, or rows of a Linear."""
    density: float
    """Non-zeros / weights."""
    cold: bool = True
    """Whether other layers ran since its last launch, so that no cache of a multiprocessor has its code."""
    fetched: bool = True
    """Whether the network's graph fetched the code into the L2 cache ahead."""
    order: Order = "group"
    """The order of the blocks."""
    known_stream: Stream | None = field(default=None, repr=False)
    """The stream at this density, if the caller has it."""
    device: DeviceModel = REFERENCE

    @cached_property
    def stream(self) -> Stream:
        return self.known_stream or Stream.of(self.workload, self.density)

    @cached_property
    def issue_slots(self) -> float:
        """Issue slots of a warp: a multiply-add may take two, in the second of which other instructions issue."""
        slots = multiply_add_slots(self.device, self.layer.spec.data_type)
        return max(self.stream.instructions, slots * self.stream.multiply_adds)

    @property
    def workload(self) -> Workload:
        return self.layer.workload

    @property
    def by_place(self) -> bool:
        return self.order == "place"

    @property
    def warps(self) -> int:
        """Warps of a block."""
        return math.ceil(self.workload.threads / 32)

    @cached_property
    def grid(self) -> tuple[int, int, int]:
        """Blocks in x, y and z: the last are streams, or pairs of them. Also for more images than one launch takes."""
        x, y, streams = (size.at(self.batch) for size in self.layer.launch.grid)
        return x, y, streams

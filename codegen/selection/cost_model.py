"""Predicts how long a kernel runs, well enough to rank tilings.

`costs` has a function for each kernel, `coefficients.py` the fitted numbers, tests/benchmarks/NOTES.md how well the
first choice does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from codegen.ir.dtypes import ELEMENT_BYTES
from codegen.ir.layer_spec import Conv2d
from codegen.ir.tiling import Order
from codegen.kernels import AnyTiled
from codegen.kernels.geometry import geometry_of
from codegen.selection.costs import COSTS
from codegen.selection.costs.launch import PlannedLaunch
from codegen.selection.costs.scaling import dram_ratio
from codegen.selection.costs.stream import Stream
from codegen.target.device_model import REFERENCE, DeviceModel

IN_NETWORK: Final = {"float32": 1.1, "float16": 1.2, "bfloat16": 1.2}
"""Time of compiled layers in a network over the sum of their predicted times: networks of convolutions on an H100 and
an H200 took 1.0 to 1.2 times as long in float32, 0.95 to 1.4 times in float16."""
MEASURED_IN_NETWORK: Final = {"float32": 1.02, "float16": 1.05, "bfloat16": 1.05}
"""Time of compiled layers in a network over the sum of their measured times, but for the gaps between them."""
GAP_MICROSECONDS: Final = 0.8
"""From a layer to the next one: with both, 6 % off (root mean square) in 33 cases of four networks, one to 64 images on
H200s."""
POOL_BYTES_PER_MICROSECOND, POOL_MICROSECONDS = 4.0e6, 1.23
"""Bytes that a separate max pool moves per microsecond, and its launch."""
OVERLAPPING_HALVES_PER_MICROSECOND = 3.0e6
"""Bytes of 16-bit types that it moves where windows overlap: each value is in several of them."""


def predict_microseconds(
    layer: AnyTiled,
    batch: int,
    density: float,
    *,
    device: DeviceModel = REFERENCE,
    cold: bool = True,
    fetched: bool = True,
    order: Order | None = None,
    stream: Stream | None = None,
) -> float:
    """The time of one launch, all parts of the layer at once.

    `device`: the GPU; the time of any but the H200 is scaled from there by data sheet.
    `cold`: in a network, where other layers ran in between; otherwise the code is in the caches. `fetched`: the code of
    a cold launch is in the L2 cache already; otherwise it comes from DRAM. `order`: of the blocks, if not the tiling's.
    `stream`: the layer's stream at this density, if the caller has it.
    """
    order = order or layer.tiling.order
    return COSTS[layer.tiling.kernel](PlannedLaunch(layer, batch, density, cold, fetched, order, stream, device))


@dataclass(frozen=True)
class MeasuredTime:
    """Time of a layer as in a network: cold, without its way to the next layer."""

    microseconds: float
    batch: int
    device: DeviceModel


def network_microseconds(
    layer: AnyTiled,
    batch: int,
    density: float,
    device: DeviceModel,
    measured: MeasuredTime | None = None,
) -> float:
    """The share of a layer in the time of a whole network, which is a CUDA graph.

    `measured` is of this tiling; for another batch or GPU it changes in proportion to the predictions.
    """
    if measured is None:
        return IN_NETWORK[layer.spec.data_type] * predict_microseconds(layer, batch, density, device=device)
    time = measured.microseconds
    if (measured.batch, measured.device) != (batch, device):
        time *= predict_microseconds(layer, batch, density, device=device)
        time /= predict_microseconds(layer, measured.batch, density, device=measured.device)
    return MEASURED_IN_NETWORK[layer.spec.data_type] * time + GAP_MICROSECONDS


def pool_microseconds(spec: Conv2d, batch: int, device: DeviceModel = REFERENCE) -> float:
    """The time of the max pool of a pooled layer if a kernel of its own reads and writes the maps."""
    elements = spec.output_channels * (spec.map_height * spec.map_width + spec.output_height * spec.output_width)
    moved = batch * elements * ELEMENT_BYTES[spec.data_type]
    slow = spec.data_type != "float32" and geometry_of(spec).overlap
    rate = OVERLAPPING_HALVES_PER_MICROSECOND if slow else POOL_BYTES_PER_MICROSECOND
    return moved / (rate * dram_ratio(device)) + POOL_MICROSECONDS

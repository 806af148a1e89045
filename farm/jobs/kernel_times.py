"""The time of a layer's kernels in a network: from the time that was measured when their tiling was tuned, else as
predicted."""

from __future__ import annotations

from collections.abc import Sequence

from codegen.ir.layer_spec import LayerSpec
from codegen.ir.tiling import Tiling
from codegen.kernels import tiled
from codegen.selection.choose import batch_band
from codegen.selection.cost_model import MeasuredTime, network_microseconds
from codegen.target.device_model import DeviceModel, device_named
from farm.jobs.model import Build, TilingChoice


def kernel_microseconds(
    spec: LayerSpec, tiling: Tiling, rows: int, density: float, device: DeviceModel, choices: Sequence[TilingChoice]
) -> float:
    """Predicted time for `rows` images, or rows of a linear layer; `choices` are the origins of the tiling.

    A time measured in the same band of batch sizes, on a GPU of the same architecture, counts before the cost model.
    """
    measured = (
        MeasuredTime(time, of_rows, gpu)
        for choice in choices
        for of_rows, time in choice.measured
        if batch_band(of_rows) == batch_band(rows)
        and (gpu := device_named(choice.gpu)) is not None
        and gpu.arch == device.arch
    )
    return network_microseconds(tiled(spec, tiling), rows, density, device, next(measured, None))


def build_microseconds(build: Build, batch: int, device: DeviceModel) -> float:
    """The time of a build's kernels on a GPU, at a batch size."""
    rows, density = batch * build.likely_rows, build.nonzeros / build.spec.weights_count
    return kernel_microseconds(build.spec, build.tiling, rows, density, device, build.choices)

"""The time of a layer's kernels in a network: from the time that was measured when their tiling was tuned, else as
predicted."""

from __future__ import annotations

from collections.abc import Sequence

from codegen.ir.layer_spec import LayerSpec
from codegen.ir.tiling import Tiling
from codegen.kernels import tiled
from codegen.selection.choose import batch_band
from codegen.selection.cost_model import network_microseconds, predict_microseconds
from codegen.target.device_model import DeviceModel, device_named
from farm.jobs.model import Build, TilingChoice


def kernel_microseconds(
    spec: LayerSpec, tiling: Tiling, rows: int, density: float, device: DeviceModel, choices: Sequence[TilingChoice]
) -> float:
    """The time for this many images, or rows of a linear layer; `choices` are the origins of the tiling.

    A time measured for another number of the same band changes in proportion to the predictions.
    """
    layer = tiled(spec, tiling)
    for choice in choices:
        gpu = device_named(choice.gpu)
        if gpu is None or gpu.arch != device.arch:
            continue
        for measured_rows, time in choice.measured:
            if batch_band(measured_rows) == batch_band(rows):
                there, here = (predict_microseconds(layer, each, density, device=gpu) for each in (measured_rows, rows))
                return network_microseconds(layer, rows, density, device, (time * here / there, gpu))
    return network_microseconds(layer, rows, density, device)


def build_microseconds(build: Build, batch: int, device: DeviceModel) -> float:
    """The time of a build's kernels on a GPU, at a batch size."""
    rows, density = batch * build.likely_rows, build.nonzeros / build.spec.weights_count
    return kernel_microseconds(build.spec, build.tiling, rows, density, device, build.choices)

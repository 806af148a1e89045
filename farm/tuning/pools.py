"""Fusion of max pools into the layers before them, where the cost model predicts a gain."""

from __future__ import annotations

from codegen.errors import TilingError
from codegen.ir.checkpoint import Layer
from codegen.ir.layer_spec import LayerSpec, is_pooled
from codegen.ir.tiling import Tiling
from codegen.kernels import tiled
from codegen.selection.cost_model import pool_microseconds, predict_microseconds
from codegen.target.device_model import DeviceModel
from farm.jobs.model import BuildOptions
from farm.tuning.book import TuningBook

GAIN, MIN_MICROSECONDS = 1.04, 5.0
"""Required predicted gain of a fused pool, as a ratio or in time: at the end of a small launch the exchange of sums
takes up to 4 us, which the model does not include."""
OTHER_TILING_GAIN = 1.1
"""Required gain where the fused layer needs another tiling: the model's error may exceed the time of a pool. VGG-16's
conv3_3 at batch 8 lost 55 us that way."""


def pooled_where_faster(layer: Layer, book: TuningBook, options: BuildOptions) -> Layer:
    """The layer with its pool if that is predicted faster at each batch size, summed over the job's architectures."""
    if layer.pool is None:
        return layer
    joined = layer.with_pool()
    try:
        faster = all(_is_faster(joined, layer, book, options, batch) for batch in options.batches)
    except TilingError:  # no tiling covers whole windows, or none fits at all
        return layer
    return joined if faster else layer


def _is_faster(joined: Layer, layer: Layer, book: TuningBook, options: BuildOptions, batch: int) -> bool:
    """Whether the layer with its pool is predicted faster at a batch size. Raises TilingError."""
    before, after = (_tilings(each, book, options, batch) for each in (layer, joined))
    density = layer.weights.nonzeros / layer.spec.weights_count
    devices = [options.device(arch) for arch in options.archs]
    pools = [pool_microseconds(joined.spec, batch, each) for each in devices] if is_pooled(joined.spec) else []
    # A record's tiling may be far from the model's best; take the lower prediction of both tilings.
    apart = min(_microseconds(layer.spec, each, devices, batch, density) for each in (before, after))
    apart += sum(pools)
    together = _microseconds(joined.spec, after, devices, batch, density)
    if before != after:
        return apart >= OTHER_TILING_GAIN * together
    return apart >= GAIN * together or apart - together >= MIN_MICROSECONDS * len(before)


def _tilings(layer: Layer, book: TuningBook, options: BuildOptions, batch: int) -> list[Tiling]:
    """Tiling per architecture."""
    found = book.tilings(layer.spec, batch, layer.weights.nonzeros_per_output, options)
    return [tiling for tiling, _ in found]


def _microseconds(
    spec: LayerSpec, tilings: list[Tiling], devices: list[DeviceModel], batch: int, density: float
) -> float:
    each = zip(tilings, devices, strict=True)
    return sum(predict_microseconds(tiled(spec, tiling), batch, density, device=device) for tiling, device in each)

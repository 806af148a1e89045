"""Predicts how long a dense layer takes in PyTorch: what a compiled layer competes with.

The coefficients are fitted to 6,531 layers of seven networks and eight matrix products, measured on one H200 in a CUDA
graph, with the algorithms that cuDNN predicts. `tests/benchmarks/dense_cost` has them, and the fit. A layer is a
convolution or matrix product and one pointwise kernel, or a pool that computes the activation, as `torch.compile`
leaves them. Predictions for other GPUs are scaled by data sheet.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, prod
from typing import Final, Literal, get_args

from codegen.ir.layer_spec import AddResidual, Conv2d, ConvTranspose2d, LayerSpec, Linear, is_pooled
from codegen.selection.costs.scaling import dram_ratio
from codegen.target.device_model import REFERENCE, DeviceModel

DensePrecision = Literal["fp32", "tf32", "fp16"]
"""Precision of a dense layer's multiply-adds: float32, float32 rounded to TF32, or float16."""
Layout = Literal["contiguous", "channels_last"]
"""Order of a convolution's tensors in memory: NCHW or NHWC."""

DENSE_PRECISIONS: Final[tuple[DensePrecision, ...]] = get_args(DensePrecision)
_LAYOUTS: Final[tuple[Layout, ...]] = get_args(Layout)
_BYTES: Final = {"fp32": 4, "tf32": 4, "fp16": 2}
_LOADED_CHANNELS: Final = 16
"""Input channels that kernels of tensor cores multiply at least, zeros among them: the first layers of networks, of
three, take 0.9 to 1.1 times as long as predicted so, with eight 1.3 to 1.8 times."""
IN_NETWORK: Final = 1.02
"""Time of layers in a network over their times alone: four networks of convolutions on H200s, at batch 1 to 128, took
0.8 to 1.1 times as long as the sum of their layers, in TF32 and in float16."""


@dataclass(frozen=True)
class DenseCoefficients:
    """Rates of one kind of kernel on the whole GPU."""

    launch_microseconds: float
    """Both kernels, without work."""
    multiply_adds: float
    """Per microsecond."""
    tile_rows: float
    tile_columns: float
    """Outputs of one block."""
    split_depth: float
    """Products of an output for which blocks share a tile, where there are fewer tiles than multiprocessors."""
    moved_bytes: float
    """Per microsecond."""
    pointwise_bytes: float
    """Per microsecond, of the pointwise kernel."""
    overlap: float
    """Exponent of the norm of multiply-adds and bytes: between sum (1) and maximum (infinity)."""
    filling: float
    """Waves of tiles whose time passes while the multiprocessors begin and end."""


_CONVOLUTIONS: Final[dict[tuple[DensePrecision, Layout], DenseCoefficients]] = {
    ("fp32", "contiguous"): DenseCoefficients(2.27, 2.061e7, 48.97, 34.11, 8886, 1.374e6, 7.161e6, 1, 1.628),
    ("tf32", "contiguous"): DenseCoefficients(7.347, 2.306e8, 35.2, 115.5, 3464, 1.552e6, 6.714e6, 1, 1.74),
    ("tf32", "channels_last"): DenseCoefficients(5.903, 2.064e8, 21.39, 87.04, 3625, 4.715e6, 2.818e6, 2.586, 1.777),
    ("fp16", "contiguous"): DenseCoefficients(8, 4.685e8, 25.14, 135.8, 4189, 1.589e6, 1.746e6, 1, 3.864),
    ("fp16", "channels_last"): DenseCoefficients(5.795, 4.43e8, 19.16, 85.48, 5444, 4.346e6, 2.385e6, 2.705, 2.594),
}
_POINTWISE: Final[dict[tuple[DensePrecision, Layout], DenseCoefficients]] = {
    ("fp32", "contiguous"): DenseCoefficients(4.075, 1.91e7, 17.79, 65.86, 2210, 6e6, 2.376e6, 1.158, 2.123),
    ("tf32", "contiguous"): DenseCoefficients(4.215, 1.368e8, 22.38, 130, 6207, 6e6, 3.41e6, 1.317, 2.526),
    ("tf32", "channels_last"): DenseCoefficients(4.453, 1.884e8, 129.1, 73.79, 399.3, 4.592e6, 3.579e6, 2.482, 0.207),
    ("fp16", "contiguous"): DenseCoefficients(3.687, 1.135e8, 17.32, 67.1, 3493, 4.185e6, 3.832e6, 5, 5),
    ("fp16", "channels_last"): DenseCoefficients(3.972, 3.93e8, 111.9, 22.48, 1.291e4, 5.325e6, 3.781e6, 5, 0.6744),
}
_GROUPED: Final[dict[tuple[DensePrecision, Layout], DenseCoefficients]] = {
    ("fp32", "contiguous"): DenseCoefficients(3.18, 7.087e7, 130.7, 30.4, 1.528e4, 6e6, 1.422e6, 1.196, 1.128),
    ("tf32", "contiguous"): DenseCoefficients(3.258, 1.242e8, 196.5, 57.03, 1943, 5.557e6, 1.625e6, 1.103, 0.2746),
    ("tf32", "channels_last"): DenseCoefficients(2.55, 2.953e8, 193.1, 83.51, 2553, 6e6, 8e6, 1.223, 5),
    ("fp16", "contiguous"): DenseCoefficients(3.349, 1.325e8, 77.99, 48.26, 111.6, 1.102e6, 8e6, 5, 0.8184),
    ("fp16", "channels_last"): DenseCoefficients(4.589, 2.738e8, 256, 48.72, 2521, 3.004e6, 8e6, 2.436, 5),
}
_LINEAR: Final[dict[DensePrecision, DenseCoefficients]] = {
    "fp32": DenseCoefficients(6.051, 2.53e7, 25.57, 29.95, 69.84, 5.553e6, 3.112e6, 5, 1.393),
    "tf32": DenseCoefficients(4.595, 2.482e8, 121.5, 28.22, 656.7, 5.73e6, 3.298e6, 1.247, 1.377),
    "fp16": DenseCoefficients(3.84, 3.974e8, 256, 16.07, 3954, 6e6, 3.582e6, 5, 0.2791),
}


@dataclass(frozen=True)
class _Product:
    """A layer as matrix products."""

    rows: int
    columns: int
    depth: int
    """Products of an output."""
    groups: int
    elements: int
    """Inputs, weights and outputs."""
    pointwise: int
    """Elements that pointwise kernels read and write."""


def predict_dense_microseconds(
    spec: LayerSpec,
    batch: int,
    precision: DensePrecision,
    layout: Layout = "contiguous",
    device: DeviceModel = REFERENCE,
) -> float:
    """The time of a layer without sparsity in a network's CUDA graph; `batch` are the rows of a Linear."""
    of, product = coefficients_of(spec, precision, layout), _product(spec, batch, precision)
    slots = device.multiprocessors
    tiles = ceil(product.rows / of.tile_rows) * ceil(product.columns / of.tile_columns) * product.groups
    split = min(max(slots / tiles, 1.0), max(product.depth / of.split_depth, 1.0))
    waves = max(tiles * split / slots, 1.0) + of.filling
    # The rate is that of the whole GPU, of which a wave of fewer tiles leaves a part idle.
    of_tile = product.depth / split * of.tile_rows * of.tile_columns
    speed = multiply_add_ratio(device, precision)
    compute = waves * of_tile * slots / (of.multiply_adds * speed)
    moved_ratio = dram_ratio(device)
    memory = product.elements * _BYTES[precision] / (of.moved_bytes * moved_ratio)
    pointwise = product.pointwise * _BYTES[precision] / (of.pointwise_bytes * moved_ratio)
    together: float = (compute**of.overlap + memory**of.overlap) ** (1 / of.overlap)
    return IN_NETWORK * (of.launch_microseconds + together + pointwise)


def dense_microseconds(spec: LayerSpec, batch: int, device: DeviceModel) -> dict[DensePrecision, float]:
    """The time of a layer by precision, in the faster of the layouts that were measured."""
    return {
        precision: min(
            predict_dense_microseconds(spec, batch, precision, layout, device)
            for layout in _LAYOUTS
            if (precision, layout) in _CONVOLUTIONS
        )
        for precision in DENSE_PRECISIONS
    }


def coefficients_of(spec: LayerSpec, precision: DensePrecision, layout: Layout) -> DenseCoefficients:
    """The coefficients of a layer's kernels."""
    if isinstance(spec, Linear):
        return _LINEAR[precision]
    if spec.groups > 1:
        return _GROUPED[precision, layout]
    return (_POINTWISE if spec.kernel_height * spec.kernel_width == 1 else _CONVOLUTIONS)[precision, layout]


def multiply_add_ratio(device: DeviceModel, precision: DensePrecision) -> float:
    """The rate of a GPU's multiply-adds as a share of the H200's."""

    def rate(of: DeviceModel) -> float:
        per_clock = of.multiprocessor.float32_lanes if precision == "fp32" else of.multiprocessor.tensor_float16
        return per_clock * of.multiprocessors * of.clock_mhz

    return rate(device) / rate(REFERENCE)


def _product(spec: LayerSpec, batch: int, precision: DensePrecision) -> _Product:
    inputs, outputs = batch * prod(spec.input_shape), batch * prod(spec.output_shape)
    sums = batch * spec.positions * spec.output_channels
    residual = outputs if any(isinstance(step, AddResidual) for step in spec.epilogue) else 0
    match spec:
        case Linear():
            rows, columns, depth, groups = batch, spec.outputs, spec.inputs, 1
        case Conv2d():
            window = spec.kernel_height * spec.kernel_width
            rows, groups = batch * spec.positions, spec.groups
            columns, depth = spec.output_channels // groups, _channels(spec, precision) * window
        case ConvTranspose2d():
            window = spec.kernel_height * spec.kernel_width
            rows, groups, sums = batch * spec.positions, spec.groups, outputs
            columns, depth = spec.output_channels // groups * window, _channels(spec, precision)
    # A pool reads the sums and computes the activation too.
    pointwise = residual + (sums + outputs if is_pooled(spec) else 2 * sums)
    return _Product(rows, columns, depth, groups, inputs + sums + spec.weights_count, pointwise)


def _channels(spec: Conv2d | ConvTranspose2d, precision: DensePrecision) -> int:
    """Input channels of a group that a kernel multiplies."""
    channels = spec.channels // spec.groups
    return channels if precision == "fp32" or spec.groups > 1 else ceil(channels / _LOADED_CHANNELS) * _LOADED_CHANNELS

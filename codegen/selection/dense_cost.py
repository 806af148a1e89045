"""Predicts how long a dense layer takes in PyTorch: what a compiled layer competes with.

The coefficients are fitted to 2,014 layers of seven networks and eight matrix products, measured on one H100 in a CUDA
graph. `tests/benchmarks/dense_cost` has them, and the fit. A layer is a convolution or matrix product and one pointwise
kernel, as `torch.compile` leaves them. Predictions for other GPUs are scaled by data sheet.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, prod
from typing import Final, Literal, get_args

from codegen.ir.layer_spec import AddResidual, Conv2d, ConvTranspose2d, LayerSpec, Linear, is_pooled
from codegen.target.device_model import DENSE_REFERENCE, DeviceModel

DensePrecision = Literal["fp32", "tf32", "fp16"]
"""Precision of a dense layer's multiply-adds: float32, float32 rounded to TF32, or float16."""
Layout = Literal["contiguous", "channels_last"]
"""Order of a convolution's tensors in memory: NCHW or NHWC."""

DENSE_PRECISIONS: Final[tuple[DensePrecision, ...]] = get_args(DensePrecision)
_LAYOUTS: Final[tuple[Layout, ...]] = get_args(Layout)
_BYTES: Final = {"fp32": 4, "tf32": 4, "fp16": 2}
IN_NETWORK: Final = 1.05
"""Time of layers in a network over their times alone: networks of convolutions on an H100 and an H200, at batch 1, 8
and 64, took 0.9 to 1.3 times as long as the sum of their layers, in TF32 and in float16."""


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


_CONVOLUTIONS: Final[dict[tuple[DensePrecision, Layout], DenseCoefficients]] = {
    ("fp32", "contiguous"): DenseCoefficients(5.078, 1.682e7, 254.9, 11.19, 7738, 1.428e6, 3.442e6, 2.175),
    ("tf32", "contiguous"): DenseCoefficients(4.461, 1.091e8, 255.9, 28.93, 3522, 6.000e6, 2.347e6, 1),
    ("tf32", "channels_last"): DenseCoefficients(5.245, 2.647e8, 45.81, 160.2, 3634, 5.222e6, 2.836e6, 1.176),
    ("fp16", "contiguous"): DenseCoefficients(4.134, 2.419e8, 162.7, 87.33, 3422, 6.000e6, 1.269e6, 1),
    ("fp16", "channels_last"): DenseCoefficients(4.313, 4.405e8, 52.18, 161.4, 3696, 6.000e6, 2.310e6, 5),
}
_GROUPED: Final[dict[tuple[DensePrecision, Layout], DenseCoefficients]] = {
    ("fp32", "contiguous"): DenseCoefficients(3.329, 1.418e8, 197.9, 66.92, 258.2, 2.915e6, 1.714e6, 1.692),
    ("tf32", "contiguous"): DenseCoefficients(3.084, 1.195e8, 241.5, 53.38, 3155, 3.750e6, 1.197e6, 2.465),
    ("tf32", "channels_last"): DenseCoefficients(3.053, 1.998e8, 190.5, 69.58, 3218, 4.328e6, 6.580e6, 2.286),
    ("fp16", "contiguous"): DenseCoefficients(3.699, 1.967e8, 256, 58.6, 2773, 1.114e6, 8.000e6, 2.145),
    ("fp16", "channels_last"): DenseCoefficients(5.666, 6.019e8, 190.1, 77.17, 614.9, 4.884e6, 8.000e6, 1.535),
}
_LINEAR: Final[dict[DensePrecision, DenseCoefficients]] = {
    "fp32": DenseCoefficients(8, 2.386e7, 31.88, 66.78, 94.94, 6.000e6, 5.816e6, 5),
    "tf32": DenseCoefficients(4.862, 2.333e8, 63.62, 8.334, 158.1, 2.976e6, 3.475e6, 1.467),
    "fp16": DenseCoefficients(3.838, 4.044e8, 252.8, 21.44, 3576, 6.000e6, 3.406e6, 2.412),
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
    device: DeviceModel = DENSE_REFERENCE,
) -> float:
    """The time of a layer without sparsity in a network's CUDA graph; `batch` are the rows of a Linear."""
    of, product = coefficients_of(spec, precision, layout), _product(spec, batch)
    slots = device.multiprocessors
    tiles = ceil(product.rows / of.tile_rows) * ceil(product.columns / of.tile_columns) * product.groups
    split = min(max(slots / tiles, 1.0), max(product.depth / of.split_depth, 1.0))
    waves = max(tiles * split / slots, 1.0)
    # The rate is that of the whole GPU, of which a wave of fewer tiles leaves a part idle.
    of_tile = product.depth / split * of.tile_rows * of.tile_columns
    speed = multiply_add_ratio(device, precision)
    compute = waves * of_tile * slots / (of.multiply_adds * speed)
    moved_ratio = device.dram_gigabytes_per_second / DENSE_REFERENCE.dram_gigabytes_per_second
    memory = product.elements * _BYTES[precision] / (of.moved_bytes * moved_ratio)
    pointwise = product.pointwise * _BYTES[precision] / (of.pointwise_bytes * moved_ratio)
    together: float = (compute**of.overlap + memory**of.overlap) ** (1 / of.overlap)
    pool = of.launch_microseconds / 2 if is_pooled(spec) else 0.0
    return IN_NETWORK * (of.launch_microseconds + together + pointwise + pool)


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
    return (_CONVOLUTIONS if spec.groups == 1 else _GROUPED)[precision, layout]


def multiply_add_ratio(device: DeviceModel, precision: DensePrecision) -> float:
    """The rate of a GPU's multiply-adds as a share of the H100's."""

    def rate(of: DeviceModel) -> float:
        per_clock = of.multiprocessor.float32_lanes if precision == "fp32" else of.multiprocessor.tensor_float16
        return per_clock * of.multiprocessors * of.clock_mhz

    return rate(device) / rate(DENSE_REFERENCE)


def _product(spec: LayerSpec, batch: int) -> _Product:
    inputs, outputs = batch * prod(spec.input_shape), batch * prod(spec.output_shape)
    sums = batch * spec.positions * spec.output_channels
    residual = outputs if any(isinstance(step, AddResidual) for step in spec.epilogue) else 0
    match spec:
        case Linear():
            rows, columns, depth, groups = batch, spec.outputs, spec.inputs, 1
        case Conv2d():
            window = spec.kernel_height * spec.kernel_width
            rows, groups = batch * spec.positions, spec.groups
            columns, depth = spec.output_channels // groups, spec.channels // groups * window
        case ConvTranspose2d():
            window = spec.kernel_height * spec.kernel_width
            rows, groups, sums = batch * spec.positions, spec.groups, outputs
            columns, depth = spec.output_channels // groups * window, spec.channels // groups
    # A pool reads what the pointwise kernel wrote.
    pointwise = 2 * sums + residual + (sums + outputs if is_pooled(spec) else 0)
    return _Product(rows, columns, depth, groups, inputs + sums + spec.weights_count, pointwise)

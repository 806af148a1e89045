"""Roofline bound: least time of a layer, from its non-zero work and the GPU's peaks."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from codegen.ir.layer_spec import AddResidual, DataType, LayerSpec, is_gated

CORES_PER_MULTIPROCESSOR = {75: 64, 80: 64, 86: 128, 87: 128, 88: 128, 89: 128, 90: 128, 100: 128, 103: 128, 110: 128}
"""float32 units by compute capability; those not listed have 128 too."""
KNOWN_BYTES_PER_SECOND = {"H200": 4.3e12}
"""Bandwidth of a large copy, by a part of the GPU's name."""
KNOWN_FLOPS = {"H200": 67e12}
REACHED_SHARE = 0.875
"""Share of the memory's pin rate that a large copy reaches, from the H200."""
ELEMENT_BYTES: dict[DataType, int] = {"float32": 4, "float16": 2, "bfloat16": 2}


@dataclass(frozen=True)
class Peaks:
    """Peak rates of a GPU."""

    flops: float
    """Float32 operations per second, two per multiply-add; float16 on the same units is twice as fast."""
    bytes_per_second: float
    """Bandwidth between chip and memory."""


def peaks_of(
    name: str, capability: int, multiprocessors: int, clock_hz: float, memory_clock_hz: float, bus_bits: int
) -> Peaks:
    """Peaks of a GPU: measured if known, else derived from its attributes.

    `capability` is 90 for 9.0; memory transfers twice per clock.
    """
    cores = CORES_PER_MULTIPROCESSOR.get(capability, 128)
    flops = 2.0 * cores * multiprocessors * clock_hz
    pins = 2.0 * memory_clock_hz * bus_bits / 8
    return Peaks(
        flops=next((known for part, known in KNOWN_FLOPS.items() if part in name), flops),
        bytes_per_second=next(
            (known for part, known in KNOWN_BYTES_PER_SECOND.items() if part in name), REACHED_SHARE * pins
        ),
    )


def nonzero_flops(spec: LayerSpec, nonzeros: int, images: int) -> float:
    """FLOPs of the non-zero weights, 2 per weight and output position; borders count like the interior."""
    return 2.0 * nonzeros * spec.positions * images


def moved_bytes(spec: LayerSpec, images: int) -> float:
    """Input, residual and gates read once, output written once."""
    outputs = prod(spec.output_shape) * (2 if AddResidual() in spec.epilogue else 1)
    gates = spec.channels if is_gated(spec) else 0
    return float((prod(spec.input_shape) + gates + outputs) * ELEMENT_BYTES[spec.data_type] * images)


def roof_microseconds(spec: LayerSpec, nonzeros: int, images: int, peaks: Peaks) -> float:
    """Least time of a layer; `images` counts rows of a Linear."""
    rate = peaks.flops * (2 if spec.data_type == "float16" else 1)
    return 1e6 * max(nonzero_flops(spec, nonzeros, images) / rate, moved_bytes(spec, images) / peaks.bytes_per_second)

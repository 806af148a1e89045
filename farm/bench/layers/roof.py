"""The roof: what no kernel can beat, from the work that is left after pruning and the GPU's peaks. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from codegen.ir.layer_spec import AddResidual, DataType, LayerSpec, is_gated

CORES_PER_MULTIPROCESSOR = {75: 64, 80: 64, 86: 128, 87: 128, 88: 128, 89: 128, 90: 128, 100: 128, 103: 128, 110: 128}
"""float32 units by compute capability; those not listed have 128 too."""
KNOWN_BYTES_PER_SECOND = {"H200": 4.3e12}
"""What a large copy reaches, by a part of the GPU's name."""
KNOWN_FLOPS = {"H200": 67e12}
REACHED_SHARE = 0.875
"""Share of the memory's pin rate that a large copy reaches, as on the H200."""
ELEMENT_BYTES: dict[DataType, int] = {"float32": 4, "float16": 2, "bfloat16": 2}


@dataclass(frozen=True)
class Peaks:
    """What a GPU does at most."""

    flops: float
    """Per second in float32, a multiply-add is two; float16 on the same units does twice as many."""
    bytes_per_second: float
    """Between the chip and its memory."""


def peaks_of(
    name: str, capability: int, multiprocessors: int, clock_hz: float, memory_clock_hz: float, bus_bits: int
) -> Peaks:
    """The peaks of a GPU: measured ones where they are known, else from its attributes.

    `capability` is 90 for 9.0; memory transfers twice a clock.
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
    """The least time; `images` counts rows of a Linear."""
    rate = peaks.flops * (2 if spec.data_type == "float16" else 1)
    return 1e6 * max(nonzero_flops(spec, nonzeros, images) / rate, moved_bytes(spec, images) / peaks.bytes_per_second)

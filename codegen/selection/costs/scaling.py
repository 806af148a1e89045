"""Scaling of the fitted coefficients from the H200, on which they were measured, to another GPU by its data sheet.

Clocks per instruction, access and barrier are taken to be an H200's, and so is the code that a multiprocessor fetches
per clock. What is scaled: the clock, bandwidths and size of caches and memory, and the rate of multiply-adds.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from codegen.ir.layer_spec import DataType
from codegen.selection.coefficients import ClusterCoefficients, StreamCoefficients
from codegen.target.device_model import REFERENCE, DeviceModel

REFERENCE_CLOCKS_PER_MICROSECOND = 1755.0
"""Clock of the measured kernels: an H200's below load, less than its boost clock."""
ISSUE_PER_CLOCK = 4.0
"""Warp instructions that a multiprocessor issues."""


def clocks_per_microsecond(device: DeviceModel) -> float:
    """Clock under load: the H200's, in proportion to the boost clocks."""
    return REFERENCE_CLOCKS_PER_MICROSECOND * device.clock_mhz / REFERENCE.clock_mhz


def multiply_add_slots(device: DeviceModel, data_type: DataType) -> float:
    """Issue slots of a warp's multiply-add: two where a multiprocessor has lanes for half of what it issues."""
    packed = data_type == "float16"
    lanes = device.multiprocessor.float16_lanes / 2 if packed else device.multiprocessor.float32_lanes
    return ISSUE_PER_CLOCK * 32 / lanes


def dram_ratio(device: DeviceModel) -> float:
    """Memory bandwidth as a share of the H200's."""
    return device.dram_gigabytes_per_second / REFERENCE.dram_gigabytes_per_second


def l2_ratio(device: DeviceModel) -> float:
    """L2 bandwidth as a share of the H200's."""
    return device.l2_gigabytes_per_second / REFERENCE.l2_gigabytes_per_second


@lru_cache(maxsize=256)
def scaled_stream(of: StreamCoefficients, device: DeviceModel) -> StreamCoefficients:
    """Coefficients of long streams on another GPU."""
    return replace(
        of,
        l2_bytes_per_microsecond=of.l2_bytes_per_microsecond * l2_ratio(device),
        dram_bytes_per_microsecond=of.dram_bytes_per_microsecond * dram_ratio(device),
        held_bytes=of.held_bytes * device.l2_megabytes / REFERENCE.l2_megabytes,
        split_per_microsecond=of.split_per_microsecond * dram_ratio(device),
    )


@lru_cache(maxsize=256)
def scaled_cluster(of: ClusterCoefficients, device: DeviceModel) -> ClusterCoefficients:
    """Coefficients of clusters on another GPU."""
    return replace(of, l2_bytes_per_microsecond=of.l2_bytes_per_microsecond * l2_ratio(device))

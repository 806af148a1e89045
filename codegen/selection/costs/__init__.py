"""The predicted time of each kernel: one function per kernel, found by its name."""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType

from codegen.ir.tiling import KernelName
from codegen.selection.costs.cluster_blocks import cluster_conv2d_microseconds, linear_microseconds
from codegen.selection.costs.launch import PlannedLaunch
from codegen.selection.costs.stream_blocks import conv2d_microseconds, direct_global_microseconds
from codegen.selection.costs.tables import table_conv2d_microseconds, table_linear_microseconds

COSTS: MappingProxyType[KernelName, Callable[[PlannedLaunch], float]] = MappingProxyType(
    {
        "conv2d": conv2d_microseconds,
        "linear": linear_microseconds,
        "cluster_conv2d": cluster_conv2d_microseconds,
        "direct_global": direct_global_microseconds,
        "table_linear": table_linear_microseconds,
        "table_conv2d": table_conv2d_microseconds,
    }
)
"""Microseconds of one launch, by the kernel's name."""

"""Environment of a benchmark: GPU, driver, clocks, versions, date."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from codegen.errors import ToolchainError, ToolError
from codegen.toolchain.tools import Toolchain, ToolLimits, run_tool
from farm.bench.layers.roof import Peaks
from farm.cuda.device import DeviceFacts

DISTRIBUTION = "sparse-compile-farm"
_CLOCKS = ("driver_version", "clocks.sm", "clocks.max.sm", "clocks.mem", "power.limit", "temperature.gpu")


def environment(facts: DeviceFacts, peaks: Peaks, toolchain: Toolchain, libraries: Mapping[str, str]) -> dict[str, Any]:
    """Environment of a run that compiles kernels, as plain JSON values."""
    return {
        "gpu": facts.name,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": facts.to_json(),
        "peaks": {"flops": peaks.flops, "bytes_per_second": peaks.bytes_per_second},
        "clocks": clocks(facts.pci_bus),
        "nvcc": toolchain.nvcc_version,
        "ptxas": toolchain.ptxas_version,
        "farm": _version(),
        "libraries": dict(libraries),
    }


def network_environment(device: Mapping[str, Any], libraries: Mapping[str, str]) -> dict[str, Any]:
    """Environment of a run that compiles nothing; `device` holds the GPU's name and its id for nvidia-smi."""
    return {
        "gpu": device["name"],
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": dict(device),
        "clocks": clocks(str(device["id"])),
        "farm": _version(),
        "libraries": dict(libraries),
    }


def clocks(gpu: str) -> dict[str, str]:
    """Values that nvidia-smi reports for a GPU, named by bus or id, with units; empty without nvidia-smi."""
    query = ["nvidia-smi", "-i", gpu, f"--query-gpu={','.join(_CLOCKS)}", "--format=csv,noheader"]
    try:
        values = run_tool(query, limits=ToolLimits(30)).stdout.strip().split(",")
    except (ToolError, ToolchainError):
        return {}
    return {name: value.strip() for name, value in zip(_CLOCKS, values, strict=False)}


def _version() -> str:
    try:
        return version(DISTRIBUTION)
    except PackageNotFoundError:
        return "a checkout that is not installed"

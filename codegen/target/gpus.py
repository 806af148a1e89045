"""GPU models: architecture and minimum driver by name.

Names and compute capabilities: NVIDIA's pages "CUDA GPU Compute Capability" (developer.nvidia.com/cuda-gpus) and, for
V100 and P100, "Legacy CUDA GPU Compute Capability". Drivers: NVIDIA's "CUDA Compatibility" and the release notes of the
toolkits that introduced the Blackwell architectures.
"""

from __future__ import annotations

import re

from codegen.target.device_model import DEVICES, gpu_key

GPUS: dict[str, tuple[str, ...]] = {
    "sm_60": ("P100",),
    "sm_70": ("V100", "TITAN V", "Quadro GV100"),
    **{arch: tuple(device.name for device in devices) for arch, devices in DEVICES.items()},
}

DRIVER_OF_TOOLKIT = {11: 450, 12: 525, 13: 580}
"""Oldest driver branch that runs cubins of a toolkit, by the toolkit's major version."""
DRIVER_OF_ARCH = {"sm_88": 580, "sm_100": 570, "sm_103": 575, "sm_110": 580, "sm_120": 570, "sm_121": 575}
"""First driver branch that supports an architecture, where later than 525."""


def arch_of_gpu(name: str) -> str | None:
    """The architecture of a GPU by name, such as sm_90 for H100; None if the table does not have the GPU."""
    key = gpu_key(name)
    return next((arch for arch, names in GPUS.items() if key in map(gpu_key, names)), None) if key else None


def arch_named(name: str) -> str | None:
    """The architecture meant by sm_90, sm90, 90, 9.0, 9.0+PTX or a GPU's name such as H100; None for other names.

    The architecture need not exist: sm_99 gives sm_99.
    """
    match = re.fullmatch(r"(?:sm_?)?(\d{2,3}|\d{1,2}\.\d)([a-z]?)(?:\+ptx)?", name.strip().lower())
    return f"sm_{match[1].replace('.', '')}{match[2]}" if match else arch_of_gpu(name)


def minimum_driver(arch: str, ptxas_version: str) -> int | None:
    """The oldest driver branch that runs a cubin of this ptxas on this architecture, such as 580; None if unknown."""
    toolkit = DRIVER_OF_TOOLKIT.get(int(ptxas_version.partition(".")[0]))
    return None if toolkit is None else max(toolkit, DRIVER_OF_ARCH.get(arch.rstrip("af"), 0))

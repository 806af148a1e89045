"""GPU models: architecture and minimum driver by name.

Names and compute capabilities: NVIDIA's pages "CUDA GPU Compute Capability" (developer.nvidia.com/cuda-gpus) and, for
V100 and P100, "Legacy CUDA GPU Compute Capability". Drivers: NVIDIA's "CUDA Compatibility" and the release notes of the
toolkits that introduced the Blackwell architectures.
"""

from __future__ import annotations

import re

GPUS: dict[str, tuple[str, ...]] = {
    "sm_60": ("P100",),
    "sm_70": ("V100", "TITAN V", "Quadro GV100"),
    "sm_75": (
        "T4", "RTX 2080 Ti", "RTX 2080", "RTX 2070", "RTX 2060", "TITAN RTX", "GTX 1660 Ti", "GTX 1660", "GTX 1650",
        "Quadro RTX 8000", "Quadro RTX 6000", "Quadro RTX 5000", "Quadro RTX 4000",
    ),
    "sm_80": ("A100", "A30"),
    "sm_86": (
        "A40", "A10", "A16", "A2", "RTX A6000", "RTX A5000", "RTX A4000", "RTX A3000", "RTX A2000", "RTX 3090 Ti",
        "RTX 3090", "RTX 3080 Ti", "RTX 3080", "RTX 3070 Ti", "RTX 3070", "RTX 3060 Ti", "RTX 3060", "RTX 3050 Ti",
        "RTX 3050",
    ),
    "sm_87": ("Jetson AGX Orin", "Jetson Orin NX", "Jetson Orin Nano"),
    "sm_89": (
        "L4", "L40", "L40S", "RTX 6000 Ada", "RTX 5000 Ada", "RTX 4500 Ada", "RTX 4000 Ada", "RTX 4000 SFF Ada",
        "RTX 2000 Ada", "RTX 4090", "RTX 4080", "RTX 4070 Ti", "RTX 4070", "RTX 4060 Ti", "RTX 4060", "RTX 4050",
    ),
    "sm_90": ("H100", "H200", "GH200"),
    "sm_100": ("B200", "GB200"),
    "sm_103": ("B300", "GB300"),
    "sm_110": ("Jetson T5000", "Jetson T4000"),
    "sm_120": (
        "RTX PRO 6000 Blackwell", "RTX PRO 5000 Blackwell", "RTX PRO 4500 Blackwell", "RTX PRO 4000 Blackwell",
        "RTX PRO 2000 Blackwell", "RTX 5090", "RTX 5080", "RTX 5070 Ti", "RTX 5070", "RTX 5060 Ti", "RTX 5060",
        "RTX 5050",
    ),
    "sm_121": ("GB10", "DGX Spark"),
}  # fmt: skip

DRIVER_OF_TOOLKIT = {11: 450, 12: 525, 13: 580}
"""Oldest driver branch that runs cubins of a toolkit, by the toolkit's major version."""
DRIVER_OF_ARCH = {"sm_88": 580, "sm_100": 570, "sm_103": 575, "sm_110": 580, "sm_120": 570, "sm_121": 575}
"""First driver branch that supports an architecture, where later than 525."""

_MAKE = re.compile(
    r"\b(nvidia|geforce|tesla|generation|laptop|gpu|mobile|max q|(workstation|server) edition"
    r"|sxm\d?|pcie|nvl|hbm\d?e?|\d+ ?gb)\b"
)
"""Words around a GPU's name in nvidia-smi and shops that do not change the architecture."""


def gpu_key(name: str) -> str:
    """A GPU's name without case, punctuation, maker, form factor and memory: h100 for "NVIDIA H100 80GB HBM3"."""
    words = re.sub(r"[\W_]+", " ", name.lower())
    return re.sub(r"\W", "", _MAKE.sub(" ", words))


def arch_of_gpu(name: str) -> str | None:
    """The architecture of a GPU by name, such as sm_90 for H100; None if the table does not have the GPU."""
    key = gpu_key(name)
    return next((arch for arch, names in GPUS.items() if key in map(gpu_key, names)), None) if key else None


def arch_named(name: str) -> str | None:
    """The architecture meant by sm_90, sm90, 90, 9.0 or a GPU's name such as H100; None for other names.

    The architecture need not exist: sm_99 gives sm_99.
    """
    match = re.fullmatch(r"(?:sm_?)?(\d{2,3}|\d{1,2}\.\d)([a-z]?)", name.strip().lower())
    return f"sm_{match[1].replace('.', '')}{match[2]}" if match else arch_of_gpu(name)


def minimum_driver(arch: str, ptxas_version: str) -> int | None:
    """The oldest driver branch that runs a cubin of this ptxas on this architecture, such as 580; None if unknown."""
    toolkit = DRIVER_OF_TOOLKIT.get(int(ptxas_version.partition(".")[0]))
    return None if toolkit is None else max(toolkit, DRIVER_OF_ARCH.get(arch.rstrip("af"), 0))

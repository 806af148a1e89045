"""Device models: GPUs by name, with the figures of their data sheets that predicted kernel times need.

Multiprocessors, boost clocks, memory bandwidths and L2 sizes: NVIDIA's data sheets and architecture white papers.
Limits and rates of a multiprocessor: "Compute Capabilities" in the CUDA programming guide. All these GPUs have 65,536
registers a multiprocessor. Approximate are RTX A3000 and RTX 5050, the L2 cache of RTX 5000 Ada, and the clocks of B300
and GB300.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Multiprocessor:
    """Limits and rates of one multiprocessor, equal for all GPUs of an architecture."""

    warps: int
    """Most resident warps."""
    blocks: int
    """Most resident blocks."""
    shared_bytes: int
    """Shared memory of all resident blocks."""
    block_shared_bytes: int
    """Shared memory that one block can opt in to."""
    float32_lanes: int
    """Multiply-adds per clock."""
    float16_lanes: int
    """Multiply-adds per clock in float16; a packed instruction does two."""
    l2_bytes_per_clock: int
    """Share of the L2 cache's bandwidth. NVIDIA publishes it for A100 alone: 5,120 bytes per clock, 48 for each
    multiprocessor. Other data centre GPUs are taken to have as much, all others two thirds."""
    per_gpc: float
    """Average number of multiprocessors in a GPC: they share a path to the L2 cache."""
    tensor_float16: int
    """Multiply-adds per clock of the tensor cores: float16 with float32 sums, or twice as many as TF32."""
    async_copies: bool = True
    """Whether copies to shared memory pass no registers."""


@dataclass(frozen=True)
class DeviceModel:
    """A GPU as the cost model sees it."""

    name: str
    arch: str
    multiprocessor: Multiprocessor
    multiprocessors: int
    clock_mhz: int
    """Boost clock."""
    dram_gigabytes_per_second: int
    l2_megabytes: float

    @property
    def l2_gigabytes_per_second(self) -> float:
        """L2 bandwidth at the boost clock."""
        return self.multiprocessors * self.multiprocessor.l2_bytes_per_clock * self.clock_mhz / 1000


_KIB = 1024
_ADA = Multiprocessor(48, 24, 100 * _KIB, 99 * _KIB, 128, 128, 32, 12, 512)
_BLACKWELL = Multiprocessor(64, 32, 228 * _KIB, 227 * _KIB, 128, 256, 48, 18.5, 4096)
_SMALL_BLACKWELL = Multiprocessor(48, 24, 100 * _KIB, 99 * _KIB, 128, 128, 32, 14, 512)
_MULTIPROCESSORS = {
    "sm_75": Multiprocessor(32, 16, 64 * _KIB, 64 * _KIB, 64, 128, 32, 10, 512, async_copies=False),
    "sm_80": Multiprocessor(64, 32, 164 * _KIB, 163 * _KIB, 64, 256, 48, 15.5, 1024),
    "sm_86": Multiprocessor(48, 16, 100 * _KIB, 99 * _KIB, 128, 128, 32, 12, 512),
    "sm_87": Multiprocessor(48, 16, 164 * _KIB, 163 * _KIB, 128, 128, 32, 8, 512),
    "sm_89": _ADA,
    "sm_90": Multiprocessor(64, 32, 228 * _KIB, 227 * _KIB, 128, 256, 48, 16.5, 2048),
    "sm_100": _BLACKWELL,
    "sm_103": _BLACKWELL,
    "sm_110": Multiprocessor(48, 24, 228 * _KIB, 227 * _KIB, 128, 256, 32, 7, 2048),
    "sm_120": _SMALL_BLACKWELL,
    "sm_121": _SMALL_BLACKWELL,
}
_Sheet = tuple[str, int, int, int, float]
"""Name, multiprocessors, boost clock in MHz, GB/s of memory, MB of L2 cache."""

_SHEETS: dict[str, tuple[_Sheet, ...]] = {
    "sm_75": (
        ("T4", 40, 1590, 320, 4),
        ("RTX 2080 Ti", 68, 1545, 616, 5.5),
        ("RTX 2080", 46, 1710, 448, 4),
        ("RTX 2070", 36, 1620, 448, 4),
        ("RTX 2060", 30, 1680, 336, 3),
        ("TITAN RTX", 72, 1770, 672, 6),
        ("GTX 1660 Ti", 24, 1770, 288, 1.5),
        ("GTX 1660", 22, 1785, 192, 1.5),
        ("GTX 1650", 14, 1665, 128, 1),
        ("Quadro RTX 8000", 72, 1770, 672, 6),
        ("Quadro RTX 6000", 72, 1770, 672, 6),
        ("Quadro RTX 5000", 48, 1815, 448, 4),
        ("Quadro RTX 4000", 36, 1545, 416, 4),
    ),
    "sm_80": (
        ("A100", 108, 1410, 2039, 40),
        ("A30", 56, 1440, 933, 24),
    ),
    "sm_86": (
        ("RTX 3090", 82, 1695, 936, 6),
        ("A40", 84, 1740, 696, 6),
        ("A10", 72, 1695, 600, 6),
        ("A16", 10, 1755, 200, 2),
        ("A2", 10, 1770, 200, 2),
        ("RTX A6000", 84, 1800, 768, 6),
        ("RTX A5000", 64, 1695, 768, 6),
        ("RTX A4000", 48, 1560, 448, 4),
        ("RTX A3000", 32, 1230, 264, 3),
        ("RTX A2000", 26, 1200, 288, 3),
        ("RTX 3090 Ti", 84, 1860, 1008, 6),
        ("RTX 3080 Ti", 80, 1665, 912, 6),
        ("RTX 3080", 68, 1710, 760, 5),
        ("RTX 3070 Ti", 48, 1770, 608, 4),
        ("RTX 3070", 46, 1725, 448, 4),
        ("RTX 3060 Ti", 38, 1665, 448, 4),
        ("RTX 3060", 28, 1777, 360, 3),
        ("RTX 3050 Ti", 20, 1695, 192, 2),
        ("RTX 3050", 20, 1777, 224, 2),
    ),
    "sm_87": (
        ("Jetson AGX Orin", 16, 1300, 205, 4),
        ("Jetson Orin NX", 8, 1173, 102, 4),
        ("Jetson Orin Nano", 8, 1020, 102, 2),
    ),
    "sm_89": (
        ("RTX 4090", 128, 2520, 1008, 72),
        ("L4", 58, 2040, 300, 48),
        ("L40", 142, 2490, 864, 96),
        ("L40S", 142, 2520, 864, 96),
        ("RTX 6000 Ada", 142, 2505, 960, 96),
        ("RTX 5000 Ada", 100, 2550, 576, 72),
        ("RTX 4500 Ada", 60, 2580, 432, 48),
        ("RTX 4000 Ada", 48, 2175, 360, 48),
        ("RTX 4000 SFF Ada", 48, 1560, 280, 48),
        ("RTX 2000 Ada", 22, 2130, 224, 12),
        ("RTX 4080", 76, 2505, 717, 64),
        ("RTX 4070 Ti", 60, 2610, 504, 48),
        ("RTX 4070", 46, 2475, 504, 36),
        ("RTX 4060 Ti", 34, 2535, 288, 32),
        ("RTX 4060", 24, 2460, 272, 24),
        ("RTX 4050", 20, 2370, 192, 12),
    ),
    "sm_90": (
        ("H200", 132, 1980, 4800, 50),
        ("H100", 132, 1980, 3350, 50),
        ("GH200", 132, 1980, 4000, 50),
    ),
    "sm_100": (
        ("B200", 148, 1965, 8000, 126),
        ("GB200", 152, 2062, 8000, 126),
    ),
    "sm_103": (
        ("B300", 148, 1920, 8000, 126),
        ("GB300", 152, 2062, 8000, 126),
    ),
    "sm_110": (
        ("Jetson T5000", 20, 1575, 273, 32),
        ("Jetson AGX Thor", 20, 1575, 273, 32),
        ("Jetson T4000", 12, 1530, 273, 32),
    ),
    "sm_120": (
        ("RTX 5090", 170, 2407, 1792, 96),
        ("RTX PRO 6000 Blackwell", 188, 2617, 1792, 128),
        ("RTX PRO 5000 Blackwell", 110, 2617, 1344, 96),
        ("RTX PRO 4500 Blackwell", 82, 2617, 896, 64),
        ("RTX PRO 4000 Blackwell", 70, 2617, 672, 48),
        ("RTX PRO 2000 Blackwell", 34, 2600, 288, 32),
        ("RTX 5080", 84, 2617, 960, 64),
        ("RTX 5070 Ti", 70, 2452, 896, 48),
        ("RTX 5070", 48, 2512, 672, 48),
        ("RTX 5060 Ti", 36, 2572, 448, 32),
        ("RTX 5060", 30, 2497, 448, 32),
        ("RTX 5050", 20, 2572, 320, 24),
    ),
    "sm_121": (
        ("GB10", 48, 2418, 273, 24),
        ("DGX Spark", 48, 2418, 273, 24),
    ),
}
"""Data sheets by architecture, its typical GPU first."""
_FORM_FACTORS: dict[str, tuple[_Sheet, ...]] = {
    "sm_80": (("A100 40GB", 108, 1410, 1555, 40),),
    "sm_90": (("H100 PCIe", 114, 1755, 2000, 50),),
}
"""GPUs whose form factor or memory changes their figures: names whose words must all be in a given name."""


def _models(sheets: dict[str, tuple[_Sheet, ...]]) -> dict[str, tuple[DeviceModel, ...]]:
    return {
        arch: tuple(
            DeviceModel(name, arch, _MULTIPROCESSORS[arch], count, clock, dram, l2)
            for name, count, clock, dram, l2 in of_arch
        )
        for arch, of_arch in sheets.items()
    }


DEVICES = _models(_SHEETS)
"""GPUs by architecture, its typical GPU first."""
_BY_FORM_FACTOR = [each for of_arch in _models(_FORM_FACTORS).values() for each in of_arch]
REFERENCE = DEVICES["sm_90"][0]
"""The H200, to whose measured kernels both cost models are fitted; predictions for others are scaled from it."""

_GEFORCE = re.compile(r"[2-5]0[5-9]0(ti)?")
_MAKE = re.compile(
    r"\b(nvidia|geforce|tesla|jetson|agx|generation|laptop|gpu|mobile|max q|(workstation|server) edition"
    r"|sxm\d?|pcie|nvl|hbm\d?e?|\d+ ?gb)\b"
)
"""Words around a GPU's name in nvidia-smi and shops that do not change the architecture."""


def gpu_key(name: str) -> str:
    """A GPU's name without case, punctuation, maker, form factor and memory: h100 for "NVIDIA H100 80GB HBM3".

    The number of a GeForce alone, such as 5090, is that of an RTX.
    """
    key = re.sub(r"\W", "", _MAKE.sub(" ", _words(name)))
    return f"rtx{key}" if _GEFORCE.fullmatch(key) else key


def _words(name: str) -> str:
    return re.sub(r"[\W_]+", " ", name.lower())


def device_named(name: str) -> DeviceModel | None:
    """The GPU of a name in any spelling, such as "NVIDIA H100 PCIe"; None if the table does not have it."""
    words, key = set(_words(name).split()), gpu_key(name)
    for device in _BY_FORM_FACTOR:
        if words.issuperset(_words(device.name).split()):
            return device
    return next((each for of_arch in DEVICES.values() for each in of_arch if gpu_key(each.name) == key), None)


def typical_device(arch: str) -> DeviceModel:
    """The GPU that stands for an architecture such as sm_80 or sm_90a.

    An architecture without a GPU in the table, such as sm_88, has that of the next older architecture.
    """
    number = _number(arch)
    return DEVICES[max((each for each in DEVICES if _number(each) <= number), key=_number, default="sm_75")][0]


def device_for(arch: str, names: Iterable[str]) -> DeviceModel:
    """The first of these GPUs that is of an architecture, otherwise its typical one."""
    devices = (device_named(name) for name in names)
    return next((each for each in devices if each and _number(each.arch) == _number(arch)), typical_device(arch))


def _number(arch: str) -> int:
    return int(arch.removeprefix("sm_").rstrip("af"))

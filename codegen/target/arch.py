"""GPU architectures: names, support by the tools, virtual architectures and binary compatibility."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from difflib import get_close_matches

from codegen.errors import ArchError
from codegen.target.device_model import DEVICES, DeviceModel, device_named, gpu_key
from codegen.target.gpus import GPUS, arch_named, arch_of_gpu
from codegen.toolchain.tools import Toolchain

ALL = "all"
"""Every architecture that the tools and the templates support, without those of specific instructions (sm_90a)."""
SHARED = "+"
"""Suffix of an architecture whose cubins are for every GPU that runs them."""
RENAMED = {"sm_101": "sm_110"}
"""Thor, which CUDA 13 gave another number."""
OLDEST = 75
"""Turing, the oldest architecture of templates and of CUDA 13."""
OLDEST_WITH_ASYNC_COPIES = 80
"""Ampere, the oldest architecture with cp.async."""
OLDEST_WITH_CLUSTERS = 90
"""Hopper, the oldest architecture with clusters of up to eight blocks."""
INTEGRATED = frozenset({72, 87, 88, 101, 110})
"""Tegra: Xavier, Orin, a GPU in no public table, and Thor with its old number and its new one. The CUDA programming
guide: binary compatibility is neither supported for Tegra nor between desktop and Tegra."""
NEAREST = 3
"""Most suggestions for an unknown name."""


def supported_archs(toolchain: Toolchain) -> list[str]:
    """The architectures that both ptxas and the templates support, oldest first."""
    return [arch for arch in toolchain.archs if arch_number(arch) >= OLDEST]


def check_archs(names: Iterable[str], toolchain: Toolchain) -> tuple[str, ...]:
    """The architectures in the tools' spelling, without duplicates, in the given order.

    Takes `all`, sm_90, sm90, 90, 9.0, sm_80+ and names of GPUs such as H100 and RTX 4090. Raises ArchError, which lists
    the nearest and the supported names.
    """
    known = supported_archs(toolchain)
    plain = [arch for arch in known if arch[-1].isdigit()]
    checked: list[str] = []
    given = (name.removesuffix(SHARED) for name in names)
    for name in (each for one in given for each in (plain if one == ALL else [one])):
        arch = arch_named(name)
        arch = RENAMED.get(arch, arch) if arch and arch not in known else arch
        if arch not in known:
            raise ArchError(_unknown(name, arch, known, toolchain.ptxas_version))
        if arch not in checked:
            checked.append(arch)
    if not checked:
        raise ArchError(f"no architecture given: name some of {', '.join(known)}")
    return tuple(checked)


def check_shared(names: Iterable[str], toolchain: Toolchain) -> tuple[str, ...]:
    """The architectures that are given as sm_80+, in the tools' spelling. Raises ArchError."""
    shared = [name for name in names if name.endswith(SHARED)]
    return check_archs(shared, toolchain) if shared else ()


def served_archs(arch: str) -> tuple[str, ...]:
    """The architectures of GPUs that run cubins of this one, oldest first."""
    return tuple(each for each in DEVICES if runs_on(arch, each))


def shared_device(device: DeviceModel) -> DeviceModel:
    """A GPU with no more shared memory for a block than any GPU that runs cubins of its architecture."""
    least = min(each.multiprocessor.block_shared_bytes for arch in served_archs(device.arch) for each in DEVICES[arch])
    return replace(device, multiprocessor=replace(device.multiprocessor, block_shared_bytes=least))


def check_gpus(names: Iterable[str], archs: Sequence[str]) -> tuple[str, ...]:
    """The GPUs of these names in the table's spelling, at most one for each of a job's architectures.

    Raises ArchError for an unknown GPU, for one of another architecture, and for a second one of the same.
    """
    of_arch: dict[str, str] = {}
    for name in names:
        device = device_named(name)
        if device is None:
            nearest = _nearest(name, ())
            raise ArchError(
                f"unknown GPU '{name}'{f' (nearest: {nearest})' if nearest else ''}: farm doctor --archs lists them"
            )
        if arch_number(device.arch) not in map(arch_number, archs):
            raise ArchError(f"{device.name} has another architecture: add --arch {device.arch}")
        if of_arch.setdefault(device.arch, device.name) != device.name:
            raise ArchError(f"{of_arch[device.arch]} and {device.name} are both {device.arch}: name one of them")
    return tuple(of_arch.values())


def _unknown(name: str, arch: str | None, known: Sequence[str], ptxas_version: str) -> str:
    supported = f"ptxas {ptxas_version} supports {', '.join(known)}. farm doctor --archs lists GPUs"
    if arch_of_gpu(name):
        return f"'{name}' has the unsupported architecture {arch}: {supported}"
    nearest = _nearest(name, known)
    return f"unknown architecture '{name}'{f' (nearest: {nearest})' if nearest else ''}: {supported}"


def _nearest(name: str, known: Sequence[str]) -> str:
    """GPUs and architectures with similar names."""
    shown = {arch.replace("_", ""): arch for arch in known}
    shown |= {gpu_key(gpu): gpu for gpus in GPUS.values() for gpu in gpus}
    return ", ".join(shown[key] for key in get_close_matches(gpu_key(name), shown, NEAREST))


def has_clusters(arch: str) -> bool:
    """Whether the architecture has clusters, whose blocks reach each other's shared memory."""
    return arch_number(arch) >= OLDEST_WITH_CLUSTERS


def virtual_arch(arch: str, *, clusters: bool = False) -> str:
    """The virtual architecture whose PTX a real one uses, such as compute_80 for sm_90a, or compute_90 with clusters.

    Raises ArchError for an architecture without templates, or without clusters if they are asked for.
    """
    number = arch_number(arch)
    if clusters:
        if not has_clusters(arch):
            raise ArchError(f"{arch} has no clusters of blocks: sm_{OLDEST_WITH_CLUSTERS} or newer has")
        return f"compute_{OLDEST_WITH_CLUSTERS}"
    if number < OLDEST:
        raise ArchError(f"no template for {arch}: sm_{OLDEST} is the oldest supported architecture")
    return f"compute_{OLDEST_WITH_ASYNC_COPIES if number >= OLDEST_WITH_ASYNC_COPIES else OLDEST}"


def arch_number(arch: str) -> int:
    """The number of an architecture: 90 for sm_90, sm_90a and compute_90. Raises ArchError for other names."""
    match = re.fullmatch(r"(?:sm|compute)_(\d+)[a-z]?", arch)
    if match is None:
        raise ArchError(f"invalid architecture '{arch}': expected a name such as sm_90")
    return int(match[1])


def runs_on(cubin: str, gpu: str) -> bool:
    """Whether a GPU of architecture `gpu` runs cubins of architecture `cubin`, by NVIDIA's rules of compatibility.

    The GPU's major version must be equal and its minor version not older. Integrated GPUs and the cubins made for them
    are compatible with nothing but each other. Cubins with architecture-specific instructions (sm_90a) run on exactly
    that architecture, cubins of a family (sm_100f) on those members of it that are not older.
    """
    made, has = arch_number(cubin), arch_number(gpu)
    if cubin.endswith("a") or {made, has} & INTEGRATED:
        return made == has
    return made // 10 == has // 10 and made % 10 <= has % 10

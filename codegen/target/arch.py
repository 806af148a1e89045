"""Architectures: what people write, what the tools know, and what PTX each is made from."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from difflib import get_close_matches

from codegen.errors import ArchError
from codegen.target.gpus import GPUS, arch_named, arch_of_gpu, gpu_key
from codegen.toolchain.tools import Toolchain

OLDEST = 75
"""Turing: templates have no older form, and CUDA 13 no older architecture."""
OLDEST_WITH_ASYNC_COPIES = 80
"""Ampere: its templates use cp.async."""
OLDEST_WITH_CLUSTERS = 90
"""Hopper: its stationary templates have clusters of up to eight blocks, as all later architectures take them."""
NEAREST = 3
"""Suggestions for a name that is none."""


def supported_archs(toolchain: Toolchain) -> list[str]:
    """What both ptxas and the templates can do, oldest first."""
    return [arch for arch in toolchain.archs if arch_number(arch) >= OLDEST]


def check_archs(names: Iterable[str], toolchain: Toolchain) -> tuple[str, ...]:
    """The architectures in the tools' spelling, each once, in the order given.

    Takes sm_90, sm90, 90, 9.0 and GPUs' names such as H100 and RTX 4090. Raises ArchError, which names the nearest ones
    and the known ones.
    """
    known = supported_archs(toolchain)
    checked: list[str] = []
    for name in names:
        arch = arch_named(name)
        if arch not in known:
            raise ArchError(_unknown(name, arch, known, toolchain.ptxas_version))
        if arch not in checked:
            checked.append(arch)
    if not checked:
        raise ArchError(f"no architecture given: name some of {', '.join(known)}")
    return tuple(checked)


def _unknown(name: str, arch: str | None, known: Sequence[str], ptxas_version: str) -> str:
    there_are = f"with ptxas {ptxas_version} there are {', '.join(known)}; farm doctor --archs lists GPUs"
    if arch_of_gpu(name):
        return f"'{name}' has the architecture {arch}, for which nothing can be compiled here: {there_are}"
    nearest = _nearest(name, known)
    return f"unknown architecture '{name}'{f' (the nearest: {nearest})' if nearest else ''}: {there_are}"


def _nearest(name: str, known: Sequence[str]) -> str:
    """GPUs and architectures that are spelt nearly so."""
    shown = {arch.replace("_", ""): arch for arch in known}
    shown |= {gpu_key(gpu): gpu for gpus in GPUS.values() for gpu in gpus}
    return ", ".join(shown[key] for key in get_close_matches(gpu_key(name), shown, NEAREST))


def has_clusters(arch: str) -> bool:
    """Whether blocks of a cluster reach each other's shared memory."""
    return arch_number(arch) >= OLDEST_WITH_CLUSTERS


def virtual_arch(arch: str, *, clusters: bool = False) -> str:
    """The virtual architecture whose PTX serves a real one, as in compute_80 for sm_90a; or of kernels with clusters.

    Raises ArchError for an architecture that has no such kernels.
    """
    number = arch_number(arch)
    if clusters:
        if not has_clusters(arch):
            raise ArchError(f"{arch} has no clusters of blocks: sm_{OLDEST_WITH_CLUSTERS} is the oldest that has")
        return f"compute_{OLDEST_WITH_CLUSTERS}"
    if number < OLDEST:
        raise ArchError(f"there is no template for {arch}: sm_{OLDEST} is the oldest architecture")
    return f"compute_{OLDEST_WITH_ASYNC_COPIES if number >= OLDEST_WITH_ASYNC_COPIES else OLDEST}"


def arch_number(arch: str) -> int:
    """90 for sm_90, sm_90a and compute_90. Raises ArchError."""
    match = re.fullmatch(r"(?:sm|compute)_(\d+)[a-z]?", arch)
    if match is None:
        raise ArchError(f"'{arch}' is not the name of an architecture: they look like sm_90")
    return int(match[1])


def runs_on(cubin: str, gpu: str) -> bool:
    """Whether a GPU of one architecture runs the cubins of another: those of its major version that are not newer.

    Cubins of an architecture's own instructions (sm_90a) run on exactly that one.
    """
    made, has = arch_number(cubin), arch_number(gpu)
    if cubin[-1].isalpha():
        return made == has
    return made // 10 == has // 10 and made % 10 <= has % 10

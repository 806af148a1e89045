"""Architectures that can be compiled for here, the GPUs that run their cubins, and the driver needed."""

from __future__ import annotations

from dataclasses import dataclass

from codegen.target.arch import supported_archs
from codegen.target.gpus import GPUS, minimum_driver
from codegen.toolchain.tools import Toolchain


@dataclass(frozen=True)
class Architecture:
    """One architecture, with the support of the installed ptxas."""

    name: str
    variants: tuple[str, ...]
    """Variants such as sm_90a: code for this architecture alone, with instructions that later ones may lack."""
    gpus: tuple[str, ...]
    supported: bool
    """Whether farm compile can make cubins for it."""
    minimum_driver: int | None
    """Oldest driver branch that runs its cubins, such as 580; None if unknown or unsupported."""


def architectures(toolchain: Toolchain) -> tuple[Architecture, ...]:
    """Every architecture with a known GPU or support by ptxas, oldest first. Raises CodegenError."""
    known = supported_archs(toolchain)
    names = {arch.rstrip("af") for arch in (*known, *GPUS)}
    return tuple(
        Architecture(
            name,
            tuple(arch for arch in known if arch != name and arch.rstrip("af") == name),
            GPUS.get(name, ()),
            name in known,
            minimum_driver(name, toolchain.ptxas_version) if name in known else None,
        )
        for name in sorted(names, key=lambda name: int(name.removeprefix("sm_")))
    )

"""Which architectures can be compiled for here, on which GPUs their cubins run, and with which driver."""

from __future__ import annotations

from dataclasses import dataclass

from codegen.target.arch import supported_archs
from codegen.target.gpus import GPUS, minimum_driver
from codegen.toolchain.tools import Toolchain


@dataclass(frozen=True)
class Architecture:
    """One architecture of the table, with what the installed ptxas says of it."""

    name: str
    variants: tuple[str, ...]
    """As in sm_90a: code for this architecture alone, with instructions that later ones may not have."""
    gpus: tuple[str, ...]
    supported: bool
    """Whether farm compile can make cubins for it."""
    minimum_driver: int | None
    """The oldest driver branch that runs them, as in 580; None where that is not known or nothing can be compiled."""


def architectures(toolchain: Toolchain) -> tuple[Architecture, ...]:
    """Oldest first: every architecture that has a GPU in the table or that ptxas knows. Raises CodegenError."""
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

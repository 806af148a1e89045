"""Architectures: what people write, what the tools know, and what PTX each is made from."""

from __future__ import annotations

import re
from collections.abc import Iterable

from codegen.errors import ArchError
from codegen.toolchain import Toolchain

OLDEST = 75
"""Turing: templates have no older form, and CUDA 13 no older architecture."""
OLDEST_WITH_ASYNC_COPIES = 80
"""Ampere: its templates use cp.async."""


def check_archs(names: Iterable[str], toolchain: Toolchain) -> tuple[str, ...]:
    """The architectures in the tools' spelling, each once, in the order given.

    Takes sm_90, sm90, 90 and 9.0. Raises ArchError, which names the known ones.
    """
    known = [arch for arch in toolchain.archs if _number(arch) >= OLDEST]
    checked: list[str] = []
    for name in names:
        match = re.fullmatch(r"(?:sm_?)?(\d+)(?:\.(\d))?([a-z]?)", name.strip().lower())
        arch = f"sm_{match[1]}{match[2] or ''}{match[3]}" if match else ""
        if arch not in known:
            raise ArchError(
                f"unknown architecture '{name}': with ptxas {toolchain.ptxas_version} there are {', '.join(known)}"
            )
        if arch not in checked:
            checked.append(arch)
    if not checked:
        raise ArchError(f"no architecture given: name some of {', '.join(known)}")
    return tuple(checked)


def virtual_arch(arch: str) -> str:
    """The virtual architecture whose PTX serves a real one, as in compute_80 for sm_90a."""
    number = _number(arch)
    if number < OLDEST:
        raise ArchError(f"there is no template for {arch}: sm_{OLDEST} is the oldest architecture")
    return f"compute_{OLDEST_WITH_ASYNC_COPIES if number >= OLDEST_WITH_ASYNC_COPIES else OLDEST}"


def _number(arch: str) -> int:
    match = re.fullmatch(r"sm_(\d+)[a-z]?", arch)
    if match is None:
        raise ArchError(f"'{arch}' is not the name of an architecture: they look like sm_90")
    return int(match[1])

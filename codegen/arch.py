"""Architectures: what people write, what the tools know, and what PTX each is made from."""

from __future__ import annotations

import re
from collections.abc import Iterable

from codegen.errors import ArchError
from codegen.toolchain import Toolchain

OLDEST_WITH_ASYNC_COPIES = 80


def check_archs(names: Iterable[str], toolchain: Toolchain) -> tuple[str, ...]:
    """The architectures in the tools' spelling, each once, in the order given.

    Takes sm_90, sm90, 90 and 9.0. Raises ArchError, which names the known ones.
    """
    known = toolchain.archs
    checked: list[str] = []
    for name in names:
        match = re.fullmatch(r"(?:sm_?)?(\d+)(?:\.(\d))?([a-z]?)", name.strip().lower())
        arch = f"sm_{match[1]}{match[2] or ''}{match[3]}" if match else name
        if arch not in known:
            raise ArchError(
                f"unknown architecture '{name}': ptxas {toolchain.ptxas_version} knows {', '.join(known)}"
            )
        if arch not in checked:
            checked.append(arch)
    if not checked:
        raise ArchError(f"no architecture given: name some of {', '.join(known)}")
    return tuple(checked)


def virtual_arch(arch: str) -> str:
    """The architecture whose PTX serves this one: cp.async needs compute_80, what is older has the plain path."""
    number = int(re.sub(r"\D", "", arch))
    return f"compute_{OLDEST_WITH_ASYNC_COPIES if number >= OLDEST_WITH_ASYNC_COPIES else 75}"

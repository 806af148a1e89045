"""The extras of pyproject.toml: what a message says to install where an optional library is missing."""

from __future__ import annotations

import sys
from typing import Literal

Extra = Literal["gpu", "metrics", "peers", "plots", "postgres", "reference", "torch"]


def how_to_install(extra: Extra) -> str:
    """A command for a checkout of this program, where it has to be: no package index has it. For this Python."""
    return f"make {extra}" if extra in ("gpu", "torch") else f"{sys.executable} -m pip install '.[{extra}]'"


def way_out(extra: Extra) -> str:
    """The end of a message."""
    return f"in a checkout of this program, {how_to_install(extra)}"

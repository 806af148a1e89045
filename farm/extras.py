"""Extras of pyproject.toml, and the messages for missing optional libraries."""

from __future__ import annotations

import sys
from typing import Literal

Extra = Literal["gpu", "metrics", "otel", "peers", "plots", "postgres", "reference", "torch"]


def how_to_install(extra: Extra) -> str:
    """Command that installs an extra for the running Python, in a checkout: no package index has the project."""
    return f"make {extra}" if extra in ("gpu", "torch") else f"{sys.executable} -m pip install '.[{extra}]'"


def way_out(extra: Extra) -> str:
    """End of a message that names the command."""
    return f"in a checkout of this program, {how_to_install(extra)}"

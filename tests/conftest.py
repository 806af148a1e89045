"""Folders are named for what a machine must have. Where it lacks that, their tests are skipped and say so."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from hypothesis import settings

from codegen.errors import ToolchainError
from codegen.toolchain import find_toolchain

TESTS = Path(__file__).parent

# How long one example takes says more about what else the machine does than about the code.
settings.register_profile("farm", deadline=None)
settings.load_profile("farm")


def lacks_toolchain() -> str | None:
    try:
        find_toolchain()
    except ToolchainError as error:
        return f"needs the CUDA toolchain: {error}"
    return None


def lacks_ray() -> str | None:
    return None if importlib.util.find_spec("ray") else "needs Ray: it is not installed"


LACKS: dict[str, Callable[[], str | None]] = {"toolchain": cache(lacks_toolchain), "cluster": cache(lacks_ray)}
"""By folder; what tests/gpu/ needs is found out by its own fixture, which opens the GPU."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(TESTS):
            lacks = LACKS.get(item.path.relative_to(TESTS).parts[0])
            if lacks and (reason := lacks()):
                item.add_marker(pytest.mark.skip(reason=reason))

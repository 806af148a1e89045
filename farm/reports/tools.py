"""Tools that a compile on this machine would run, for `farm config show`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from codegen.errors import CodegenError
from codegen.toolchain.tools import find_toolchain, host_compiler, host_compiler_version
from farm.config.settings import Settings


@dataclass(frozen=True)
class Tool:
    """A configured tool."""

    name: str
    path: Path | None = None
    version: str | None = None
    problem: str = ""
    """Why it is unusable; empty if it works."""


def effective_tools(settings: Settings) -> tuple[Tool, ...]:
    """nvcc, ptxas and g++ with their versions, or why they are unusable."""

    def nvcc() -> Tool:
        tools = find_toolchain(settings.nvcc, settings.ptxas)
        return Tool("nvcc", tools.nvcc, tools.nvcc_version)

    def ptxas() -> Tool:
        tools = find_toolchain(settings.nvcc, settings.ptxas)
        return Tool("ptxas", tools.ptxas, tools.ptxas_version)

    def gxx() -> Tool:
        return Tool("g++", host_compiler(), host_compiler_version())

    return _look("nvcc", nvcc), _look("ptxas", ptxas), _look("g++", gxx)


def _look(name: str, find: Callable[[], Tool]) -> Tool:
    try:
        return find()
    except CodegenError as error:
        return Tool(name, problem=str(error))

"""nvcc and ptxas that write down each of their runs."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

from codegen.toolchain.tools import find_toolchain


@dataclass(frozen=True)
class CountedTools:
    """The tools of the installed toolchain, behind scripts in a folder."""

    folder: Path

    @staticmethod
    def install(folder: Path) -> CountedTools:
        folder.mkdir()
        toolchain = find_toolchain()
        for tool in (toolchain.nvcc, toolchain.ptxas):
            script = folder / tool.name
            log = shlex.quote(str(folder / f"{tool.name}.log"))
            script.write_text(f'#!/bin/sh\necho "$*" >>{log}\nexec {shlex.quote(str(tool))} "$@"\n')
            script.chmod(0o755)
        return CountedTools(folder)

    @property
    def nvcc(self) -> Path:
        return self.folder / "nvcc"

    @property
    def ptxas(self) -> Path:
        return self.folder / "ptxas"

    def runs(self, tool: Path) -> int:
        """Compilations so far, without questions for the tool's version."""
        log = self.folder / f"{tool.name}.log"
        return sum(" -o " in line for line in log.read_text().splitlines()) if log.exists() else 0

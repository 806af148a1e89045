"""The real tools, watched, and a small network for them."""

from __future__ import annotations

import shlex
from pathlib import Path

from codegen.toolchain.tools import find_toolchain
from farm.jobs.model import BuildOptions
from tests.samples import SMALLER, checkpoint, layer

NET = checkpoint(layer("conv1"), layer("conv2", spec=SMALLER))
REFUSAL = "ptxas error   : Entry function 'conv2d' uses too much shared data"
OPTIONS = BuildOptions(("sm_80", "sm_90"))


class Tools:
    """The real tools behind scripts that write down each call which compiles something."""

    def __init__(self, folder: Path) -> None:
        self.log = folder / "calls"
        self.log.touch()
        self.nvcc, self.ptxas = folder / "nvcc", folder / "ptxas"
        self.say("nvcc", self.command("nvcc"))
        self.relent()

    def command(self, name: str) -> str:
        """Command line for a script that calls the real tool with its own arguments."""
        return f'exec {shlex.quote(str(getattr(find_toolchain(), name)))} "$@"'

    def say(self, name: str, instead: str) -> None:
        real = find_toolchain()
        path = self.log.parent / name
        asked = f'case "$1" in --*) exec {shlex.quote(str(getattr(real, name)))} "$@";; esac'
        path.write_text(f"#!/bin/sh\n{asked}\necho {name} >> {shlex.quote(str(self.log))}\n{instead}\n")
        path.chmod(0o755)

    def refuse(self, message: str) -> None:
        """From now on ptxas says no."""
        self.say("ptxas", f"echo {shlex.quote(message)} >&2; exit 255")

    def relent(self) -> None:
        self.say("ptxas", self.command("ptxas"))

    def calls(self) -> list[str]:
        """Since it was last asked."""
        calls = sorted(self.log.read_text().split())
        self.log.write_text("")
        return calls

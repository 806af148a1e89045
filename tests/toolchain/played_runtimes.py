"""The runtimes without a framework, in Python and in C, on a played driver that records its calls."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import farm.runtime
from tests.house.tree import ROOT

HERE = Path(__file__).parent
C = Path(farm.runtime.__file__).parent / "c"
FLAGS = ("-std=c11", "-O1", "-Wall", "-Wextra", "-Werror")
LANGUAGES = ("python", "c")

IN_PYTHON = """
import sys
from math import prod

import numpy as np

from farm.runtime import load

bundle, images, source, target = sys.argv[1:]
try:
    with load(bundle) as net:
        shape = net.inputs[0].shape_of(int(images))
        net(np.fromfile(source, net.inputs[0].held_in, prod(shape)).reshape(shape)).tofile(target)
except Exception as error:
    sys.exit(str(error))
"""


@dataclass(frozen=True)
class Launched:
    """A launch, its pointers numbered as they are seen first."""

    kernel: str
    sizes: tuple[int, ...]
    """Grid, block, shared bytes."""
    arguments: tuple[str, ...]


def build_driver(folder: Path, compiler: str = "gcc") -> None:
    """Writes the driver that is played into a folder, and the programs that run bundles."""
    library = folder / "libcuda.so.1"
    made = ["-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", HERE / "stub_libcuda.c", "-o", library]
    subprocess.run([compiler, "-std=gnu11", *made], check=True)
    sources = [HERE / "runtime_program.c", *sorted(C.glob("*.c"))]
    subprocess.run([compiler, *FLAGS, f"-I{C}", *sources, library, "-o", folder / "program"], check=True)
    (folder / "program.py").write_text(IN_PYTHON)


class Played:
    """Runs bundles on the driver that is played."""

    def __init__(self, driver: Path, folder: Path, emulator: Sequence[str] = ()) -> None:
        self._driver = driver
        self._folder = folder
        self._emulator = emulator

    def run(
        self,
        language: str,
        bundle: Path,
        images: int,
        *more: str,
        arch: int = 90,
        fail: str = "",
        recorded: bool = False,
        cluster: int = 0,
    ) -> str:
        """The error of the runtime; empty if there was none."""
        (self._folder / "log").write_text("")
        np.zeros(1 << 21, np.float32).tofile(self._folder / "x")
        played = {"STUB_LOG": str(self._folder / "log"), "STUB_ARCH": str(arch), "STUB_FAIL": fail}
        played["STUB_CLUSTER"] = str(cluster)
        if recorded:
            played["STUB_RECORDED"] = "1"
        environment = {**os.environ, **played, "LD_LIBRARY_PATH": str(self._driver), "PYTHONPATH": str(ROOT)}
        in_c = [*self._emulator, self._driver / "program"]
        command = [sys.executable, self._driver / "program.py"] if language == "python" else in_c
        arguments = [bundle, str(images), self._folder / "x", self._folder / "y", *more]
        done = subprocess.run([*command, *arguments], env=environment, capture_output=True, text=True)
        assert (done.returncode == 0) == (not done.stderr)
        return done.stderr.strip()

    def lines(self) -> list[list[str]]:
        return [line.split(" ") for line in (self._folder / "log").read_text().splitlines()]

    def launches(self) -> list[Launched]:
        lines = [line[1:] for line in self.lines() if line[0] == "launch"]
        return by_first_sight((line[0], line[1:8], line[9:]) for line in lines)


def by_first_sight(launches: Iterable[tuple[str, Iterable[Any], Sequence[str]]]) -> list[Launched]:
    seen: dict[str, str] = {}
    return [
        Launched(
            kernel,
            tuple(map(int, sizes)),
            tuple(seen.setdefault(each, f"p{len(seen)}") if each.startswith("p") else each for each in arguments),
        )
        for kernel, sizes, arguments in launches
    ]

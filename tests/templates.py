"""Templates for tests: nvcc makes each once in a run, for all tests and all processes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from fcntl import LOCK_EX, flock
from functools import cache
from pathlib import Path

from codegen.keys import template_key
from codegen.spec import LayerSpec
from codegen.template import Template, make_template
from codegen.tiling import Tiling
from codegen.toolchain import ToolLimits, find_toolchain

LIMITS = ToolLimits(300)


class SharedFolder:
    """Where the processes of a run keep templates for each other; None where there is one process."""

    path: Path | None = None


@cache
def shared_template(spec: LayerSpec, tiling: Tiling, virtual_arch: str = "compute_80") -> Template:
    """As `make_template` makes it."""
    toolchain = find_toolchain()
    if SharedFolder.path is None:
        return make_template(spec, tiling, virtual_arch, toolchain, LIMITS)
    name = template_key(spec, tiling, virtual_arch, toolchain.nvcc_version).digest
    path = SharedFolder.path / f"{name}.ptx"
    with _locked(path.with_suffix(".lock")):
        if not path.exists():
            made = make_template(spec, tiling, virtual_arch, toolchain, LIMITS)
            written = path.with_suffix(".new")
            written.write_text(made.ptx)
            written.rename(path)
    return Template.from_ptx(path.read_text())


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Others wait."""
    with path.open("w") as file:
        flock(file, LOCK_EX)
        yield

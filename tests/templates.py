"""Templates and cubins for tests: the tools make each once in a run, for all tests and all processes."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fcntl import LOCK_EX, flock
from functools import cache
from pathlib import Path

from codegen.ir.layer_spec import LayerSpec
from codegen.ir.tiling import Tiling
from codegen.keys import template_key
from codegen.ptx.template import Template, make_template
from codegen.toolchain.ptxas import assemble, ptxas_options
from codegen.toolchain.tools import Toolchain, ToolLimits, find_toolchain

LIMITS = ToolLimits(300)


class SharedFolder:
    """Where the processes of a run keep templates and cubins for each other; None where there is one process."""

    path: Path | None = None


@cache
def shared_template(
    spec: LayerSpec, tiling: Tiling, virtual_arch: str = "compute_80", toolchain: Toolchain | None = None
) -> Template:
    """As `make_template` makes it, with the pinned tools unless others are given."""
    tools = toolchain or find_toolchain()
    name = template_key(spec, tiling, virtual_arch, tools.nvcc_version).digest
    return Template.from_ptx(
        _shared(f"{name}.ptx", lambda: make_template(spec, tiling, virtual_arch, tools, LIMITS).ptx.encode()).decode()
    )


def shared_cubin(ptx: bytes, arch: str, toolchain: Toolchain) -> bytes:
    """What ptxas makes of it at its level 3."""
    name = f"{hashlib.sha256(ptx).hexdigest()}.{arch}.{toolchain.ptxas_version}.cubin"
    return _shared(name, lambda: assemble(ptx, arch, toolchain, ptxas_options(3), LIMITS).data)


def _shared(name: str, make: Callable[[], bytes]) -> bytes:
    if SharedFolder.path is None:
        return make()
    path = SharedFolder.path / name
    with _locked(path.with_name(f"{name}.lock")):
        if not path.exists():
            written = path.with_name(f"{name}.new")
            written.write_bytes(make())
            written.rename(path)
    return path.read_bytes()


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Others wait."""
    with path.open("w") as file:
        flock(file, LOCK_EX)
        yield

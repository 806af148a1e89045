"""Templates and cubins for tests: nvcc and ptxas make each once, and later runs find it in the user's cache folder."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from fcntl import LOCK_EX, flock
from functools import cache
from pathlib import Path

import platformdirs

from codegen.ir.checkpoint import Weights
from codegen.ir.layer_spec import LayerSpec
from codegen.ir.tiling import Part, Tiling
from codegen.keys import GENERATOR_SOURCES, code_digest, template_key
from codegen.ptx.template import Template, make_template
from codegen.toolchain.ptxas import assemble, ptxas_options
from codegen.toolchain.tools import Toolchain, ToolLimits, find_toolchain
from codegen.verification.compare import Verification, random_run, verify_layer

LIMITS = ToolLimits(300)
KEPT_SECONDS = 7 * 86_400
"""Lifetime of a file that no test reads."""


class SharedFolder:
    """Folder that the processes of all runs share; None where nothing is kept."""

    path: Path | None = None


def open_shared_folder() -> None:
    """Opens the folder in the user's cache and removes files that have not been read for a week."""
    folder = Path(platformdirs.user_cache_dir("sparse-compile-farm-tests"))
    folder.mkdir(parents=True, exist_ok=True)
    oldest = time.time() - KEPT_SECONDS
    for path in folder.iterdir():
        with suppress(FileNotFoundError):  # another process of this run was faster
            if path.stat().st_mtime < oldest:
                path.unlink()
    SharedFolder.path = folder


@cache
def shared_template(
    spec: LayerSpec, tiling: Tiling, virtual_arch: str = "compute_80", toolchain: Toolchain | None = None
) -> Template:
    """A template of `make_template`, with the pinned tools unless others are given."""
    tools = toolchain or find_toolchain()
    made_by = template_key(spec, tiling, virtual_arch, tools.nvcc_version, tools.compiler_digest)
    key = replace(made_by, generator_digest=_generator())
    ptx = shared(f"{key.digest}.ptx", lambda: make_template(spec, tiling, virtual_arch, tools, LIMITS).ptx.encode())
    return Template.from_ptx(ptx.decode())


@cache
def _generator() -> str:
    """Digest of the generator's code, so that a corrected comment remakes no template."""
    return code_digest(GENERATOR_SOURCES)


def shared_cubin(ptx: bytes, arch: str, toolchain: Toolchain) -> bytes:
    """The cubin that ptxas makes at -O3."""
    name = f"{hashlib.sha256(ptx).hexdigest()}.{arch}.{toolchain.ptxas_version}.cubin"
    return shared(name, lambda: assemble(ptx, arch, toolchain, ptxas_options(3), LIMITS).data)


def shared(name: str, make: Callable[[], bytes]) -> bytes:
    """The bytes kept under a name, made by whichever process asks first. The name must say all that they depend on."""
    if SharedFolder.path is None:
        return make()
    path = SharedFolder.path / name
    with _locked(path.with_name(f"{name}.lock")):
        if path.exists():
            os.utime(path)
        else:
            written = path.with_name(f"{name}.new")
            written.write_bytes(make())
            written.rename(path)
        return path.read_bytes()


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Holds a file's lock, so that other processes wait."""
    with path.open("w") as file:
        flock(file, LOCK_EX)
        yield


def verify_random_run(
    template: Template,
    weights: Weights,
    parts: Sequence[Part],
    *,
    cubins: Sequence[bytes] | None = None,
    batch: int = 2,
) -> Verification:
    """Verifies parts of a layer in the emulator, on random arrays."""
    run = random_run(template.spec, template.tiling, weights, batch)
    return verify_layer(template, run, parts, cubins=cubins)

"""The files besides nvcc itself that shape its PTX: cicc, which compiles it, libdevice and the CUDA headers."""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path

from codegen.errors import ToolchainError

_CICC = "nvvm/bin/cicc"
_LIBDEVICE = "nvvm/libdevice/libdevice.10.bc"
_FIRST_HEADER = "cuda_runtime.h"
"""nvcc includes it into every source. The kernels' own sources include no other CUDA header."""
_HEADER_FOLDERS = ("include", "include/crt")
_INCLUDE = re.compile(rb'^[ \t]*#[ \t]*include[ \t]*[<"]([^>"\n]+)[>"]', re.MULTILINE)
_TOP = re.compile(r"^#\$ TOP=(.+)$", re.MULTILINE)
"""The root of the toolkit in the output of `nvcc --dryrun`."""


def root_beside(nvcc: Path) -> Path | None:
    """The toolkit's root folder for an nvcc in its usual place; None if nvcc is a script elsewhere."""
    root = nvcc.resolve().parent.parent
    return root if (root / _CICC).is_file() else None


def root_in_dry_run(output: str) -> Path:
    """The toolkit's root folder as `nvcc --dryrun` prints it. Raises ToolchainError if it has no compiler."""
    found = _TOP.search(output)
    root = Path(found[1].strip()).resolve() if found else None
    if root is None or not (root / _CICC).is_file():
        raise ToolchainError(f"nvcc --dryrun names no folder with {_CICC}: name another nvcc in FARM_NVCC")
    return root


def stamp_of(root: Path) -> str:
    """Digest over paths, sizes and times of the compiler's files; equal stamps mean equal contents."""
    files = [root / _CICC, root / _LIBDEVICE]
    for folder in _HEADER_FOLDERS:
        files += sorted((root / folder).glob("*.h*"))
    states = [(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in files if path.is_file()]
    return hashlib.sha256(repr(states).encode()).hexdigest()


def digest_of(root: Path) -> str:
    """Digest over the contents of the compiler's files, equal on all machines with the same ones.

    Raises ToolchainError if a file cannot be read.
    """
    hasher = hashlib.sha256()
    try:
        for path in (root / _CICC, root / _LIBDEVICE, *_headers(root / "include")):
            with path.open("rb") as file:
                content = hashlib.file_digest(file, "sha256").hexdigest()
            hasher.update(f"{path.name} {content}\n".encode())
    except OSError as error:
        raise ToolchainError(
            f"the CUDA compiler cannot be read ({error.strerror}: {error.filename}): install it again"
        ) from None
    return hasher.hexdigest()


def _headers(include: Path) -> list[Path]:
    """The headers that a kernel's source includes, directly or not, in a fixed order."""
    found = {include / _FIRST_HEADER}
    left = list(found)
    while left:
        header = left.pop()
        for name in _INCLUDE.findall(header.read_bytes()):
            for folder in (header.parent, include):
                path = Path(os.path.normpath(folder / os.fsdecode(name)))  # a/../b is the same header as b
                if path.is_file():
                    if path not in found:
                        found.add(path)
                        left.append(path)
                    break
    return sorted(found)

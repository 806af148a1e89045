"""The identity of the running program: a digest of its sources, independent of its version number."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from importlib.resources import files
from pathlib import Path

import farm

PACKAGES = ("codegen", "farm")
SUFFIXES = (".py", ".cu", ".cuh")


@lru_cache(maxsize=1)
def program_digest() -> str:
    """SHA-256 in hex over the sources of codegen and farm; machines with equal digests build equal cubins."""
    hasher = hashlib.sha256()
    for package in PACKAGES:
        root = Path(str(files(package)))
        for path in sorted(path for path in root.rglob("*") if path.suffix in SUFFIXES):
            data = path.read_bytes()
            hasher.update(f"{package}/{path.relative_to(root)} {len(data)}\n".encode() + data)
    return hasher.hexdigest()


def program_path() -> list[str]:
    """The folders that another Python process must search first for this program's modules.

    Empty if the program is installed: its interpreter finds it, and other packages there must not come before its own.
    """
    program = Path(farm.__file__).parents[1]
    return [] if program.name in ("site-packages", "dist-packages") else [str(program)]

"""A file that a command writes because its user named it."""

from __future__ import annotations

import os
from pathlib import Path

from farm.errors import UsageError


def write_output(path: Path, data: bytes, named: str) -> None:
    """Writes a file whole, or leaves the one of before; pipes and devices are written to.

    Raises UsageError, which says how it was named.
    """
    try:
        if path.exists() and not path.is_file():
            path.write_bytes(data)
        else:
            _replace(path.resolve(), data)
    except OSError as error:
        raise UsageError(f"{named}: it cannot be written ({error.strerror}): name another file") from None


def _replace(path: Path, data: bytes) -> None:
    """The new file has the name only once it is whole, and the mode of the one it replaces."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.write_bytes(data)
        if path.exists():
            path.open("ab").close()  # one that may not be written to is not replaced
            beside.chmod(path.stat().st_mode)
        beside.replace(path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise

"""Output files, written atomically."""

from __future__ import annotations

import os
from pathlib import Path

from farm.errors import UsageError


def write_output(path: Path, data: bytes, named: str) -> None:
    """Write a file atomically: on an error the old one stays. Pipes and devices are written directly.

    `named` is the file as its user gave it, such as `--output FILE`, for the message. Raises UsageError.
    """
    try:
        if path.exists() and not path.is_file():
            path.write_bytes(data)
        else:
            _replace(path.resolve(), data)
    except OSError as error:
        raise UsageError(f"{named}: cannot write it: {error.strerror}. Name another file.") from None


def _replace(path: Path, data: bytes) -> None:
    """Write a temporary file beside the path and rename it, with the mode of the file it replaces."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.write_bytes(data)
        if path.exists():
            path.open("ab").close()  # fails for a file without write permission, which rename would replace
            beside.chmod(path.stat().st_mode)
        beside.replace(path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise

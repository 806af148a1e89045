"""A file that a command writes because its user named it."""

from __future__ import annotations

from pathlib import Path

from farm.errors import UsageError


def write_output(path: Path, data: bytes, named: str) -> None:
    """Writes the file, of which nothing stays if it does not become whole: a part would pass for all of it.

    It is written in place, so that it may be a pipe or a device. Raises UsageError, which says how it was named.
    """
    try:
        with path.open("wb", buffering=0) as file:
            left = memoryview(data)
            try:
                while left:
                    left = left[file.write(left) :]
            except BaseException:
                if path.is_file():
                    path.unlink()
                raise
    except OSError as error:
        raise UsageError(f"{named}: it cannot be written ({error.strerror}): name another file") from None

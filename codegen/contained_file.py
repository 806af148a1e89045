"""Files that an untrusted file names: regular ones inside its folder, and nothing else."""

from __future__ import annotations

import errno
import io
import os
import stat
from pathlib import Path

from codegen.errors import ContainedFileError

_OUTSIDE = ("", ".", "..")


def open_contained(folder: Path, name: str) -> io.BufferedReader:
    """Opens a regular file by its path relative to a folder, without following links below that folder.

    Raises ContainedFileError for a path that leaves the folder, a link, or anything but a regular file, and OSError,
    such as FileNotFoundError, for a file that cannot be opened.
    """
    parts = name.split("/")
    if "\0" in name or any(part in _OUTSIDE for part in parts):
        raise ContainedFileError("its path is not inside the folder")
    try:
        parent = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            for part in parts[:-1]:
                inner = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=parent)
                os.close(parent)
                parent = inner
            return open_regular(parts[-1], os.O_NOFOLLOW, parent)
        finally:
            os.close(parent)
    except UnicodeEncodeError:
        raise ContainedFileError("its path is not text") from None
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR):
            raise ContainedFileError("its path has a link, or a file in the place of a folder") from None
        raise


def open_regular(path: Path | str, flags: int = 0, folder: int | None = None) -> io.BufferedReader:
    """Opens a regular file for reading; a pipe or a device is refused at once instead of waited for.

    `flags` are more flags of os.open, `folder` the descriptor of the folder that a relative path starts from. Raises
    ContainedFileError and OSError.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | flags, dir_fd=folder)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ContainedFileError("it is not a regular file")
        return io.BufferedReader(io.FileIO(descriptor))
    except BaseException:
        os.close(descriptor)
        raise

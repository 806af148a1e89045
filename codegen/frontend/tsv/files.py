"""Files of a TSV network, read as hostile input: regular files of a limited size, the layers' inside the folder."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from codegen.contained_file import open_contained, open_regular
from codegen.errors import CheckpointError, ContainedFileError


def read_file(path: Path, most_bytes: int) -> bytes:
    """The bytes of a file that the user names. Raises CheckpointError, naming the file."""
    return _read(path, lambda: open_regular(path), most_bytes)


def read_inside(folder: Path, name: str, most_bytes: int) -> bytes:
    """The bytes of a file that a network names, relative to its folder. Raises CheckpointError, naming the file."""
    return _read(folder / name, lambda: open_contained(folder, name), most_bytes)


def _read(path: Path, opened: Callable[[], BinaryIO], most_bytes: int) -> bytes:
    try:
        with opened() as file:
            if (size := os.fstat(file.fileno()).st_size) > most_bytes:
                raise CheckpointError(f"{path} has {size:,} bytes, more than {most_bytes:,}: give a smaller network")
            return file.read(most_bytes)
    except FileNotFoundError as error:
        raise CheckpointError(f"{path}: no such file: check the path") from error
    except ContainedFileError as error:
        raise CheckpointError(f"{path} cannot be used: {error}. Copy the file itself into the folder") from error
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read ({error.strerror}): check its permissions") from error

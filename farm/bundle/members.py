"""The files of a bundle, a folder or `.farm` archive, each checked against its size and digest when it is opened."""

from __future__ import annotations

import hashlib
import io
import os
import struct
import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import IO
from zipfile import ZIP_STORED, BadZipFile, ZipFile, ZipInfo

from codegen.contained_file import open_contained, open_regular
from codegen.errors import ContainedFileError
from farm.errors import BundleError

MANIFEST = "manifest.json"
MOST_MANIFEST_BYTES = 2**25
"""Largest manifest, of about 40,000 cubins. Reading it takes up to 20 times as much memory."""
MOST_MEMBER_BYTES = 2**31 - 1
"""Largest other file; protobuf, in which the network comes, has this limit too."""
MOST_DIRECTORY_BYTES = 2**23
"""Largest directory of an archive, of about 100,000 files. Python takes ten times as much memory for it."""
_PIECE_BYTES = 2**20
_ENCRYPTED = 1
_ARCHIVE_FAULTS = (BadZipFile, EOFError, NotImplementedError, OverflowError, RuntimeError, ValueError, struct.error)
"""Exceptions of zipfile for archives that it cannot read."""


@dataclass(frozen=True)
class Member:
    """A file of a bundle, as the manifest describes it."""

    path: str
    sha256: str
    bytes: int


class _UnusableError(Exception):
    """A file that cannot be read. The message is the reason alone."""


class Members(ABC):
    """The files of a bundle by their relative paths."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self, member: Member) -> bytes:
        """The bytes of a file, of the manifest's size and digest. Raises BundleError."""
        try:
            with self._open(member.path) as (file, size):
                if size != member.bytes or size > MOST_MEMBER_BYTES:
                    raise _UnusableError(f"it has {size:,} bytes, the manifest says {member.bytes:,}")
                data = _whole(file, size)
            if hashlib.sha256(data).hexdigest() != member.sha256:
                raise _UnusableError("its digest differs from the manifest's")
        except FileNotFoundError:
            raise BundleError(f"{self.path}: {member.path} is missing: fetch the bundle again") from None
        except _UnusableError as error:
            raise BundleError(f"{self.path}: {member.path} is damaged: {error}. Fetch the bundle again") from None
        return data

    def manifest(self) -> bytes:
        """The bytes of the manifest, which describes all other files. Raises BundleError."""
        try:
            with self._open(MANIFEST) as (file, size):
                if size > MOST_MANIFEST_BYTES:
                    raise _UnusableError(f"its {MANIFEST} has {size:,} bytes, more than {MOST_MANIFEST_BYTES:,}")
                return _whole(file, size)
        except FileNotFoundError:
            fault = f"it has no {MANIFEST}" if self.path.exists() else "it does not exist"
            raise BundleError(f"{self.path} is not a bundle: {fault}. farm fetch writes one") from None
        except _UnusableError as error:
            raise BundleError(f"{self.path} is not a bundle: {error}. farm fetch writes one") from None

    def size(self, name: str) -> int:
        """Size of a file; 0 for one that cannot be opened."""
        try:
            with self._open(name) as (_, size):
                return size
        except (FileNotFoundError, _UnusableError):
            return 0

    @contextmanager
    def _open(self, name: str) -> Iterator[tuple[IO[bytes], int]]:
        """A file and its size. Raises FileNotFoundError and _UnusableError, also for faults while it is read."""
        try:
            file, size = self._opened(name)
            with file:
                yield file, size
        except (FileNotFoundError, _UnusableError):
            raise
        except OSError as error:
            raise _UnusableError(error.strerror or str(error)) from None
        except (*_ARCHIVE_FAULTS, ContainedFileError) as error:
            raise _UnusableError(str(error)) from None

    @abstractmethod
    def _opened(self, name: str) -> tuple[IO[bytes], int]: ...


class _Folder(Members):
    """The files of a bundle in a folder."""

    def _opened(self, name: str) -> tuple[IO[bytes], int]:
        file = open_contained(self.path, name)
        return file, os.fstat(file.fileno()).st_size


class _Archive(Members):
    """The files of a bundle in an uncompressed zip archive."""

    def _opened(self, name: str) -> tuple[IO[bytes], int]:
        entry = self._entries.get(name)
        if entry is None:
            raise FileNotFoundError(name)
        if entry.flag_bits & _ENCRYPTED:
            raise _UnusableError("it is encrypted, which bundles are not")
        if entry.compress_type != ZIP_STORED or entry.file_size != entry.compress_size:
            raise _UnusableError("it is compressed, which bundles are not")
        return self._zip.open(entry), entry.file_size

    @cached_property
    def _entries(self) -> dict[str, ZipInfo]:
        entries = {entry.filename: entry for entry in self._zip.infolist()}
        if len(entries) < len(self._zip.infolist()):
            raise _UnusableError("two files of its archive have the same name")
        by_place = sorted(entries.values(), key=lambda entry: entry.header_offset)
        if any(each.header_offset + each.file_size > after.header_offset for each, after in pairwise(by_place)):
            raise _UnusableError("two files of its archive overlap")
        return entries

    @cached_property
    def _zip(self) -> ZipFile:
        """The archive, open as long as the bundle, so that its directory is read once for hundreds of files."""
        file = _BoundedReader(open_regular(self.path).detach())
        weakref.finalize(self, file.close)
        return ZipFile(file)


class _BoundedReader(io.BufferedReader):
    """A reader that gives zipfile no more bytes at once than a directory may have."""

    def read(self, size: int | None = -1, /) -> bytes:
        if size is None or size < 0:
            size = MOST_DIRECTORY_BYTES
        if size > MOST_DIRECTORY_BYTES:
            raise BadZipFile(f"its directory has {size:,} bytes, more than {MOST_DIRECTORY_BYTES:,}")
        return super().read(size)


def open_members(path: Path) -> Members:
    """The files of a bundle; nothing is read yet."""
    return _Folder(path) if path.is_dir() else _Archive(path)


def _whole(file: IO[bytes], size: int) -> bytes:
    """A file of a known size, in pieces, since an archive may announce more than it has."""
    data = bytearray()
    while len(data) <= size and (piece := file.read(min(_PIECE_BYTES, size + 1 - len(data)))):
        data += piece
    if len(data) != size:
        raise _UnusableError(f"it should have {size:,} bytes")
    return bytes(data)

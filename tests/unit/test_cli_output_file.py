"""An output file is complete or absent, and may be a pipe."""

from __future__ import annotations

import os
import resource
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from cli.commands.run import write_arrays
from cli.output.atomic_file import write_output
from farm.errors import UsageError


@contextmanager
def room_for(size: int) -> Iterator[None]:
    """No file of this process grows larger meanwhile, as on a disk that is full."""
    limit, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, most))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, most))


def test_a_full_disk_leaves_no_file(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    with room_for(10), pytest.raises(UsageError, match=r"^--output r: cannot write it: File too large"):
        write_output(path, bytes(11), "--output r")
    assert not path.exists()
    with room_for(10):
        write_output(path, bytes(10), "--output r")
    assert path.read_bytes() == bytes(10)


def test_a_full_disk_leaves_the_old_file(tmp_path: Path) -> None:
    path, link = tmp_path / "y.npy", tmp_path / "latest.npy"
    path.write_bytes(b"before")
    path.chmod(0o640)
    link.symlink_to(path)
    with room_for(10), pytest.raises(UsageError, match="File too large"):
        write_output(path, bytes(11), "--output y")
    assert path.read_bytes() == b"before"
    write_output(link, b"after", "--output y")
    assert (path.read_bytes(), path.stat().st_mode & 0o777, link.is_symlink()) == (b"after", 0o640, True)
    assert sorted(tmp_path.iterdir()) == [link, path]


@pytest.mark.parametrize("name", ["y.npy", "y.npz"])
def test_a_full_disk_leaves_no_outputs(name: str, tmp_path: Path) -> None:
    port, array = SimpleNamespace(name="y"), np.zeros(1000)
    with room_for(500), pytest.raises(UsageError, match=r"cannot write it: File too large\. Name another file\.$"):
        write_arrays(tmp_path / name, [port], [array])  # type: ignore[list-item]
    assert not list(tmp_path.iterdir())


def test_a_write_protected_file_stays(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"Is a directory"):
        write_output(tmp_path, b"data", "--output x")
    assert tmp_path.is_dir()


def test_a_pipe_is_written_to(tmp_path: Path) -> None:
    path, data = tmp_path / "pipe", bytes(200_000)
    os.mkfifo(path)
    writer = threading.Thread(target=write_output, args=(path, data, "--output pipe"))
    writer.start()
    assert path.read_bytes() == data
    writer.join()
    assert path.is_fifo()

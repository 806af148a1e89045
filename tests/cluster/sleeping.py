"""A ptxas that never ends, to interrupt what waits for it."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable
from pathlib import Path

from codegen.toolchain.tools import find_toolchain
from tests.cluster.workplace import PATIENCE_SECONDS


def sleeping_ptxas(folder: Path) -> tuple[Path, Path]:
    """A ptxas that knows its version and then sleeps; and the folder where each run leaves its process id."""
    runs = folder / "runs"
    runs.mkdir()
    script = folder / "ptxas"
    real = shlex.quote(str(find_toolchain().ptxas))
    script.write_text(
        f'#!/bin/sh\ncase "$1" in --*) exec {real} "$@";; esac\ntouch {shlex.quote(str(runs))}/$$\nexec sleep 600\n'
    )
    script.chmod(0o755)
    return script, runs


def wait_until(condition: Callable[[], object], seconds: float = PATIENCE_SECONDS) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come to pass"
        time.sleep(0.05)


def running(runs: Path) -> list[int]:
    return [pid for pid in (int(path.name) for path in runs.iterdir()) if _is_alive(pid)]


def _is_alive(pid: int) -> bool:
    """One that has ended is a zombie until somebody asks for its exit status, which a container's init may do late."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])

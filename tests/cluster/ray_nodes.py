"""A Ray cluster of several nodes on this machine, started as an operator starts it: `ray start`, with a token."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Self

RAY = Path(sys.executable).parent / "ray"
START_SECONDS = 60.0
STOP_SECONDS = 45.0
"""Ray drains a node for up to 30 s."""
OBJECT_STORE_BYTES = 80 * 2**20


class RayNodes:
    """Nodes with one CPU each, at 127.0.0.2, 127.0.0.3 ...; every node has its own cache folder. Ended with the block.

    The first is the head; with `head_cpus` 0 it gives work and does none. `environment` is for those that may use the
    cluster: it has the token, in a file.
    """

    def __init__(self, count: int, head_cpus: int = 1, **environment: str) -> None:
        self._count = count
        self._head_cpus = head_cpus
        # Not pytest's own folder: the path of a socket may have 107 characters only.
        self.folder = Path(tempfile.mkdtemp(prefix="ray-nodes-"))
        self.token = secrets.token_hex(16)
        (self.folder / "token").write_text(self.token)
        self.environment = {
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(self.folder / "token"),
            "RAY_USAGE_STATS_ENABLED": "0",
        }
        self._worker_environment = environment
        self._port = _free_port()
        self._running = ExitStack()

    @property
    def address(self) -> str:
        return f"{_host(0)}:{self._port}"

    def cache(self, node: int) -> Path:
        """The folder of this node's copies of blobs from S3."""
        return self.folder / f"cache{node}"

    def logs(self, node: int) -> Path:
        """Folder of Ray's sockets and logs of this node."""
        return self.folder / f"ray{node}"

    def __enter__(self) -> Self:
        try:
            self._start_head()
            for node in range(1, self._count):
                self.join(node)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_error: object) -> None:
        self._running.close()
        for pid in self.processes():  # what outlived its `ray start`
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        shutil.rmtree(self.folder, ignore_errors=True)

    def join(self, node: int, **environment: str) -> None:
        """Start a node that does not run."""
        self._start(node, "--address", self.address, **environment)

    def _start_head(self, *options: str, **environment: str) -> None:
        arguments = ("--head", "--port", str(self._port), "--include-dashboard", "false", *options)
        self._start(0, *arguments, cpus=self._head_cpus, **environment)

    def kill(self, node: int) -> None:
        """The raylet, as a machine that loses its power; what else ran on that machine must notice by itself."""
        place = os.fsencode(f"--node_ip_address={_host(node)}")
        [raylet] = [each for each in self.processes() if _is_raylet(each, place)]
        os.kill(raylet, signal.SIGKILL)

    def processes(self) -> list[int]:
        """Every process of these nodes: all have the folder in their environment or arguments."""
        mark, found = os.fsencode(str(self.folder)), []
        for path in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if mark in (path / "environ").read_bytes() + (path / "cmdline").read_bytes():
                    found.append(int(path.name))
        return found

    def _start(self, node: int, *arguments: str, cpus: int = 1, **more_environment: str) -> None:
        log = self.folder / f"node{node}.log"
        environment = {
            **os.environ,
            **self._worker_environment,
            **self.environment,
            "XDG_CACHE_HOME": str(self.cache(node)),
            "PYTHONPATH": str(Path(__file__).parents[2]),
            "RAY_worker_niceness": "0",
            **more_environment,
        }
        environment.pop("RAY_AUTH_TOKEN", None)
        size = str(OBJECT_STORE_BYTES)
        # `ray start --block` ends its node when it is told to end; told by the kernel where the tests are killed.
        place = ("--node-ip-address", _host(node), "--temp-dir", str(self.logs(node)))
        options = (*arguments, "--block", *place, "--num-cpus", str(cpus), "--object-store-memory", size)
        with log.open("wb") as output:
            process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "TERM", str(RAY), "start", *options],
                env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            )  # fmt: skip
        self._running.callback(_end, process)
        end = time.monotonic() + START_SECONDS
        while not re.search(rb"Ray runtime started", log.read_bytes()):
            assert process.poll() is None, f"the node did not start:\n{log.read_text()}"
            assert time.monotonic() < end, f"the node does not start:\n{log.read_text()}"
            time.sleep(0.05)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _is_raylet(pid: int, place: bytes) -> bool:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False  # it has just ended
    return words[0].endswith(b"/raylet") and place in words


def _host(node: int) -> str:
    return f"127.0.0.{2 + node}"


def _free_port() -> int:
    with socket.socket() as free:
        free.bind((_host(0), 0))
        port: int = free.getsockname()[1]
    return port

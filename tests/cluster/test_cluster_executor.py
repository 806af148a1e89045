"""Executor on Ray: dead workers, cancelled tools, unreachable clusters, sockets."""

from __future__ import annotations

import os
import signal
import socket
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from codegen.toolchain.tools import find_toolchain
from farm.errors import UnreachableError, UsageError
from farm.executors import open_executor
from farm.store import open_store
from farm.store.memory import MemoryStore
from farm.testing import laptop_settings
from farm.worker.messages import Fault
from tests.cluster.sleeping import parent, running, sleeping_ptxas, wait_until
from tests.cluster.workplace import Workplace, workplace
from tests.samples import layer

LOOPBACK = {"0100007F", "0000000000000000FFFF00000100007F"}
"""127.0.0.1 as the kernel writes it, for IPv4 and for IPv4 over IPv6."""


def descendants(pid: int) -> list[int]:
    """A process and all that it has started, directly or not."""
    parents: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
    found = [pid]
    for each in found:
        found += [child for child, parent in parents.items() if parent == each]
    return found


def listening(pids: list[int]) -> list[str]:
    """Addresses of the TCP sockets on which processes listen."""
    links = set()
    for descriptor in [each for pid in pids for each in Path(f"/proc/{pid}/fd").glob("*")]:
        with suppress(OSError):
            links.add(str(descriptor.readlink()))
    lines = [
        line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]
    ]
    return [line[1].partition(":")[0] for line in lines if line[3] == "0A" and f"socket:[{line[9]}]" in links]


def test_cancelling_ends_the_tools_and_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script, runs = sleeping_ptxas(tmp_path)
    scratch = tmp_path / "tmp"
    scratch.mkdir()
    monkeypatch.setenv("TMPDIR", str(scratch))
    with workplace(tmp_path, "ray", script) as place:
        todo = place.plan(layer(), layer(seed=1))
        place.do(*todo.templates)
        for request in todo.cubins:
            place.executor.submit(request)
        wait_until(lambda: len(running(runs)) == 2)
        assert list(scratch.glob("farm-assemble-*"))
        place.executor.cancel_all()
        wait_until(lambda: not running(runs))
        wait_until(lambda: not list(scratch.glob("farm-assemble-*")))
        assert place.executor.wait(1.0) == []


def test_closing_ends_the_tools_and_ray(tmp_path: Path) -> None:
    script, runs = sleeping_ptxas(tmp_path)
    with workplace(tmp_path, "ray", script) as place:
        todo = place.plan(layer(), archs=("sm_90",))
        place.do(*todo.templates)
        place.executor.submit(todo.cubins[0])
        wait_until(lambda: len(running(runs)) == 1)
    wait_until(lambda: not running(runs))

    import ray

    assert not ray.is_initialized()


def test_a_ray_that_runs_in_the_program_already_is_used_and_left_running(tmp_path: Path) -> None:
    with workplace(tmp_path, "ray") as first:
        [template] = first.plan(layer()).templates
        first.do(template)
        with workplace(tmp_path, "ray") as second:
            assert second.do(template)[0].hit
        assert first.do(template)[0].hit


def test_a_worker_that_dies_is_a_crash_and_its_tool_dies_too(tmp_path: Path) -> None:
    script, runs = sleeping_ptxas(tmp_path)
    with workplace(tmp_path, "ray", script) as place:
        todo = place.plan(layer(), archs=("sm_90",))
        place.do(*todo.templates)
        place.executor.submit(todo.cubins[0])
        wait_until(lambda: len(running(runs)) == 1)
        [tool] = running(runs)
        os.kill(parent(parent(tool)), signal.SIGKILL)  # tool, its guard, the worker
        [result] = place.collect(1)
        assert result.key == todo.cubins[0].key
        assert result.failure is not None
        assert result.failure.fault is Fault.CRASH
        wait_until(lambda: not running(runs))
        assert place.do(*todo.templates)[0].hit  # another worker has taken its place


def test_a_store_in_memory_is_refused(tmp_path: Path) -> None:
    settings = replace(laptop_settings(tmp_path), executor="ray")
    with pytest.raises(UsageError, match="store in memory"):
        open_executor(settings, MemoryStore(), find_toolchain())


def test_an_address_without_a_listener_fails_at_once_with_a_message(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    settings = replace(laptop_settings(tmp_path), executor="ray", ray_address=address)
    start = time.monotonic()
    with (
        pytest.raises(UnreachableError, match=f"the Ray cluster at {address} cannot be reached"),
        open_executor(settings, open_store(settings), find_toolchain()) as executor,
    ):
        executor.submit(Workplace(executor, open_store(settings), settings).plan(layer()).templates[0])
    assert time.monotonic() - start < 20


def test_a_local_ray_listens_on_the_loopback_interface_only(tmp_path: Path) -> None:
    with workplace(tmp_path, "ray") as place:
        place.do(*place.plan(layer()).templates)  # so that a worker runs
        addresses = listening(descendants(os.getpid()))
    assert len(addresses) >= 4
    assert set(addresses) <= LOOPBACK

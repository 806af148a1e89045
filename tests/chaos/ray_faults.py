"""The faults that need Ray. Each plays a whole round."""

from __future__ import annotations

import os
import signal
from contextlib import suppress

from tests.chaos.round import Round, marked_processes

TOOLS = ("nvcc", "cicc", "cudafe++", "ptxas", "sleep")
AGENTS = ("ray::DashboardAgent", "ray::RuntimeEnvAgent")
WORKERS = ("ray::IDLE", "ray::build_request", "ray::node_facts")


def worker_killed(play: Round) -> None:
    """One of Ray's worker processes, at work or idle; its request is done again."""
    play.use(FARM_EXECUTOR="ray")
    play.submit()
    play.serve()
    play.moment()
    workers = [(pid, command) for pid, command in play.processes().items() if command.startswith(WORKERS)]
    if workers:
        pid, command = play.random.choice(sorted(workers))
        with suppress(ProcessLookupError):  # Ray ends idle ones by itself
            os.kill(pid, signal.SIGKILL)
        play.said = f"a worker was killed, {command.split()[0]}"
    play.finish()
    play.check_success()


def ray_coordinator_killed(play: Round) -> None:
    """Kill a coordinator with its Ray; the next coordinator starts its own."""
    play.use(FARM_EXECUTOR="ray")
    play.submit()
    first = play.serve()
    play.moment()
    for pid, command in play.processes().items():
        if command.startswith(AGENTS):
            play.services.late.note(pid)
    play.kill(first)
    play.said = "a coordinator with its own Ray was killed"
    play.serve()
    play.finish()
    play.check_success()


def raylet_killed(play: Round) -> None:
    """One of two machines is gone; the other does its work."""
    nodes = play.services.nodes
    play.use(FARM_EXECUTOR="ray", FARM_RAY_ADDRESS=nodes.address, **nodes.environment)
    play.submit()
    play.serve()
    play.moment()
    nodes.kill(1)
    play.cleanup.callback(nodes.join, 1)
    play.said = "the second machine was killed"
    play.finish()
    play.wait(lambda: not marked_processes(nodes.logs(1)), "a process of the machine that died is left")
    left = [command for command in marked_processes(nodes.folder).values() if command.split()[0].endswith(TOOLS)]
    assert not left, f"left on the other machine: {left}"
    play.check_success()

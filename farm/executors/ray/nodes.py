"""The nodes of a cluster: which are usable, which gets the next request, and what each has done."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from codegen.errors import CodegenError
from codegen.toolchain.tools import Toolchain, find_toolchain
from farm.config.build_id import program_digest
from farm.executors.contract import UNCHECKED, WorkerState
from farm.worker.messages import Request

SUBMITTED_PER_CPU = 2
"""Requests per CPU: one runs and one is queued, so that no CPU idles while a result is transferred."""


@dataclass(frozen=True)
class NodeFacts:
    """Versions that must be equal on the coordinator and a node."""

    nvcc: str
    ptxas: str
    compiler: str
    """Digest of cicc and the CUDA headers."""
    program: str
    """Digest of the program's sources."""

    @staticmethod
    def here(tools: Toolchain) -> NodeFacts:
        """Facts of this machine with these tools."""
        return NodeFacts(tools.nvcc_version, tools.ptxas_version, tools.compiler_digest, program_digest())

    def difference(self, wanted: NodeFacts) -> str:
        """Why a node with these facts cannot do the work; empty if it can."""
        if self.program != wanted.program:
            return "its program version differs from the coordinator's: install the same one on both"
        for name in ("nvcc", "ptxas"):
            mine, theirs = getattr(self, name), getattr(wanted, name)
            if mine != theirs:
                return f"its {name} is {mine}, the coordinator's is {theirs}: install the same one on both"
        if self.compiler != wanted.compiler:
            return "its cicc or CUDA headers differ from the coordinator's: install the same ones on both"
        return ""


def node_facts(nvcc: Path | None, ptxas: Path | None) -> NodeFacts | str:
    """Check of a node, run there: its facts, or why it cannot do any work."""
    try:
        return NodeFacts.here(find_toolchain(nvcc, ptxas))
    except CodegenError as error:
        return str(error)


@dataclass
class Node:
    """One node."""

    id: str
    name: str
    cpus: int
    gpus: int
    memory_bytes: int
    reason: str = UNCHECKED
    """Why it gets no work; empty if it does."""
    alive: bool = True
    requests: dict[str, float] = field(default_factory=dict)
    """Time of submission of its unfinished requests, by key."""
    accepted: int = 0
    finished: int = 0
    failed: int = 0
    seen_at: float = field(default_factory=time.monotonic)

    @property
    def usable(self) -> bool:
        return self.alive and not self.reason

    @property
    def load(self) -> float:
        """Unfinished requests per CPU."""
        return len(self.requests) / self.cpus


class Nodes:
    """All nodes ever seen, and the choice among them."""

    def __init__(self) -> None:
        self._nodes: dict[str, Node] = {}
        self._crashed_on: dict[str, set[str]] = {}
        """Ids of the nodes on which a request's worker died, by the request's key."""

    @property
    def usable(self) -> list[Node]:
        """Nodes that may get work."""
        return [node for node in self._nodes.values() if node.usable]

    @property
    def capacity(self) -> int:
        """Number of requests worth submitting at a time."""
        return SUBMITTED_PER_CPU * sum(node.cpus for node in self.usable)

    def see(self, alive: Iterable[Node]) -> list[Node]:
        """Update the live nodes; returns the new ones, which are still unchecked."""
        now, new = time.monotonic(), []
        ids = set()
        for node in alive:
            ids.add(node.id)
            if node.id not in self._nodes:
                self._nodes[node.id] = node
                new.append(node)
            self._nodes[node.id].seen_at = now
        for node in self._nodes.values():
            node.alive = node.id in ids
        return new

    def choose(self, request: Request) -> Node | None:
        """The least loaded usable node with enough memory; nodes on which the request's worker died come last."""
        avoided = self._crashed_on.get(request.key, set())
        fit = [node for node in self.usable if node.memory_bytes >= request.memory_bytes]
        return min(fit, key=lambda node: (node.id in avoided, node.load), default=None)

    def refusal(self, request: Request) -> str:
        """Why no node was chosen, and the way out."""
        most = max((node.memory_bytes for node in self.usable), default=0)
        if most:
            return (
                f"no machine can build this: it needs about {request.memory_bytes // 2**20:,} MiB of memory, the "
                f"largest has {most // 2**20:,} MiB. Add a larger one to the Ray cluster, or prune the layer further."
            )
        return f"no machine can build this: {self.reasons or 'the Ray cluster has no node with a CPU'}"

    @property
    def reasons(self) -> str:
        """Reasons of the live nodes for getting no work; empty without a live node."""
        return "; ".join(f"{node.name}: {node.reason}" for node in self._nodes.values() if node.alive)

    def give(self, node: Node, request: Request) -> None:
        """Record that a node was given a request."""
        node.requests[request.key] = time.monotonic()
        node.accepted += 1

    def take_back(self, node: Node, key: str, *, failed: bool, crashed: bool = False) -> None:
        """Record that a request has ended on a node."""
        node.requests.pop(key, None)
        node.finished += not failed
        node.failed += failed
        if crashed:
            self._crashed_on.setdefault(key, set()).add(node.id)
        else:
            self._crashed_on.pop(key, None)

    def drop(self, node: Node, keys: Collection[str]) -> None:
        """Forget cancelled requests of a node."""
        for key in keys:
            node.requests.pop(key, None)

    @property
    def running(self) -> list[str]:
        """Keys of the requests assumed to run: on each node the oldest, one per CPU."""
        return [key for node in self._nodes.values() for key in list(node.requests)[: node.cpus]]

    def states(self) -> list[WorkerState]:
        """States of the live nodes, for `farm workers`."""
        now = time.monotonic()
        return [_state(node, now) for node in list(self._nodes.values()) if node.alive]


def _state(node: Node, now: float) -> WorkerState:
    since = list(node.requests.values())
    return WorkerState(
        id=node.id,
        node=node.name,
        cpus=node.cpus,
        gpus=node.gpus,
        running=min(len(since), node.cpus),
        pending=max(0, len(since) - node.cpus),
        accepted=node.accepted,
        finished=node.finished,
        failed=node.failed,
        oldest_seconds=now - min(since) if since else 0.0,
        seen_seconds=now - node.seen_at,
        reason=node.reason,
    )

"""The connection to Ray: a local Ray started on this machine, or the cluster that the settings name.

A cluster's token lets its holder run any program on the nodes. Tasks and results are pickled, so the token protects
workers and coordinator alike. A local Ray gets a random token and listens on the loopback interface.
"""

from __future__ import annotations

import logging
import re
import secrets
import signal
import socket
import sys
import threading
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

from codegen.toolchain.temp_folders import TempFolder, remove_abandoned
from farm.config.build_id import program_path
from farm.config.settings import RayAuthentication, Settings, ray_authentication, redacted, set_environment_defaults
from farm.errors import NoWorkerError, UnreachableError
from farm.executors.ray import private
from farm.executors.ray.nodes import Node, NodeFacts

CHECK_SECONDS = 60.0
"""Longest time that a node may take to report its tools."""
CONNECT_SECONDS = 10.0
OBJECT_STORE_BYTES = 80 * 2**20
"""Ray's minimum: cubins travel through the farm's store."""
WAY_OUT = (
    "Put the cluster's token into ~/.ray/auth_token or name its file in RAY_AUTH_TOKEN_PATH. "
    "RAY_AUTH_MODE=disabled is for a cluster without a token in a network of its own."
)
_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    # The tools of a worker that dies are ended by toolchain.py: Ray would kill only the process above them.
    "RAY_kill_child_processes_on_worker_exit": "false",
}
_CLUSTER_ENVIRONMENT = {
    # Otherwise Ray uses a token only if it finds one by itself.
    "RAY_AUTH_MODE": "token",
    # Seconds until a cluster that listens must accept us; Ray's default of 20 delays the message about a wrong token.
    "RAY_NUM_REDIS_GET_RETRIES": "5",
}


class RayConnection:
    """Opened at first use and closed once. A Ray that the surrounding program started is used and left running."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._address = settings.ray_address
        self._ray: Any = None
        self._started = False
        """Whether this connection called ray.init."""
        self._folder: TempFolder | None = None
        """Sockets and logs of a local Ray."""

    @property
    def where(self) -> str:
        """Description of the cluster for messages."""
        return f"the Ray cluster at {self._address}" if self._address else "Ray on this machine"

    @property
    def is_own(self) -> bool:
        """Whether this connection started a local Ray."""
        return self._folder is not None

    def open(self) -> Any:
        """Connect, and return the module `ray`. Raises UnreachableError and NoWorkerError."""
        local = self._address is None
        set_environment_defaults(_ENVIRONMENT | (_local_environment() if local else _CLUSTER_ENVIRONMENT))
        imported_before = "ray" in sys.modules
        try:
            import ray
        except ImportError as error:
            raise UnreachableError(
                f"Ray cannot be imported ({error}): install it, or set FARM_EXECUTOR=processes"
            ) from None
        self._ray = ray
        try:
            if not ray.is_initialized():
                if imported_before:
                    private.read_environment_again()
                self._start()
        except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
            self.close()
            raise self.unreachable(error) from error
        except BaseException as error:
            self.close()
            if type(error) is Exception:  # Ray's own, as when a busy machine does not start it within 30 s
                raise self.unreachable(error) from error
            raise
        return ray

    def close(self) -> None:
        """Disconnect; may be called twice."""
        if self._started:
            self._ray.shutdown()
        self._ray, self._started = None, False
        if self._folder is not None:
            self._folder.remove()
            self._folder = None
        remove_abandoned()

    def unreachable(self, error: BaseException) -> UnreachableError:
        """The exception to raise for an error of Ray while connecting."""
        return UnreachableError(
            f"{self.where} cannot be reached ({first_line(error)}): see farm doctor, or set FARM_EXECUTOR=processes"
        )

    @property
    def ray(self) -> Any:
        """The module `ray`, while the connection is open."""
        return self._ray

    def nodes(self) -> list[Node]:
        """The live nodes."""
        return [_node(each) for each in self._ray.nodes() if each["Alive"]]

    @property
    def grows(self) -> bool:
        """Whether an autoscaler (v2) starts nodes for waiting tasks. The connection must be open."""
        return self._address is not None and private.has_autoscaler()

    def elsewhere(self) -> dict[str, str]:
        """Label selector for a task that must run on a node other than the present ones."""
        return {"ray.io/node-id": f"!in({','.join(node.id for node in self.nodes())})"}

    def free_gpus(self) -> dict[str, float]:
        """Number of free GPUs of each live node, by node id."""
        return private.free_gpus()

    def difference(self, answer: Any, wanted: NodeFacts) -> str:
        """Why a node cannot do the work, from the reference to its answer to `node_facts`; empty if it can."""
        try:
            facts: NodeFacts | str = self._ray.get(answer)
        except self._ray.exceptions.RayError as error:
            return f"it cannot run this program: {first_line(error)}"
        return facts.difference(wanted) if isinstance(facts, NodeFacts) else facts

    def on(self, node: Node) -> Any:
        """Scheduling strategy for a task that may run on this node only."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        return NodeAffinitySchedulingStrategy(node.id, soft=False)

    def _start(self) -> None:
        self._started = True
        address = self._address
        authentication = ray_authentication()
        options: dict[str, Any] = {"address": address}
        if address is None:
            self._folder = TempFolder("ray")
            options = {
                "address": "local",
                "num_cpus": self._settings.jobs,
                "include_dashboard": False,
                "object_store_memory": OBJECT_STORE_BYTES,
                "_temp_dir": str(self._folder.path),
            }
        else:
            knock(address)
            require_token(self.where, authentication)
            _require_node(address, self.where)
        private.silence_worker_messages()
        handler = signal.getsignal(signal.SIGTERM)
        try:
            with private.loopback_only() if address is None else nullcontext():
                self._ray.init(
                    **options,
                    job_config=private.job_config(program_path()),
                    log_to_driver=False,
                    logging_level=logging.ERROR,
                )
        except (ConnectionError, self._ray.exceptions.AuthenticationError) as error:
            if address is None:
                raise
            raise token_rejected(self.where, authentication) from error
        finally:
            if threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGTERM, handler)  # ray.init replaces it


def require_token(where: str, authentication: RayAuthentication) -> None:
    """Raises UnreachableError if authentication is on and there is no token."""
    if authentication.on and authentication.token is None:
        raise UnreachableError(f"{where} requires a token, but {authentication.missing}. {WAY_OUT}")


def token_rejected(where: str, authentication: RayAuthentication) -> UnreachableError:
    """The exception for a cluster that is up but rejected us. Ray does not say why; it is almost always the token."""
    sent = authentication.token if authentication.on else "no token, because of RAY_AUTH_MODE"
    return UnreachableError(f"authentication with {where} failed (using {sent}). {WAY_OUT}")


def describe_authentication(authentication: RayAuthentication) -> str:
    """Description of the authentication for `farm doctor`."""
    if not authentication.on:
        return "WITHOUT authentication: whoever reaches it may run programs there"
    return f"with {authentication.token}"


def host_and_port(address: str) -> tuple[str, int] | None:
    """Host and port of ray://HOST:PORT or HOST:PORT; None for any other address."""
    match = re.fullmatch(r"(?:ray://)?\[?([^/\]]+)\]?:(\d+)", address)
    return (match[1], int(match[2])) if match else None


def knock(address: str) -> None:
    """Raises OSError if nothing listens at an address: Ray itself would retry for minutes and print to stderr."""
    if place := host_and_port(address):
        socket.create_connection(place, timeout=CONNECT_SECONDS).close()


def first_line(error: BaseException) -> str:
    """First line of an exception's message, without passwords; its type if the message is empty."""
    lines = redacted(str(error)).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def _node(found: Mapping[str, Any]) -> Node:
    resources = found["Resources"]
    return Node(
        id=found["NodeID"],
        name=found["NodeManagerHostname"],
        cpus=int(resources.get("CPU", 0)),
        gpus=int(resources.get("GPU", 0)),
        memory_bytes=int(resources.get("memory", 0)),
    )


def _local_environment() -> dict[str, str]:
    return {
        # Other users of this machine reach the loopback interface too.
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        # At Ray's default niceness of 15, other programs on this machine would stop the builds.
        "RAY_worker_niceness": "0",
    }


def _require_node(address: str, where: str) -> None:
    """Raises NoWorkerError if this machine is not a node of the cluster: Ray itself would abort the process."""
    place = None if address.startswith("ray://") else host_and_port(address)
    if place is None:
        return
    host, port = socket.gethostbyname(place[0]), place[1]
    joined = {found for each in private.gcs_addresses() if (found := host_and_port(each))}
    # Ray takes the loopback address for this machine's own.
    if not any(port == its_port and host in (its_host, "127.0.0.1") for its_host, its_port in joined):
        raise NoWorkerError(
            f"{where} can only be used from a cluster node; this machine is not one. "
            f"Run ray start --address={address} --num-cpus=0 here first."
        )

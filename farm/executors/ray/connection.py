"""This program's connection to Ray: started on this machine, or joined where the settings name a cluster.

The only importer of Ray.
"""

from __future__ import annotations

import logging
import secrets
import signal
import socket
import sys
import threading
from collections.abc import Mapping
from typing import Any

from codegen.toolchain.temp_folders import ScratchFolder, remove_abandoned
from farm.config.build_id import program_path
from farm.config.settings import Settings, ray_authentication, redacted, set_environment_defaults
from farm.errors import NoWorkerError, UnreachableError
from farm.executors.ray.address import host_and_port, knock
from farm.executors.ray.nodes import Node, NodeFacts
from farm.executors.ray.token import refusal, require_token

CHECK_SECONDS = 60.0
"""How long a machine may take to say which tools it has."""
OBJECT_STORE_BYTES = 80 * 2**20
"""Ray's least: our bytes travel through the store."""
_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    # A worker that dies leaves its tools to toolchain.py: Ray would kill only the process above them.
    "RAY_kill_child_processes_on_worker_exit": "false",
}
_CLUSTER_ENVIRONMENT = {
    # Without it Ray joins a cluster with a token only where it finds one by itself.
    "RAY_AUTH_MODE": "token",
    # Seconds that a cluster which listens may take to let us in: at Ray's own, 20, a wrong token is told late.
    "RAY_NUM_REDIS_GET_RETRIES": "5",
}


class RayConnection:
    """Opened at its first use, closed once; a Ray that the program around it started is used, and left as it is."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._address = settings.ray_address
        self._ray: Any = None
        self._started = False
        """By this connection."""
        self._folder: ScratchFolder | None = None
        """Holds the sockets and logs of a local Ray."""

    @property
    def where(self) -> str:
        """In words."""
        return f"the Ray cluster at {self._address}" if self._address else "Ray on this machine"

    @property
    def is_own(self) -> bool:
        """Whether Ray was started here, for this program alone."""
        return self._folder is not None

    def open(self) -> Any:
        """Gives the library, connected. Raises UnreachableError, NoWorkerError."""
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
                    _read_environment_again()
                self._start()
        except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
            self.close()
            raise self.unreachable(error) from error
        except BaseException:
            self.close()
            raise
        return ray

    def close(self) -> None:
        """May be called twice."""
        if self._started:
            self._ray.shutdown()
        self._ray, self._started = None, False
        if self._folder is not None:
            self._folder.remove()
            self._folder = None
        remove_abandoned()

    def unreachable(self, error: BaseException) -> UnreachableError:
        """What to raise for an error of Ray while it connects."""
        return UnreachableError(
            f"{self.where} cannot be reached ({first_line(error)}): see farm doctor, or set FARM_EXECUTOR=processes"
        )

    @property
    def ray(self) -> Any:
        """The library; of an open connection."""
        return self._ray

    def nodes(self) -> list[Node]:
        """The machines that are alive, as Ray describes them."""
        return [_node(each) for each in self._ray.nodes() if each["Alive"]]

    @property
    def grows(self) -> bool:
        """Whether an autoscaler starts machines for work that waits. Of an open connection; Ray's older autoscaler, v1,
        cannot be told from none.
        """
        if self._address is None:
            return False
        from ray.autoscaler.v2 import utils

        autoscaler: Any = utils
        return bool(autoscaler.is_autoscaler_v2(fetch_from_server=True))

    def elsewhere(self) -> dict[str, str]:
        """Ray's selector for a task that runs on none of the machines that there are."""
        return {"ray.io/node-id": f"!in({','.join(node.id for node in self.nodes())})"}

    def free_gpus(self) -> dict[str, float]:
        """How many GPUs nobody uses, by the id of each machine that is alive."""
        from ray._private import state

        local: Any = state
        return {node: float(free.get("GPU", 0)) for node, free in local.available_resources_per_node().items()}

    def difference(self, answer: Any, wanted: NodeFacts) -> str:
        """Why a machine cannot do the work, by its answer to `node_facts`, a reference; empty if it can."""
        try:
            facts: NodeFacts | str = self._ray.get(answer)
        except self._ray.exceptions.RayError as error:
            return f"it cannot run this program: {first_line(error)}"
        return facts.difference(wanted) if isinstance(facts, NodeFacts) else facts

    def on(self, node: Node) -> Any:
        """Ray's strategy for a task that runs on this machine or nowhere."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        return NodeAffinitySchedulingStrategy(node.id, soft=False)

    def _start(self) -> None:
        self._started = True
        address = self._address
        authentication = ray_authentication()
        options: dict[str, Any] = {"address": address}
        if address is None:
            self._folder = ScratchFolder("ray")
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
        # Whatever log_to_driver says, Ray prints on stdout that a worker died, where --json has its one document.
        self._ray._private.worker.print_to_stdstream = lambda *_, **__: None
        obeyed = signal.getsignal(signal.SIGTERM)
        try:
            self._ray.init(**options, job_config=_job_config(), log_to_driver=False, logging_level=logging.ERROR)
        except (ConnectionError, self._ray.exceptions.AuthenticationError) as error:
            if address is None:
                raise
            raise refusal(self.where, authentication) from error
        finally:
            if threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGTERM, obeyed)  # Ray puts its own in this one's place


def first_line(error: BaseException) -> str:
    """The first line of its message, without passwords."""
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


def _job_config() -> Any:
    """Workers find modules where this program is, and not in the folder where it was typed, as Ray would have it.

    A file farm.py or numpy.py that happens to lie there would be imported instead.
    """
    from ray.job_config import JobConfig

    class OwnPath(JobConfig):
        def _runtime_env_has_working_dir(self) -> bool:
            return True  # else Ray puts the script's and the current folder before everything

    return OwnPath(_py_driver_sys_path=program_path())


def _read_environment_again() -> None:
    """Ray reads it when it is imported, which a program around this one may have done before there was a token."""
    from ray import _raylet

    ray_internals: Any = _raylet
    ray_internals.Config.initialize("")
    ray_internals.AuthenticationTokenLoader.instance().reset_cache()


def _local_environment() -> dict[str, str]:
    return {
        # Ray listens on every interface; only who has this process's token may give it work.
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        # At Ray's own, 15, whatever else this machine does would stop the builds.
        "RAY_worker_niceness": "0",
    }


def _require_node(address: str, where: str) -> None:
    """Raises NoWorkerError where this machine is no node of the cluster: Ray itself would abort the whole process."""
    from ray._private import services

    place = None if address.startswith("ray://") else host_and_port(address)
    if place is None:
        return
    host, port = socket.gethostbyname(place[0]), place[1]
    local: Any = services
    joined = {found for each in local.find_gcs_addresses() if (found := host_and_port(each))}
    # Ray takes the loopback for this machine's own address.
    if not any(port == its_port and host in (its_host, "127.0.0.1") for its_host, its_port in joined):
        raise NoWorkerError(
            f"{where} can be used from one of its nodes, and this machine is none: "
            f"run ray start --address={address} --num-cpus=0 here first"
        )

"""The private parts of Ray that this program uses, each behind one function.

Ray may change them in any minor release, so pyproject.toml admits only releases that tests/unit/test_ray_private.py has
passed on. Nothing else in this program touches a name of Ray that begins with an underscore, except the options
`_temp_dir` of `ray.init` and `_py_driver_sys_path` of JobConfig.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


def free_gpus() -> dict[str, float]:
    """Number of free GPUs of each live node, by node id. Ray must be connected."""
    from ray._private import state

    private: Any = state
    return {node: float(free.get("GPU", 0)) for node, free in private.available_resources_per_node().items()}


def has_autoscaler() -> bool:
    """Whether the connected cluster runs autoscaler v2; a cluster with the older v1 looks like one without."""
    from ray.autoscaler.v2 import utils

    private: Any = utils
    return bool(private.is_autoscaler_v2(fetch_from_server=True))


def gcs_addresses() -> set[str]:
    """Addresses of the clusters that this machine is a node of, as HOST:PORT."""
    from ray._private import services

    private: Any = services
    return set(private.find_gcs_addresses())


def silence_worker_messages() -> None:
    """Keep Ray from printing worker deaths to stdout, which --json reserves for its document.

    Ray prints them even with log_to_driver=False.
    """
    from ray._private import worker

    private: Any = worker
    private.print_to_stdstream = lambda *_, **__: None


def read_environment_again() -> None:
    """Make Ray read its environment variables again: it reads them on import, which may be before they are set."""
    from ray import _raylet

    private: Any = _raylet
    private.Config.initialize("")
    private.AuthenticationTokenLoader.instance().reset_cache()


def job_config(module_path: list[str]) -> Any:
    """A job configuration whose workers import modules from `module_path` only.

    By default Ray puts the driver's script folder and working directory first, so that a file named farm.py or numpy.py
    there would be imported instead.
    """
    from ray.job_config import JobConfig

    class OwnPath(JobConfig):
        def _runtime_env_has_working_dir(self) -> bool:
            return True  # then Ray adds neither folder

    return OwnPath(_py_driver_sys_path=module_path)


@contextmanager
def loopback_only() -> Iterator[None]:
    """Within the block, `ray.init` starts a local Ray whose processes all listen on the loopback interface only.

    Ray has no public option for this: it replaces `_node_ip_address="127.0.0.1"` by the address of the machine's
    network interface, and some of its servers then listen on all interfaces. The constant is Ray's default on macOS and
    Windows, where it keeps Ray off the network.
    """
    from ray._private import ray_constants

    private: Any = ray_constants
    before = private.ENABLE_RAY_CLUSTER
    private.ENABLE_RAY_CLUSTER = False
    try:
        yield
    finally:
        private.ENABLE_RAY_CLUSTER = before

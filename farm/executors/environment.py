"""What Ray is told through the environment."""

from __future__ import annotations

import secrets

from farm.settings import set_environment_defaults

_ANYWHERE = {
    "RAY_USAGE_STATS_ENABLED": "0",
    # A worker that dies leaves its tools to toolchain.py: Ray would kill only the process above them.
    "RAY_kill_child_processes_on_worker_exit": "false",
}
_CLUSTER = {
    # Without it Ray joins a cluster with a token only where it finds one by itself.
    "RAY_AUTH_MODE": "token",
    # Seconds that a cluster which listens may take to let us in: at Ray's own, 20, a wrong token is told late.
    "RAY_NUM_REDIS_GET_RETRIES": "5",
}
_LOCAL = {
    # At Ray's own, 15, whatever else this machine does would stop the builds.
    "RAY_worker_niceness": "0",
    # Seconds for which the agents of a Ray whose program was killed look for its head: Ray's own are 60.
    "RAY_gcs_rpc_server_reconnect_timeout_s": "5",
}


def prepare_environment(address: str | None) -> None:
    """For a cluster at an address, or for a Ray on this machine; what the user has set is left as it is."""
    # A local Ray listens on every interface too; only who has this process's token may give it work.
    own_token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    set_environment_defaults(_ANYWHERE | (_CLUSTER if address else _LOCAL | own_token))

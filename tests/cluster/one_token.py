"""A cluster that Ray's own test utility starts, with a token."""

from __future__ import annotations

import secrets
from typing import Any

from farm.config.settings import set_environment_defaults


def start_cluster(**head: Any) -> Any:
    """Start a cluster's head. Ray keeps the first token that a process finds: all clusters of a process share it."""
    set_environment_defaults({"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)})
    from ray.cluster_utils import Cluster

    return Cluster(initialize_head=True, head_node_args=head)

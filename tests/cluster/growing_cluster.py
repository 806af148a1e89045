"""A Ray cluster with a real autoscaler, which starts machines of a played cloud and stops those that idle."""

from __future__ import annotations

import json
from typing import Any

from tests.cluster.ray_nodes import OBJECT_STORE_BYTES, RayNodes

HEAD_ID = f"{0:056x}"
MEMORY_BYTES = 4 * 2**30
COMMANDS = (
    "cluster_synced_files", "head_setup_commands", "head_start_ray_commands", "initialization_commands",
    "rsync_exclude", "rsync_filter", "setup_commands", "worker_setup_commands", "worker_start_ray_commands",
)  # fmt: skip
"""Settings of a launcher that reaches its machines by ssh, which this cloud does not need."""
IDLE_MINUTES = 0.5


class GrowingCluster(RayNodes):
    """Ray cluster of a head that does no work, which grows by up to two machines with a CPU and one with a GPU."""

    def __init__(self) -> None:
        super().__init__(1, head_cpus=0)

    def _start_head(self, *options: str, **environment: str) -> None:
        configuration = self.folder / "autoscaling.json"
        configuration.write_text(json.dumps(self._configuration()))
        super()._start_head(
            *options,
            "--autoscaling-config",
            str(configuration),
            AUTOSCALER_UPDATE_INTERVAL_S="1",
            RAY_FAKE_CLUSTER="1",
            # What `ray up` sets on a head:
            RAY_enable_autoscaler_v2="1",
            RAY_CLOUD_INSTANCE_ID=HEAD_ID,
            RAY_OVERRIDE_NODE_ID_FOR_TESTING=HEAD_ID,
        )

    def _configuration(self) -> dict[str, Any]:
        machine = {"CPU": 1, "memory": MEMORY_BYTES, "object_store_memory": OBJECT_STORE_BYTES}
        place = {"folder": str(self.folder)}
        return {
            "cluster_name": "farm",
            "max_workers": 3,
            "upscaling_speed": 1.0,
            "idle_timeout_minutes": IDLE_MINUTES,
            "provider": {
                "type": "external",
                "module": "tests.cluster.played_cloud.PlayedCloud",
                "gcs_address": self.address,
                "head_node_id": HEAD_ID,
                "launch_multiple": True,
                "disable_node_updaters": True,
                "disable_launch_config_check": True,
            },
            "head_node_type": "ray.head.default",
            "available_node_types": {
                "ray.head.default": {"resources": {"CPU": 0}, "node_config": {}, "max_workers": 0},
                "cpu": {"resources": machine, "node_config": place, "min_workers": 0, "max_workers": 2},
                "gpu": {
                    "resources": machine | {"GPU": 1},
                    "labels": {"farm/work": "gpu"},
                    "node_config": place,
                    "min_workers": 0,
                    "max_workers": 1,
                },
            },
            "auth": {},
            "file_mounts": {},
            **{name: [] for name in COMMANDS},
            "file_mounts_sync_continuously": False,
        }

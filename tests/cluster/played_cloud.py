"""A cloud that is played: each machine that Ray's autoscaler asks it for is one more `ray start` on this one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from ray.autoscaler._private.fake_multi_node.node_provider import FakeMultiNodeProvider
from ray.autoscaler.tags import STATUS_UP_TO_DATE, TAG_RAY_NODE_NAME, TAG_RAY_NODE_STATUS

RAY = Path(sys.executable).parent / "ray"


class PlayedCloud(FakeMultiNodeProvider):
    """Ray's own imitation of one, whose machines start as an operator starts them. Runs in Ray's monitor."""

    def _create_node_with_resources_and_labels(
        self, node_config: dict[str, Any], tags: dict[str, str], count: int, resources: dict[str, Any], labels: Any
    ) -> None:
        with self.lock:
            name = self._next_hex_node_id()
            number = str(self._next_node_id)
            options = {
                "--address": self._gcs_address,
                "--node-ip-address": f"127.0.0.{10 + self._next_node_id}",
                "--temp-dir": f"{node_config['folder']}/played{number}",
                "--num-cpus": resources.get("CPU", 0),
                "--num-gpus": resources.get("GPU", 0),
                "--memory": resources["memory"],
                "--object-store-memory": resources["object_store_memory"],
                **({"--labels": ",".join(f"{key}={value}" for key, value in labels.items())} if labels else {}),
            }
            environment = {
                **os.environ,
                **node_config.get("environment", {}),
                "RAY_OVERRIDE_NODE_ID_FOR_TESTING": name,
                "RAY_CLOUD_INSTANCE_ID": name,
                "RAY_NODE_TYPE_NAME": tags["ray-user-node-type"],
            }
            arguments = [str(word) for option in options.items() for word in option]
            with Path(node_config["folder"], f"played{number}.log").open("wb") as log:
                process = subprocess.Popen(
                    ["setpriv", "--pdeathsig", "TERM", str(RAY), "start", "--block", *arguments],
                    env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                )  # fmt: skip
            self._nodes[name] = {
                "tags": {**tags, TAG_RAY_NODE_NAME: name, TAG_RAY_NODE_STATUS: STATUS_UP_TO_DATE},
                "node": process,
            }

    def _terminate_node(self, node: dict[str, Any]) -> None:
        node["node"].terminate()
        node["node"].wait()

"""The Ray cluster file, checked by Ray's own code: its defaults filled in, its schema, its rules for node types."""

from __future__ import annotations

import importlib
from typing import Any

import pytest

from tests.infra.documents import documents

[CLUSTER] = documents("ray-cluster.yaml")


@pytest.fixture(scope="module")
def prepared() -> Any:
    ray = importlib.import_module("ray.autoscaler._private.util")
    config = ray.prepare_config(CLUSTER)
    ray.validate_config(config)
    return config


def test_ray_accepts_it_and_knows_both_kinds_of_machines(prepared: Any) -> None:
    kinds = prepared["available_node_types"]
    assert set(kinds) == {"head", "cpu", "gpu"}
    assert kinds["head"]["resources"] == {"CPU": 0}
    assert kinds["gpu"]["resources"]["GPU"] == 1
    for kind in ("cpu", "gpu"):
        assert 0 <= kinds[kind]["min_workers"] < kinds[kind]["max_workers"] <= prepared["max_workers"]


def test_every_node_asks_for_the_token_and_has_it() -> None:
    options = CLUSTER["docker"]["run_options"]
    assert "--env=RAY_AUTH_MODE=token" in options
    [path] = [option.partition("PATH=")[2] for option in options if option.startswith("--env=RAY_AUTH_TOKEN_PATH=")]
    assert CLUSTER["file_mounts"][path] == "~/.ray/auth_token"


def test_every_file_that_a_variable_names_is_brought() -> None:
    named = [option.rpartition("=")[2] for option in CLUSTER["docker"]["run_options"] if "=/home/farm/" in option]
    assert set(named) == set(CLUSTER["file_mounts"])


def test_a_place_to_be_set_is_never_taken_for_a_value() -> None:
    image = CLUSTER["docker"]["image"]
    assert image.startswith("<registry>/")

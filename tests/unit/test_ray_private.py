"""The private parts of Ray that farm/executors/ray/private.py uses exist in the installed Ray and do what it needs.

A failure here after an upgrade of Ray names the part that has changed. Adapt private.py, then raise the bound of Ray in
pyproject.toml.
"""

from __future__ import annotations

import importlib
import inspect
import re
import tomllib
from typing import NoReturn

import pytest
import ray

from farm.config.settings import load_settings
from farm.errors import UnreachableError
from farm.executors.ray import connection, private
from tests.house.tree import ROOT, modules

USED = [
    ("ray._private.state", "available_resources_per_node"),
    ("ray._private.services", "find_gcs_addresses"),
    ("ray._private.services", "get_node_ip_address"),
    ("ray._private.worker", "print_to_stdstream"),
    ("ray._private.ray_constants", "ENABLE_RAY_CLUSTER"),
    ("ray._raylet", "Config.initialize"),
    ("ray._raylet", "AuthenticationTokenLoader.instance"),
    ("ray.autoscaler.v2.utils", "is_autoscaler_v2"),
    ("ray.job_config", "JobConfig._runtime_env_has_working_dir"),
]


@pytest.mark.parametrize(("module", "name"), USED)
def test_the_installed_ray_has_each_private_name_that_is_used(module: str, name: str) -> None:
    found = importlib.import_module(module)
    for part in name.split("."):
        assert hasattr(found, part), f"Ray {ray.__version__} has no {module}.{name}: adapt {private.__name__}"
        found = getattr(found, part)


def test_the_autoscaler_can_be_asked_of_the_server() -> None:
    from ray.autoscaler.v2 import utils

    assert "fetch_from_server" in inspect.signature(utils.is_autoscaler_v2).parameters


def test_ray_prints_worker_messages_through_the_function_that_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    from ray._private import worker

    printer = worker.print_to_stdstream
    monkeypatch.setattr(worker, "print_to_stdstream", printer)  # restored at the end
    private.silence_worker_messages()
    assert worker.print_to_stdstream is not printer
    assert len(re.findall(r"\bprint_to_stdstream\b", inspect.getsource(worker))) > 1, "it is defined and never used"


def test_the_environment_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    from ray._raylet import Config

    with monkeypatch.context() as environment:
        for value in (1234, 4321):
            environment.setenv("RAY_kill_worker_timeout_milliseconds", str(value))
            private.read_environment_again()
            assert Config.kill_worker_timeout_milliseconds() == value
    private.read_environment_again()


@pytest.mark.parametrize(
    ("raised", "error", "text"),
    [
        (Exception("The current node timed out during startup."), UnreachableError, "timed out .* see farm doctor"),
        (TypeError("a bug of ours"), TypeError, "a bug of ours"),
    ],
)
def test_a_ray_that_does_not_start_in_time_is_an_error_with_a_way_out(
    raised: Exception, error: type[Exception], text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def init(**_options: object) -> NoReturn:
        raise raised

    monkeypatch.setattr(connection, "set_environment_defaults", lambda _values: None)
    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    with pytest.raises(error, match=text):
        connection.RayConnection(load_settings({})).open()


def test_workers_import_from_the_given_path_only() -> None:
    config = private.job_config(["/opt/farm"])
    assert config._py_driver_sys_path == ["/opt/farm"]
    assert config._runtime_env_has_working_dir()
    assert "_runtime_env_has_working_dir" in inspect.getsource(importlib.import_module("ray._private.worker"))


def test_the_node_address_is_the_loopback_only_within_the_block() -> None:
    from ray._private import ray_constants, services

    with private.loopback_only():
        assert services.get_node_ip_address() == "127.0.0.1"
    assert ray_constants.ENABLE_RAY_CLUSTER


def test_this_machine_is_a_node_of_no_cluster_it_did_not_join() -> None:
    assert "198.51.100.7:6379" not in private.gcs_addresses()


def test_only_the_one_module_uses_private_names_of_ray() -> None:
    pattern = re.compile(r"\bray\._|import _raylet|\bray\._private|ray\.autoscaler")
    using = [file for file in modules("farm", "cli", "codegen") if pattern.search((ROOT / file).read_text())]
    assert using == ["farm/executors/ray/private.py"]


def test_the_next_minor_release_of_ray_is_not_admitted_untested() -> None:
    requirements = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    [bound] = [each for each in requirements if each.startswith("ray>")]
    major, minor, _ = ray.__version__.split(".", 2)
    assert bound.endswith(f"<{major}.{int(minor) + 1}")

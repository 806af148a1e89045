"""Clusters that stand at zero: the autoscaler sees what has no room, and whoever waits for a machine says so."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from codegen.model_zoo import operator_network, write_network
from tests.cluster.growing_cluster import GrowingCluster
from tests.cluster.ray_nodes import RayNodes
from tests.cluster.sleeping import wait_until
from tests.command import ROOT, farm
from tests.samples import SMALL

WAITING = "no worker yet: waiting for the cluster to start one"
JOINING = "no worker yet: waiting for one to join the cluster"
LONG_SECONDS = 180.0
"""A machine starts, or idles away; on one that does much else."""


@pytest.fixture(scope="module")
def growing() -> Iterator[GrowingCluster]:
    with GrowingCluster() as cluster:
        yield cluster
    assert not cluster.processes()


@pytest.fixture(scope="module")
def empty() -> Iterator[RayNodes]:
    """No autoscaler, and no machine that works."""
    with RayNodes(1, head_cpus=0) as nodes:
        yield nodes
    assert not nodes.processes()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "layer.onnx"
    write_network(path, operator_network(SMALL, 0.9, seed=0))
    return path


def environment_of(nodes: RayNodes, folder: Path) -> dict[str, str]:
    return {
        **nodes.environment,
        "FARM_RAY_ADDRESS": nodes.address,
        "FARM_STORE": f"file://{folder}/store",
        "FARM_DATABASE_URL": f"sqlite:///{folder}/farm.db",
    }


def inherited() -> dict[str, str]:
    """Without what a test before this left: a Ray of this process has a token of its own."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("FARM_", "RAY_"))}


def machines(cluster: GrowingCluster) -> list[int]:
    """The raylets of machines that the cloud started."""
    mark = os.fsencode(str(cluster.folder / "played"))
    return [pid for pid in cluster.processes() if mark in command_line(pid) and b"raylet" in command_line(pid)]


def command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""  # it has just ended


def test_doctor_starts_no_machine_and_minds_no_cluster_at_zero(growing: GrowingCluster, tmp_path: Path) -> None:
    done = farm(tmp_path, environment_of(growing, tmp_path), "doctor", "--json")
    checks = {each["name"]: each for each in json.loads(done.out)["checks"]}
    assert checks["executor"]["ok"]
    assert "has no machine for builds now: it starts some when there is work" in checks["executor"]["text"]
    assert "with a GPU" in checks["gpu"]["text"]
    assert not machines(growing)


def test_a_compile_makes_a_cluster_that_stands_at_zero_start_machines(
    growing: GrowingCluster, model: Path, tmp_path: Path
) -> None:
    done = farm(tmp_path, environment_of(growing, tmp_path), "compile", str(model), "--arch", "sm_80,sm_90")
    assert done.code == 0, done.err
    assert WAITING in done.err


ON_A_GPU = """
from farm.executors import open_gpu
from farm.config.settings import load_settings
from tests.cluster import gpu_work

said = []
with open_gpu(load_settings(), notice=said.append) as gpu:
    [told] = gpu.run(gpu_work.told)
print(told["gpu"], said)
"""


def test_work_on_a_gpu_starts_a_machine_with_one(growing: GrowingCluster, tmp_path: Path) -> None:
    environment = inherited() | environment_of(growing, tmp_path)
    command = [sys.executable, "-c", ON_A_GPU]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=LONG_SECONDS)
    assert (done.returncode, done.stderr) == (0, "")
    assert "GPU 0 ['no machine with a GPU yet: waiting for the cluster to start one'" in done.stdout


def path_without_a_compiler(folder: Path) -> str:
    """Every program of this machine but g++."""
    for place in os.environ["PATH"].split(":"):
        for program in Path(place).glob("*"):
            if "g++" not in program.name and not (folder / program.name).exists():
                (folder / program.name).symlink_to(program)
    return str(folder)


def test_an_idle_machine_that_cannot_do_the_work_keeps_none_from_starting(
    growing: GrowingCluster, model: Path, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    wait_until(lambda: not machines(growing), LONG_SECONDS)  # those of the tests before
    growing.join(1, PATH=path_without_a_compiler(tmp_path_factory.mktemp("bin")))
    done = farm(tmp_path, environment_of(growing, tmp_path), "compile", str(model), "--arch", "sm_80")
    assert done.code == 0, done.err
    assert f"{WAITING} (" in done.err
    assert "nvcc needs the host compiler g++" in done.err


def test_without_an_autoscaler_a_compile_without_workers_fails_at_once(
    empty: RayNodes, model: Path, tmp_path: Path
) -> None:
    done = farm(tmp_path, environment_of(empty, tmp_path), "compile", str(model), "--arch", "sm_80")
    assert done.code == 32
    assert f"the Ray cluster at {empty.address} has no machine that can do this work" in done.err
    assert "waiting" not in done.err


def test_a_wait_that_is_set_is_kept_without_an_autoscaler_too(empty: RayNodes, model: Path, tmp_path: Path) -> None:
    environment = environment_of(empty, tmp_path) | {"FARM_WORKER_WAIT": "1s"}
    done = farm(tmp_path, environment, "compile", str(model), "--arch", "sm_80")
    assert done.code == 32
    assert JOINING in done.err
    assert f"after 1 s the Ray cluster at {empty.address} has no machine that can do this work" in done.err


@contextmanager
def serving(environment: dict[str, str], folder: Path) -> Iterator[Path]:
    log = folder / "serve.log"
    with log.open("wb") as output:
        child = subprocess.Popen(
            [sys.executable, "-m", "cli.main", "serve"], cwd=ROOT, env=inherited() | environment, stderr=output
        )
    try:
        yield log
        assert child.poll() is None
    finally:
        child.terminate()
        child.wait(60)


def test_a_coordinator_that_starts_before_any_worker_waits_for_one_and_says_so(
    empty: RayNodes, model: Path, tmp_path: Path
) -> None:
    environment = environment_of(empty, tmp_path)
    with serving(environment, tmp_path) as log:
        wait_until(lambda: JOINING.encode() in log.read_bytes(), LONG_SECONDS)
        assert farm(tmp_path, environment, "submit", str(model), "--arch", "sm_80").code == 0
        wait_until(lambda: b"claimed 1 job" in log.read_bytes(), LONG_SECONDS)
        empty.join(1)
        wait_until(lambda: b"SUCCEEDED" in log.read_bytes(), LONG_SECONDS)

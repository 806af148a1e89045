"""`farm tune`, `farm bench` and `farm verify --gpu` on a machine of a cluster: real Ray, a GPU that is played."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from cli.exit_codes import OK, UNREACHABLE
from cli.main import run
from codegen.errors import DeviceError, ToolError
from codegen.frontend.onnx.reader import read_checkpoint
from codegen.model_zoo import lenet5, write_network
from codegen.toolchain.tools import find_toolchain
from farm.api import Farm
from farm.bench.layers import benchmark
from farm.bench.layers.results import read_results
from farm.bench.networks import benchmark as network_benchmark
from farm.config.settings import Settings, load_settings
from farm.cuda.device import Device
from farm.errors import NoWorkerError
from farm.executors import open_gpu
from farm.executors.gpu_host import LocalGpuHost
from farm.executors.ray import gpu as cluster_gpu
from farm.jobs.model import BuildOptions
from farm.ledger import open_ledger
from farm.testing import laptop_settings
from farm.tuning.search import tune
from farm.verify import layers
from tests.cluster import gpu_work
from tests.cluster.one_token import start_cluster
from tests.cluster.sleeping import wait_until
from tests.command import ROOT
from tests.samples import checkpoint, layer
from tests.torch.bundles import whole_bundle

MEMORY = {"object_store_memory": 80 * 2**20, "memory": 2 * 2**30}
TUNE = ["tune", "--op", "lenet-conv1,lenet-conv2", "--batch", "1", "--candidates", "3"]
BENCH = ["bench", "--op", "lenet-conv1", "--batch", "1", "--peers", "none"]


@dataclass(frozen=True)
class Site:
    cluster: Any
    settings: Settings


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """One machine, which has no GPU."""
    started = start_cluster(num_cpus=1, num_gpus=0, **MEMORY)
    try:
        yield started
    finally:
        started.shutdown()


@pytest.fixture
def without_gpu(cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    variables = {
        "FARM_EXECUTOR": "ray",
        "FARM_RAY_ADDRESS": cluster.address,
        "FARM_STORE": f"file://{tmp_path / 'store'}",
        "FARM_DATABASE_URL": f"sqlite:///{tmp_path / 'farm.db'}",
    }
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    return Site(cluster, load_settings())


@pytest.fixture
def site(without_gpu: Site) -> Iterator[Site]:
    """Two machines, one of them with a GPU."""
    cluster = without_gpu.cluster
    node = cluster.add_node(num_cpus=3, num_gpus=1, **MEMORY)
    cluster.wait_for_nodes()
    yield without_gpu
    cluster.remove_node(node)


def is_running(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


@pytest.mark.parametrize("command", [TUNE, BENCH])
def test_a_cluster_without_a_gpu_is_said_at_once(
    without_gpu: Site, command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    start = time.monotonic()
    assert run(command) == UNREACHABLE
    assert time.monotonic() - start < 20
    said = capsys.readouterr()
    assert f"the Ray cluster at {without_gpu.cluster.address} has no machine with a GPU" in said.err
    assert "--local takes the GPU of this machine" in said.err
    assert said.out == ""


def test_local_asks_no_cluster(without_gpu: Site, capsys: pytest.CaptureFixture[str]) -> None:
    assert isinstance(open_gpu(without_gpu.settings, local=True), LocalGpuHost)
    assert isinstance(open_gpu(laptop_settings(Path("/unused"))), LocalGpuHost)


def test_the_work_has_the_gpu_that_ray_gave_it_all_cpus_of_its_machine_and_no_database(site: Site) -> None:
    with open_gpu(site.settings) as gpu:
        [told] = gpu.run(gpu_work.told)
    assert (told["gpu"], told["jobs"], told["database"]) == ("GPU 0", 3, "")
    with open_gpu(replace(site.settings, jobs=2, origins={"jobs": "command line"})) as gpu:
        [told] = gpu.run(gpu_work.told)
    assert told["jobs"] == 2


def test_tuning_shows_its_progress_here_and_keeps_its_records_in_the_ledger_here(
    site: Site, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tune, "tuning_work", gpu_work.tuning)
    assert run(TUNE) == OK
    said = capsys.readouterr().err.splitlines()
    assert said[0] == "tuning 2 layers on GPU 0"
    assert [line.split()[:2] for line in said[1:]] == [["1/2", "lenet-conv2"], ["2/2", "lenet-conv1"]]
    ledger = open_ledger(site.settings)
    assert [(each.gpu, each.tried) for each in ledger.tuning.records()] == [("GPU 0", 3)] * 2
    ledger.close()
    assert run([*TUNE, "--json"]) == OK
    assert [each["known"] for each in json.loads(capsys.readouterr().out)["layers"]] == [True, True]


def test_a_benchmark_is_kept_in_the_file_here_and_its_weights_come_from_the_store(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(benchmark, "benchmark_work", gpu_work.benchmark)
    file = tmp_path / "r.json"
    assert run([*BENCH, "--sparsity", "0.5,0.9", "--json", str(file)]) == OK
    results = read_results(file)
    assert results.environment == {"gpu": "GPU 0"}
    assert [(each.case.sparsity, each.microseconds) for each in results.measurements] == [(0.5, 250.0), (0.9, 50.0)]
    assert run([*BENCH, "--sparsity", "0.9,0", "--json", str(file), "--resume"]) == OK
    assert [each.case.sparsity for each in read_results(file).measurements] == [0.5, 0.9, 0.0]


def test_whole_networks_are_measured_there_and_their_bundles_come_from_the_store(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(network_benchmark, "environment_work", gpu_work.network_environment)
    monkeypatch.setattr(network_benchmark, "network_work", gpu_work.networks)
    write_network(tmp_path / "lenet5.onnx", lenet5(0.9, 0))
    bundle = whole_bundle(tmp_path / "lenet5.farm", read_checkpoint(tmp_path / "lenet5.onnx"), 8)
    file = tmp_path / "r.json"
    arguments = ["lenet5", "--bundle", str(bundle), "--batch", "8", "-q", "--json", str(file)]
    assert run(["bench", "network", *arguments]) == OK
    results = read_results(file)
    assert results.environment["gpu"] == "GPU 0"
    assert [each.microseconds for each in results.measurements] == [bundle.stat().st_size]


def test_a_job_is_verified_with_the_cubins_from_the_store(
    site: Site, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with Farm.open(replace(site.settings, executor="inline")) as farm:
        [job] = farm.compile([checkpoint(layer("conv1"))], BuildOptions(("sm_90",)))
        [made] = farm.inspect(job.id).results
    monkeypatch.setattr(layers, "verification_work", gpu_work.verification)
    with Farm.open(site.settings) as farm:
        [verified] = farm.verify(job.id, gpu=True)
    assert (verified.layer, verified.where) == ("conv1", "GPU 0")
    assert verified.verification.blocks_run == made.cubin_bytes


def test_what_the_gpu_or_a_tool_there_refuses_is_the_same_error_here_with_the_machines_name(site: Site) -> None:
    with open_gpu(site.settings) as gpu, pytest.raises(ToolError, match=r"^on \S+: ptxas failed: no space is left$"):
        list(gpu.run(gpu_work.failing))


@pytest.mark.parametrize("command", [TUNE, BENCH, ["verify", "--gpu"]])
def test_a_machine_that_has_a_gpu_in_name_only_is_an_exit_code_and_names_the_machine(
    site: Site, tmp_path: Path, command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        Device()
    except DeviceError:
        pass
    else:
        pytest.skip("there is a GPU here")
    if command[0] == "verify":
        with Farm.open(replace(site.settings, executor="inline")) as farm:
            farm.compile([checkpoint(layer("conv1"))], BuildOptions(("sm_90",)))
    assert run(command) == UNREACHABLE
    said = capsys.readouterr().err
    assert "farm: on " in said
    assert "PyCUDA cannot be imported" in said or "no usable GPU" in said


def gpu_of_doctor(capsys: pytest.CaptureFixture[str]) -> str:
    assert run(["doctor", "--json"]) == OK
    checks = {each["name"]: each["text"] for each in json.loads(capsys.readouterr().out)["checks"]}
    return str(checks["gpu"])


def test_doctor_says_whether_the_cluster_has_a_gpu(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu_of_doctor(capsys).startswith("the cluster has one")


def test_doctor_does_not_mind_a_cluster_without_one(without_gpu: Site, capsys: pytest.CaptureFixture[str]) -> None:
    assert "has no machine with a GPU" in gpu_of_doctor(capsys)


def test_a_defect_shows_where_it_was(site: Site) -> None:
    with open_gpu(site.settings) as gpu, pytest.raises(ZeroDivisionError, match=r"gpu_work\.py"):
        list(gpu.run(gpu_work.broken))


def test_a_process_that_is_lost_is_no_worker(site: Site) -> None:
    with open_gpu(site.settings) as gpu, pytest.raises(NoWorkerError, match=r"was lost .* run the same command again"):
        list(gpu.run(gpu_work.killed))


LOST = """
from farm.errors import NoWorkerError
from farm.executors import open_gpu
from farm.config.settings import load_settings
from tests.cluster import gpu_work

with open_gpu(load_settings()) as gpu:
    try:
        list(gpu.run(gpu_work.killed))
    except NoWorkerError:
        print(len(list(gpu.run(gpu_work.told))))
"""


def test_ray_says_nothing_of_it_on_stdout_and_the_machine_can_be_used_again(site: Site) -> None:
    done = subprocess.run([sys.executable, "-c", LOST], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr, done.returncode) == ("1\n", "", 0)


def test_a_machine_with_other_tools_gets_no_work_and_says_why(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    tools = find_toolchain()
    other = replace(tools, known=replace(tools.facts, ptxas_version="12.9.1"))
    monkeypatch.setattr(cluster_gpu, "find_toolchain", lambda *_: other)
    with (
        pytest.raises(NoWorkerError, match=r"its ptxas is 13\.0\.88, the coordinator's is 12\.9\.1"),
        open_gpu(site.settings),
    ):
        pass


def test_a_gpu_in_use_is_waited_for_with_a_word(site: Site, tmp_path: Path) -> None:
    free, said = tmp_path / "free", []

    def notice(text: str) -> None:
        said.append(text)
        free.touch()

    with open_gpu(site.settings) as first, open_gpu(site.settings, notice=notice) as second:
        has_it = iter(first.run(partial(gpu_work.held, until=free)))
        holder = next(has_it)
        [told] = second.run(gpu_work.told)
        assert told["pid"] != holder
        assert list(has_it) == []
    assert len(said) == 1
    assert "waiting for a GPU: those of the cluster" in said[0]


def test_leaving_the_block_ends_the_process_and_frees_the_gpu(site: Site, tmp_path: Path) -> None:
    with open_gpu(site.settings) as gpu:
        holder = next(iter(gpu.run(partial(gpu_work.held, until=tmp_path / "never"))))
        assert is_running(holder)
    wait_until(lambda: not is_running(holder))
    with open_gpu(site.settings) as gpu:
        assert len(list(gpu.run(gpu_work.told))) == 1


INTERRUPTED = """
import sys
from functools import partial
from pathlib import Path
from farm.executors import open_gpu
from farm.config.settings import load_settings
from tests.cluster import gpu_work

try:
    with open_gpu(load_settings()) as gpu:
        for pid in gpu.run(partial(gpu_work.held, until=Path("/never"))):
            print(pid, flush=True)
except KeyboardInterrupt:
    sys.exit(130)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=["Ctrl-C", "killed"])
def test_an_interruption_while_nothing_comes_ends_the_process_there(site: Site, number: signal.Signals) -> None:
    command = [sys.executable, "-c", INTERRUPTED]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout is not None
            holder = int(child.stdout.readline())
            child.send_signal(number)
            assert child.wait(30) == (130 if number == signal.SIGINT else -number)
        finally:
            child.kill()
    wait_until(lambda: not is_running(holder))

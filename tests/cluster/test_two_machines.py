"""Two machines of a Ray cluster, as two raylets on this one: placement of work, and the death of one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from codegen.toolchain.tools import find_toolchain
from farm.api import Farm
from farm.config.settings import Settings
from farm.errors import NoWorkerError
from farm.executors import open_executor
from farm.jobs.model import Build, BuildOptions, BuildResult, Job, Status
from farm.scheduler.progress import Progress
from farm.store import open_store
from farm.testing import laptop_settings
from tests.cluster.one_token import start_cluster
from tests.cluster.sleeping import running, sleeping_ptxas, wait_until
from tests.cluster.workplace import Workplace
from tests.samples import SMALLER, checkpoint, layer


@dataclass(frozen=True)
class TwoNodes:
    cluster: Any
    second: Any
    settings: Settings


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[TwoNodes]:
    memory = {"object_store_memory": 80 * 2**20, "memory": 4 * 2**30}
    cluster = start_cluster(num_cpus=1, **memory)
    try:
        second = cluster.add_node(num_cpus=1, **memory)
        cluster.wait_for_nodes()
        yield TwoNodes(cluster, second, replace(laptop_settings(tmp_path), executor="ray", ray_address=cluster.address))
    finally:
        cluster.shutdown()


def test_both_machines_get_work_once_their_tools_are_checked(nodes: TwoNodes) -> None:
    settings = nodes.settings
    store = open_store(settings)
    with open_executor(settings, store, find_toolchain()) as executor:
        place = Workplace(executor, store, settings)
        assert executor.capacity in (2, 4)  # the second may still be asked
        wait_until(lambda: executor.capacity == 4)
        todo = place.plan(layer(), layer(spec=SMALLER))
        place.do(*todo.templates)
        assert all(result.failure is None for result in place.do(*todo.cubins))
        states = executor.workers()
        assert len(states) == 2
        assert [(state.cpus, state.finished, state.failed, state.reason) for state in states] == [(1, 3, 0, "")] * 2


def test_a_machine_with_other_tools_than_the_plans_gets_no_work_and_says_why(nodes: TwoNodes) -> None:
    settings = nodes.settings
    tools = find_toolchain()
    other = replace(tools, known=replace(tools.facts, ptxas_version="12.9.1"))
    with (
        open_executor(settings, open_store(settings), other) as executor,
        pytest.raises(NoWorkerError, match=r"its ptxas is 13\.0\.88, the coordinator's is 12\.9\.1"),
    ):
        _ = executor.capacity


def test_what_ran_on_a_machine_that_dies_is_built_on_the_other(nodes: TwoNodes, tmp_path: Path) -> None:
    script, runs = sleeping_ptxas(tmp_path)
    settings = replace(nodes.settings, ptxas=script)
    store = open_store(settings)
    with open_executor(settings, store, find_toolchain(ptxas=script)) as executor:
        place = Workplace(executor, store, settings)
        wait_until(lambda: executor.capacity == 4)
        todo = place.plan(layer(), layer(seed=1), archs=("sm_90",))
        place.do(*todo.templates)
        for request in todo.cubins:
            executor.submit(request)
        wait_until(lambda: len(running(runs)) == 2)
        nodes.cluster.remove_node(nodes.second, allow_graceful=False)
        [lost] = place.collect(1)
        assert lost.failure is not None
        assert "died" in lost.failure.message
        wait_until(lambda: len(running(runs)) == 1)
        wait_until(lambda: executor.capacity == 2)
        [again] = [request for request in todo.cubins if request.key == lost.key]
        executor.submit(again)
        assert [(state.running, state.pending) for state in executor.workers()] == [(1, 1)]


def test_a_whole_job_survives_the_death_of_a_machine(nodes: TwoNodes) -> None:
    net = checkpoint(*(layer(f"conv{i}", seed=i) for i in range(6)))
    removed: list[bool] = []

    class Kill(Progress):
        def cubin_done(self, job: Job, build: Build, result: BuildResult) -> None:
            if not removed:
                removed.append(True)
                nodes.cluster.remove_node(nodes.second, allow_graceful=False)

    with Farm.open(nodes.settings) as farm:
        [job] = farm.compile([net], BuildOptions(("sm_80", "sm_90")), progress=Kill())
    assert removed
    assert (job.status, job.done) == (Status.SUCCEEDED, 12)

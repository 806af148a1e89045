"""The process executor: workers that die, and programs that die."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from codegen.model_zoo import lenet5, write_network
from farm.worker.messages import Fault
from tests.cluster.sleeping import parent, running, sleeping_ptxas, wait_until
from tests.cluster.workplace import workplace
from tests.command import ROOT, own_environment
from tests.samples import layer


def children(pid: int) -> list[int]:
    """The worker processes of a program."""
    tasks = Path(f"/proc/{pid}/task")
    return [int(child) for task in tasks.iterdir() for child in (task / "children").read_text().split()]


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_worker_that_dies_is_a_crash_that_names_the_signal_and_another_takes_its_place(tmp_path: Path) -> None:
    script, runs = sleeping_ptxas(tmp_path)
    with workplace(tmp_path, "processes", script) as place:
        todo = place.plan(layer(), archs=("sm_90",))
        place.do(*todo.templates)
        place.executor.submit(todo.cubins[0])
        wait_until(lambda: len(running(runs)) == 1)
        [tool] = running(runs)
        worker = tool
        while parent(worker) != os.getpid():
            worker = parent(worker)
        os.kill(worker, signal.SIGKILL)
        [result] = place.collect(1)
        assert result.failure is not None
        assert result.failure.fault is Fault.CRASH
        assert result.failure.message == "its worker died: signal 9"
        wait_until(lambda: not running(runs))
        assert place.do(*todo.templates)[0].hit


def test_workers_end_with_the_program_that_started_them_however_that_ends(tmp_path: Path) -> None:
    script, runs = sleeping_ptxas(tmp_path)
    model = tmp_path / "lenet5.onnx"
    write_network(model, lenet5(0.9, seed=0))
    settings = {"FARM_EXECUTOR": "processes", "FARM_PTXAS": str(script), "FARM_JOBS": "2"}
    program = subprocess.Popen(
        [sys.executable, "-m", "cli.main", "compile", str(model), "--arch", "sm_90", "--assembler", "ptxas"],
        cwd=ROOT,
        env={**own_environment(tmp_path / "home"), **settings},
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_until(lambda: len(running(runs)) == 2)
        workers = children(program.pid)
        assert len(workers) == 2
    finally:
        program.kill()
        program.wait()
    wait_until(lambda: not running(runs))
    wait_until(lambda: not any(map(is_alive, workers)))


def test_a_short_compile_uses_no_ray_unless_it_is_told_to(tmp_path: Path) -> None:
    model = tmp_path / "lenet5.onnx"
    write_network(model, lenet5(0.98, seed=0))
    for executor, uses_ray in (("auto", False), ("ray", True)):
        command = ["compile", str(model), "--arch", "sm_90"]
        told = "import sys; from cli.main import run; print(run(sys.argv[1:]), 'ray' in sys.modules)"
        done = subprocess.run(
            [sys.executable, "-c", told, *command],
            cwd=ROOT,
            env={**own_environment(tmp_path / executor), "FARM_EXECUTOR": executor, "FARM_JOBS": "2"},
            capture_output=True,
            text=True,
            check=True,
        )
        assert f"0 {uses_ray}" in done.stdout, done.stdout + done.stderr

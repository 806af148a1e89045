"""The whole farm with Ray on this machine."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from codegen.toolchain.temp_folders import remove_abandoned
from farm.api import Farm
from farm.jobs.model import NO_COORDINATOR, BuildOptions, Status
from farm.testing import laptop_settings
from tests.cluster.sleeping import running, sleeping_ptxas, wait_until
from tests.samples import SMALLER, checkpoint, layer
from tests.verifications import assert_right

NET = checkpoint(layer("conv1"), layer("conv2", spec=SMALLER))
OPTIONS = BuildOptions(("sm_80", "sm_90"), assembler="ptxas")

INTERRUPTED = """
import sys
from dataclasses import replace
from pathlib import Path
from farm.api import Farm
from farm.testing import laptop_settings
from tests.cluster.test_farm_on_ray import NET, OPTIONS

folder = Path(sys.argv[1])
settings = replace(laptop_settings(folder), executor="ray", ptxas=folder / "ptxas")
with Farm.open(settings) as farm:
    try:
        farm.compile([NET], OPTIONS)
    except KeyboardInterrupt:
        sys.exit(130)
"""


def test_a_checkpoint_compiles_on_ray_and_the_second_time_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Farm.open(replace(laptop_settings(tmp_path), executor="ray")) as farm:
        [job] = farm.compile([NET], OPTIONS)
        assert (job.status, job.done, job.hits) == (Status.SUCCEEDED, 4, 0)
        assert_right(farm.verify(job.id))
        import ray

        monkeypatch.setattr(ray, "init", lambda **options: pytest.fail("Ray was started"))
        [job] = farm.compile([NET], OPTIONS)
        assert (job.status, job.hits) == (Status.SUCCEEDED, 4)


def test_an_interruption_leaves_no_process_and_a_job_that_the_next_compile_finishes(tmp_path: Path) -> None:
    _, runs = sleeping_ptxas(tmp_path)
    with subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED, str(tmp_path)],
        cwd=Path(__file__).parents[2],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as child:
        try:
            wait_until(lambda: len(running(runs)) == 2 or child.poll() is not None)
            if child.poll() is None:
                os.killpg(child.pid, signal.SIGINT)  # what a terminal does
            output = child.communicate(timeout=60)
        finally:
            child.kill()
    assert (output, child.returncode) == (("", ""), 130)
    wait_until(lambda: not running(runs))
    with Farm.open(laptop_settings(tmp_path)) as farm:
        [left] = farm.jobs()
        assert (left.status, left.reason) == (Status.PENDING, NO_COORDINATOR)
        [job] = farm.compile([NET], OPTIONS)
        assert (job.id, job.status, job.tries, job.done) == (left.id, Status.SUCCEEDED, 2, 4)


def test_what_a_killed_farm_leaves_goes_with_the_next_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, runs = sleeping_ptxas(tmp_path)
    temporary = Path(tempfile.mkdtemp(prefix="killed-"))  # short: it has Ray's sockets
    environment = {**os.environ, "TMPDIR": str(temporary)}
    command = [sys.executable, "-c", INTERRUPTED, str(tmp_path)]
    try:
        with subprocess.Popen(command, cwd=Path(__file__).parents[2], env=environment) as child:
            wait_until(lambda: len(running(runs)) == 2)
            child.kill()
        [left] = (path for path in temporary.glob("farm-ray-*") if path.is_dir())
        wait_until(lambda: not running(runs))
        wait_until(lambda: not mentioning(left))
        monkeypatch.setattr(tempfile, "tempdir", str(temporary))
        remove_abandoned()
        assert list(temporary.iterdir()) == []
    finally:
        shutil.rmtree(temporary)


def mentioning(folder: Path) -> list[str]:
    """The commands that run with this folder among their arguments."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            found.append(path.read_bytes())
    return [line.decode() for line in found if bytes(folder) in line]

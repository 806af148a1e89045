"""One round: a farm of its own, coordinators as processes, a fault at a random moment, and what must hold after it."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Self

from farm.api import Farm
from farm.config.settings import Settings, load_settings
from farm.jobs.model import Job, JobSet, Status
from farm.store import open_store
from tests.chaos.services import Services
from tests.chaos.work import OPTIONS, checkpoints, named_results

ROOT = Path(__file__).parents[2]
STUCK_SECONDS = 180.0
"""A round that takes longer is stuck; undisturbed it takes a tenth of this."""
END_SECONDS = 60.0
"""Time for a coordinator to stop, and for the processes of a killed one to be gone."""
POLL_SECONDS = 0.05


class Round:
    """Everything of a round lies in its folder; by that its processes are known, and those of no other."""

    def __init__(self, services: Services, seed: int) -> None:
        self.services = services
        self.random = random.Random(seed)
        # Short: the path of a socket may have 107 characters only.
        self.folder = Path(tempfile.mkdtemp(prefix="chaos-"))
        self.temporary = self.folder / "t"
        self.temporary.mkdir()
        self.cleanup = ExitStack()
        self.said = "nothing happened"
        """The fault of this round, in words."""
        self.in_time = False
        """Whether there was still work to do when it happened."""
        self._end = time.monotonic() + STUCK_SECONDS
        self._farm: Farm | None = None
        self._serving: dict[subprocess.Popen[bytes], Path] = {}
        """Coordinators, with what they said."""
        self._draining: set[subprocess.Popen[bytes]] = set()
        """Coordinators that end by themselves."""
        self._killed = False
        """Whether a coordinator was killed, whose temporary files others remove."""
        self._started = 0
        self._ids: list[str] = []
        configuration = self.folder / "config.toml"
        configuration.touch()
        self._variables = {
            "FARM_CONFIG": str(configuration),
            "FARM_STORE": f"file://{self.folder / 'store'}",
            "FARM_DATABASE_URL": f"sqlite:///{self.folder / 'farm.db'}",
            "FARM_EXECUTOR": "inline",
            "FARM_JOBS": "2",
            "FARM_RUNTIME_DIR": str(self.folder / "run"),
            "FARM_SUBMITTER": "tester",
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        for process in self._serving:
            process.kill()
            process.wait()
        for pid in self.processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if self._farm is not None:
            self._farm.close()
        self.cleanup.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def use(self, **variables: str) -> None:
        """Settings and other variables in the environment of this round's coordinators."""
        self._variables |= variables

    @property
    def settings(self) -> Settings:
        return load_settings({name: value for name, value in self._variables.items() if name.startswith("FARM_")})

    @property
    def farm(self) -> Farm:
        if self._farm is None:
            self._farm = Farm.open(self.settings)
        return self._farm

    def submit(self, *numbers: int) -> None:
        """Submit the checkpoints of these numbers, or all."""
        nets = checkpoints()
        jobs = self.farm.submit([nets[i] for i in numbers] if numbers else nets, OPTIONS).jobs
        self._ids += [job.id for job in jobs]

    def serve(self, *arguments: str, hasty: bool = True) -> subprocess.Popen[bytes]:
        """A coordinator; a hasty one has a short lease."""
        ours = ("FARM_", "RAY_", "AWS_")
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
        own = {"HOME": str(self.folder), "TMPDIR": str(self.temporary), "AWS_EC2_METADATA_DISABLED": "true"}
        homes = {f"XDG_{kind}_HOME": str(self.folder / kind.lower()) for kind in ("CACHE", "CONFIG", "DATA")}
        # Not -m: then Python ends by SIGINT if it was interrupted within an import, although that was handled.
        program = f"from {'tests.chaos.hasty' if hasty else 'cli.main'} import main; main()"
        self._started += 1
        path = self.folder / f"serve{self._started}.log"
        with path.open("wb") as log:
            process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", sys.executable, "-c", program, "serve", *arguments],
                cwd=ROOT, env={**inherited, **own, **homes, **self._variables},
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip
        self._serving[process] = path
        if "--drain" in arguments:
            self._draining.add(process)
        return process

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        """Kill a coordinator, whose exit code is then not checked."""
        process.kill()
        process.wait()
        del self._serving[process]
        self._killed = True

    def supervise(self, done: Callable[[], bool]) -> None:
        """Starts a coordinator whenever none runs, as Kubernetes does, until a condition holds."""

        def one_runs() -> bool:
            for process in list(filter(_ended, self._serving)):
                self.kill(process)
            if not self._serving:
                self.serve()
            return done()

        self.wait(one_runs, "a job does not end")

    def jobs(self) -> list[Job]:
        return self.farm.jobs_by_id(self._ids)

    def over(self) -> bool:
        return all(job.status.final for job in self.jobs())

    def moment(self) -> None:
        """Any from the first claim on: after some time, or after some of the cubins, since few come early.

        A moment is too late if all is done by then; that is rare, for the last third of the cubins comes at once.
        """
        undisturbed = self.services.undisturbed
        self.wait(lambda: any(job.status is not Status.PENDING for job in self.jobs()), "no job is claimed")
        if self.random.random() < 0.5:
            time.sleep(self.pause(undisturbed.seconds / 2))
        else:
            enough = self.random.randrange(1, undisturbed.builds * 2 // 3)
            self.wait(lambda: self.over() or sum(job.done for job in self.jobs()) >= enough, "no cubin comes")
        self.in_time = not self.over()

    def pause(self, longest_seconds: float) -> float:
        """A random duration of at most that many seconds."""
        return self.random.uniform(0, longest_seconds)

    def wait(self, condition: Callable[[], object], otherwise: str, seconds: float = STUCK_SECONDS) -> None:
        """Raises AssertionError when the round, or these seconds, are over."""
        end = min(self._end, time.monotonic() + seconds)
        while not condition():
            assert time.monotonic() < end, otherwise
            time.sleep(POLL_SECONDS)

    def processes(self) -> dict[int, str]:
        """Processes of this round with their commands: all have its folder in their environment or arguments.

        Processes that may outlive a round are left out.
        """
        late = self.services.late.running()
        return {pid: command for pid, command in marked_processes(self.folder).items() if pid not in late}

    def finish(self) -> None:
        """Waits until every job has ended, then stops the coordinators and checks that nothing is left of them."""
        self.wait(self._over_or_ended, "a job does not end")
        assert self.over(), f"no coordinator is left, and jobs are {[(job.status, job.reason) for job in self.jobs()]}"
        for process, log in self._serving.items():
            if process not in self._draining:
                self._stop(process, log)
        for process in self._serving:
            self.wait(partial(_ended, process), "a coordinator does not stop", END_SECONDS)
            assert process.returncode == 0, f"a coordinator ended with {process.returncode}"
        self._serving.clear()
        with suppress(AssertionError):
            self.wait(lambda: not self.processes(), "", END_SECONDS)
        assert not (left := self.processes()), f"processes are left: {left}"
        if self._killed and self._left_files():  # it ended after the last coordinator: the next one removes them
            last = self.serve("--drain")
            self.wait(partial(_ended, last), "a coordinator does not stop", END_SECONDS)
            del self._serving[last]
        assert not (files := self._left_files()), f"left among the temporary files: {files}"
        self.wait(lambda: not any(each.alive for each in self.farm.coordinators()), "a lease does not end", END_SECONDS)

    def _left_files(self) -> list[str]:
        return sorted(path.name for path in self.temporary.iterdir())

    def _stop(self, process: subprocess.Popen[bytes], log: Path) -> None:
        # From its first word on it obeys SIGTERM.
        self.wait(lambda: _ended(process) or log.stat().st_size, "a coordinator does not start")
        process.send_signal(signal.SIGTERM)

    def _over_or_ended(self) -> bool:
        return self.over() or all(map(_ended, self._serving))

    def check_success(self, ids: Sequence[str] | None = None) -> None:
        """Every job has succeeded, and every cubin is that of the undisturbed run, byte for byte."""
        for job in self.jobs():
            if ids is None or job.id in ids:
                assert job.status is Status.SUCCEEDED, f"{job.name} is {job.status}: {job.reason}"
        expected, store = self.services.undisturbed.cubins, open_store(self.settings)
        for job in self.jobs():
            if job.status is not Status.SUCCEEDED:
                continue
            results = named_results(self.farm.inspect(job.id))
            assert len(results) == job.total, f"{job.name} has {len(results)} results of {job.total}"
            for name, result in results.items():
                assert result.cubin, f"{name} has no cubin"
                assert store.get(result.cubin) == expected[name], f"{name} is not the undisturbed run's"

    def again(self, *, retry: bool) -> None:
        """A new coordinator retries the jobs that did not succeed, or everything is submitted anew."""
        if retry:
            self.farm.retry(JobSet(ids=tuple(self._ids)))
        else:
            self.submit()
        self.serve("--drain")
        self.finish()

    @property
    def logs(self) -> str:
        """The output of the coordinators."""
        return "\n".join(f"{path.name}: {path.read_text(errors='replace')}" for path in self.folder.glob("serve*.log"))


def _ended(process: subprocess.Popen[bytes]) -> bool:
    return process.poll() is not None


def marked_processes(folder: Path) -> dict[int, str]:
    mark, found = os.fsencode(str(folder)), {}
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            command = (path / "cmdline").read_bytes()
            if mark in command + (path / "environ").read_bytes():
                found[int(path.name)] = command.replace(b"\0", b" ").decode(errors="replace").strip()
    return found

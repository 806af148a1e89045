"""The faults that need no Ray. Each plays a whole round."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Collection
from contextlib import suppress
from functools import cache
from pathlib import Path

from sqlalchemy import Executable, text, update

from codegen.toolchain.tools import find_toolchain
from farm.bundle.reader import Bundle
from farm.errors import BlobLostError, BundleError
from farm.jobs.model import JOB_FORMAT, Status
from farm.ledger import upgrade_database
from farm.ledger.database import open_engine
from farm.ledger.tables import builds, jobs
from farm.worker.messages import Fault as Cause
from tests.chaos.round import Round
from tests.chaos.services import BUCKET
from tests.chaos.work import OPTIONS, checkpoints
from tests.signing_keys import key_file
from tests.toolchain.tools import Tools

AWAY_SECONDS = 3.0
"""Longest absence of a killed server."""
ASLEEP_SECONDS = 12.0
"""Longest sleep of a coordinator: three leases."""
DISK_BYTES = 2**20


def coordinator_killed(play: Round) -> None:
    """The next one is there already, or comes later."""
    play.submit()
    first = play.serve()
    early = play.random.random() < 0.5
    if early:
        play.serve()
    play.moment()
    play.kill(first)
    play.said = f"a coordinator was killed, the next one was {'there already' if early else 'not there yet'}"
    if not early:
        play.serve()
    play.finish()
    play.check_success()


def zombie_coordinator(play: Round) -> None:
    """A coordinator sleeps, perhaps beyond its lease, and goes on where it was; its jobs may be another's by then."""
    play.submit()
    first = play.serve()
    play.moment()
    first.send_signal(signal.SIGSTOP)
    play.serve()
    asleep = play.pause(ASLEEP_SECONDS)
    time.sleep(asleep)
    first.send_signal(signal.SIGCONT)
    play.said = f"a coordinator slept for {asleep:.1f} s"
    play.finish()
    play.check_success()


def clock_ahead(play: Round) -> None:
    """The database's clock leaps forward, so that every lease has ended; a third coordinator comes just then."""
    database = _use_postgresql(play)
    # This schema goes before PostgreSQL's own, so that the clock of the tests is read.
    play.services.postgresql.execute(f"alter database {database} set search_path = public, pg_catalog")
    _set_clock(play, 0)
    play.submit()
    for _ in range(2):
        play.serve()
    play.moment()
    hours = play.random.randrange(1, 48)
    _set_clock(play, hours)
    play.serve()
    play.said = f"the clock went {hours} hours ahead"
    play.finish()
    play.check_success()


def _set_clock(play: Round, hours: int) -> None:
    clock = f"select pg_catalog.clock_timestamp() + interval '{hours} hours'"
    function = "create or replace function public.clock_timestamp() returns timestamptz language sql volatile"
    _write(play, text(f"{function} as $${clock}$$"))


def poison_job(play: Round) -> None:
    """A job that nobody can read, or that ends each coordinator which plans it, ends alone."""
    early = play.random.random() < 0.5
    kind = play.random.choice(("an unknown step", "unknown options", "the death of its coordinators"))
    if not early:
        play.submit()
    [poison] = play.farm.submit(checkpoints()[:1], OPTIONS, name="poison").jobs
    if kind == "an unknown step":
        _write(play, update(builds).where(builds.c.job == poison.id).values(spec={"step": "of the next version"}))
    elif kind == "unknown options":
        _write(play, update(jobs).where(jobs.c.id == poison.id).values(options={"of": "the next version"}))
    else:
        play.use(CHAOS_POISON=poison.name)
    if early:
        play.submit()
    play.supervise(lambda: play.over() and play.farm.job(poison.id).status.final)
    play.said = f"the {'first' if early else 'last'} job was {kind}"
    play.in_time = True
    play.finish()
    job = play.farm.job(poison.id)
    assert job.status is Status.CRASHED, f"{job.name} is {job.status}: {job.reason}"
    log = "".join(event.text for event in play.farm.logs(poison.id))
    assert "Traceback" in log or "planned by" in log, log
    play.check_success()


def two_versions(play: Round) -> None:
    """A coordinator leaves a job of a newer format to one that can read it."""
    play.submit()
    newer = play.random.choice(play.jobs())
    _write(play, update(jobs).where(jobs.c.id == newer.id).values(format=JOB_FORMAT + 1))
    play.serve()
    play.moment()
    if alone := play.random.random() < 0.5:
        play.wait(lambda: sum(job.status.final for job in play.jobs()) == 2, "a job does not end")
        waits = play.farm.job(newer.id)
        assert (waits.status, waits.tries) == (Status.PENDING, 0)
        assert waits.reason == f"waits for a coordinator of format {JOB_FORMAT + 1}", waits.reason
    play.use(CHAOS_FORMAT=str(JOB_FORMAT + 1))
    play.serve()
    play.said = f"the newer version came {'when nothing else was left' if alone else 'in between'}"
    play.finish()
    play.check_success()
    assert play.farm.job(newer.id).tries == 1


def _write(play: Round, statement: Executable) -> None:
    """Writes to the ledger directly, as another version of the farm might."""
    engine = open_engine(play.settings.database_url)
    with engine.execution_options(farm_writes=True).begin() as connection:
        connection.execute(statement)
    engine.dispose()


def coordinators_racing(play: Round) -> None:
    """Jobs come one by one, with layers that both build."""
    folder = play.folder / "tools"
    folder.mkdir()
    tools = Tools(folder)
    play.use(FARM_NVCC=str(tools.nvcc), FARM_PTXAS=str(tools.ptxas))
    play.submit(0)
    for _ in range(2):
        play.serve(hasty=False)
    for number in (1, 2):
        play.moment()
        play.submit(number)
    play.said = "jobs came while two coordinators ran"
    play.in_time = True
    play.finish()
    play.check_success()
    made = Counter(tools.calls())
    undisturbed = play.services.undisturbed
    assert made == {"nvcc": undisturbed.templates, "ptxas": undisturbed.builds}, f"something was built twice: {made}"


def postgresql_killed(play: Round) -> None:
    _use_postgresql(play)
    server = play.services.postgresql
    _killed_for_a_while(play, "PostgreSQL", server.kill, server.start)


def _use_postgresql(play: Round) -> str:
    """A database of its own; returns its name."""
    server = play.services.postgresql
    database = server.new_database()
    play.use(FARM_DATABASE_URL=server.url(database))
    play.cleanup.callback(server.drop_database, database)
    upgrade_database(play.settings)
    return database


def s3_killed(play: Round) -> None:
    ceph = play.services.ceph
    _use_s3(play)
    _killed_for_a_while(play, "the S3 server", ceph.kill_gateway, ceph.start_gateway)


def _killed_for_a_while(play: Round, name: str, kill: Callable[[], object], start: Callable[[], object]) -> None:
    play.submit()
    play.serve()
    play.moment()
    kill()
    away = play.pause(AWAY_SECONDS)
    time.sleep(away)
    start()
    play.said = f"{name} was killed, and away for {away:.1f} s"
    play.finish()
    play.check_success()


def _use_s3(play: Round) -> None:
    ceph = play.services.ceph
    for name, value in (("AWS_ACCESS_KEY_ID", ceph.access_key), ("AWS_SECRET_ACCESS_KEY", ceph.secret_key)):
        os.environ[name] = value  # this process asks the store too
        play.cleanup.callback(os.environ.pop, name)
        play.use(**{name: value})
    play.use(
        FARM_STORE=f"s3://{BUCKET}/{play.folder.name}",
        FARM_S3_ENDPOINT=ceph.endpoint,
        FARM_SIGNING_KEYS=str(key_file(play.folder / "keys.pem")),
    )


def cache_full(play: Round) -> None:
    """A machine's copies of blobs from S3 are a convenience: without room for them, everything goes on."""
    _use_s3(play)
    disk = _small_disk(play)
    play.use(FARM_CACHE_DIR=str(disk))
    play.submit()
    play.serve()
    play.moment()
    _fill(disk)
    play.said = "the disk of the node's store was full"
    play.finish()
    play.check_success()


def store_full(play: Round) -> None:
    """The job ends as CRASHED with the reason; once there is room, a retry does the rest."""
    disk = _small_disk(play)
    play.use(FARM_STORE=f"file://{disk}")
    play.submit()
    play.serve()
    play.moment()
    ballast = _fill(disk)
    play.said = "the disk of the store was full"
    play.finish()
    for job in play.jobs():
        if job.status is not Status.SUCCEEDED:
            assert job.status is Status.CRASHED, f"{job.name} is {job.status}: {job.reason}"
            assert "No space left on device" in job.reason, job.reason
    ballast.unlink()
    play.again(retry=True)
    play.check_success()


def _small_disk(play: Round) -> Path:
    disk = play.folder / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(disk)], check=True)
    play.cleanup.callback(subprocess.run, ["umount", "-l", str(disk)], check=True)
    return disk


def _fill(disk: Path) -> Path:
    ballast = disk / "ballast"
    with ballast.open("wb", buffering=0) as file:
        for size in (2**16, 2**12, 1):
            try:
                while file.write(b"\0" * size):
                    pass
            except OSError:
                continue
    return ballast


@cache
def lacks_mount() -> str | None:
    with tempfile.TemporaryDirectory() as folder:
        mounted = subprocess.run(["mount", "-t", "tmpfs", "tmpfs", folder], capture_output=True)
        if mounted.returncode:
            return "needs root, to mount a small disk"
        subprocess.run(["umount", folder], check=True)
    return None


def byte_flipped(play: Round) -> None:
    def flip(path: Path) -> str:
        data = bytearray(path.read_bytes())
        position, bit = play.random.randrange(len(data)), play.random.randrange(8)
        data[position] ^= 1 << bit
        # As a disk does it: the file stays the same one.
        with path.open("r+b") as file:
            file.write(data)
        return f"bit {bit} of byte {position} was flipped"

    _blob_hurt(play, flip)


def blob_deleted(play: Round) -> None:
    def delete(path: Path) -> str:
        path.unlink()
        return "it was deleted"

    _blob_hurt(play, delete)


def record_swapped(play: Round) -> None:
    """Nobody gets a cubin by the record of another one: both are made again, and the log says why."""
    play.use(FARM_SIGNING_KEYS=str(key_file(play.folder / "keys.pem")))
    play.submit()
    play.serve()
    play.moment()
    swapped = _swap_records(play)
    play.finish()
    play.check_success()
    _swap_records(play, besides=swapped)
    play.again(retry=False)
    play.check_success()
    told = [event.text for job in play.jobs()[-3:] for event in play.farm.logs(job.id)]
    assert any("has no valid signature and was rebuilt" in text for text in told), told
    play.said = f"the records of two cubins were swapped {'while others were built and ' * bool(swapped)}at the end"


def _swap_records(play: Round, besides: Collection[Path] = ()) -> list[Path]:
    """Exchange the records of two cubins that differ, and return them; none if there are not two yet.

    `besides`: records that are left as they are, since a second exchange would undo the first.
    """
    records = sorted((play.folder / "store" / "v1" / "ac" / "cubin").glob("*/*.json"))
    if len(left := [record for record in records if record not in besides]) < 2:
        return []
    one, other = play.random.sample(left, 2)
    texts = one.read_bytes(), other.read_bytes()
    other.write_bytes(texts[0])
    one.write_bytes(texts[1])
    return [one, other]


def _blob_hurt(play: Round, hurt: object) -> None:
    """Lost blobs are built again, except a checkpoint's weights, which come with the next submission."""
    assert callable(hurt)
    play.submit()
    weights = {build.weights for job in play.jobs() for build in play.farm.inspect(job.id).builds}
    play.serve()
    play.moment()
    blobs = sorted((play.folder / "store" / "v1" / "cas").glob("*/*"))
    blob = play.random.choice([path for path in blobs if len(path.name) == 64])
    of_input = blob.name in weights
    play.said = f"{'weights' if of_input else 'a blob that was made'}, {blob.name[:8]}: {hurt(blob)}"
    play.finish()
    lost = [job for job in play.jobs() if job.status is not Status.SUCCEEDED]
    for job in lost:
        assert of_input, f"{job.name} is {job.status}: {job.reason}"
        assert (job.status, job.fault) == (Status.CRASHED, Cause.LOST), f"{job.name} is {job.status}: {job.reason}"
    done = [job.id for job in play.jobs() if job not in lost]
    for job_id in done:
        with suppress(BlobLostError):  # a flipped bit is found when the cubin is read, and the cubin is built again
            play.farm.compiled(job_id)
    play.again(retry=False)
    play.check_success([*done, *(job.id for job in play.jobs()[-3:])])


def bundle_forged(play: Round) -> None:
    """A changed bundle is refused in one line; fetched anew it is whole, while other jobs run."""
    play.submit(0)
    play.serve()
    play.wait(play.over, "the first job does not end")
    [job] = play.jobs()
    bundle = play.folder / "bundle"
    play.farm.fetch(job.id, bundle)
    assert not Bundle(bundle).damage()
    play.submit(1, 2)
    play.moment()
    path = play.random.choice([each for each in sorted(bundle.rglob("*")) if each.is_file()])
    play.said = f"{path.relative_to(bundle)} {_forge(play, path)}"
    try:
        said = list(Bundle(bundle).damage())
    except BundleError as error:
        said = [str(error)]
    assert said, "nobody notices"
    assert all(each.isprintable() for each in said), said
    shutil.rmtree(bundle)
    play.farm.fetch(job.id, bundle)
    assert not Bundle(bundle).damage()
    play.finish()
    play.check_success()


def _forge(play: Round, path: Path) -> str:
    """Puts something else in the place of a file; returns what was done."""
    data = bytearray(path.read_bytes())
    path.unlink()
    match play.random.randrange(5):
        case 0:
            path.symlink_to("/dev/zero")
            return "became a link to /dev/zero"
        case 1:
            os.mkfifo(path)
            return "became a pipe"
        case 2:
            path.touch()
            os.truncate(path, 2**40)
            return "became a sparse file of a terabyte"
        case 3:
            path.write_bytes(b"[" * 100_000)
            return "became nested lists"
        case _:
            position = play.random.randrange(len(data))
            data[position] ^= 1 << play.random.randrange(8)
            path.write_bytes(data)
            return f"had byte {position} changed"


def ptxas_hanging(play: Round) -> None:
    """Make ptxas hang: it is killed at its time limit, and tried at the lower level."""
    real, here = shlex.quote(str(find_toolchain().ptxas)), shlex.quote(str(play.folder))
    script = play.folder / "ptxas"
    script.write_text(
        f'#!/bin/sh\ncase "$1" in --*) exec {real} "$@";; esac\n'
        f'mv {here}/hang {here}/hung 2>/dev/null && exec sleep 600\nexec {real} "$@"\n'
    )
    script.chmod(0o755)
    play.use(FARM_PTXAS=str(script), FARM_TOOL_TIMEOUT="10s")
    play.submit()
    play.serve()
    play.moment()
    (play.folder / "hang").touch()
    play.finish()
    hung = (play.folder / "hung").exists()
    play.said = f"ptxas {'hung' if hung else 'did not run any more'}"
    play.check_success()
    lower = [each for job in play.jobs() for each in play.farm.inspect(job.id).results if each.optimisation == 1]
    assert bool(lower) == hung

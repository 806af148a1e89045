"""A PostgreSQL server of our own: in a temporary folder, on a Unix socket, gone with the process that started it."""

from __future__ import annotations

import itertools
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Self
from urllib.parse import quote

START_SECONDS = 60
FASTER_THAN_SAFE = ("fsync=off", "synchronous_commit=off", "full_page_writes=off")


PROGRAMS = ("initdb", "pg_isready", "postgres", "psql")


@cache
def binaries() -> Path | None:
    """The newest of Debian's, which are off the path, or what is on it."""
    by_version = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: float(path.parts[-2]), reverse=True)
    on_path = [Path(found).parent for found in (shutil.which("postgres"),) if found]
    folders = [*by_version, *on_path]
    return next((each for each in folders if all((each / program).exists() for program in PROGRAMS)), None)


def lacks_postgresql() -> str | None:
    return None if binaries() else "needs PostgreSQL: apt-get install postgresql"


class PostgreSQL:
    """Started by `with`; `stop` and `start` are for tests of a server that goes away."""

    def __init__(self, *, safe: bool = False) -> None:
        folder = binaries()
        assert folder is not None
        self._binaries = folder
        self._settings = () if safe else FASTER_THAN_SAFE
        self._folder = Path(tempfile.mkdtemp(prefix="farm-postgresql-"))
        # PostgreSQL refuses to run as root.
        self._user = pwd.getpwnam("postgres" if _user_exists("postgres") else "nobody") if os.getuid() == 0 else None
        self._server: subprocess.Popen[bytes] | None = None
        self._numbers = itertools.count()

    def __enter__(self) -> Self:
        if self._user is not None:
            os.chown(self._folder, self._user.pw_uid, self._user.pw_gid)
        self._run("initdb", "-D", str(self._folder / "data"), "-U", "farm", "-A", "trust", "-E", "UTF8", "--no-sync")
        try:
            self.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_error: object) -> None:
        self.stop()
        shutil.rmtree(self._folder)

    def start(self) -> None:
        """From a thread that lives on: the server ends with the one that starts it."""
        options = [part for each in self._settings for part in ("-c", each)]
        argv = ["postgres", "-D", str(self._folder / "data"), "-k", str(self._folder), "-h", "", *options]
        with (self._folder / "log").open("ab") as log:
            self._server = subprocess.Popen(self._argv(argv, "--pdeathsig=INT"), stdout=log, stderr=log, cwd="/")
        end = time.monotonic() + START_SECONDS
        while self._run("pg_isready", "-h", str(self._folder), check=False).returncode:
            if self._server.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"PostgreSQL did not start:\n{(self._folder / 'log').read_text()}")
            time.sleep(0.05)

    def stop(self) -> None:
        """Ends every connection at once; what was committed stays."""
        if self._server is not None:
            self._server.send_signal(signal.SIGINT)
            self._server.wait(START_SECONDS)
            self._server = None

    def kill(self) -> None:
        """Kill every process of the server without notice, as a loss of power does."""
        assert self._server is not None
        children = Path(f"/proc/{self._server.pid}/task/{self._server.pid}/children").read_text().split()
        self._server.kill()
        for child in children:
            with suppress(ProcessLookupError):
                os.kill(int(child), signal.SIGKILL)
        self._server.wait()
        self._server = None

    def new_database(self, template: str = "template0") -> str:
        name = f"farm_{next(self._numbers)}"
        self.execute(f"create database {name} template {template}")
        return name

    def drop_database(self, name: str) -> None:
        self.execute(f"drop database {name} with (force)")

    def execute(self, statement: str) -> None:
        """In the database `postgres`, outside of a transaction."""
        self.query(statement)

    def query(self, statement: str) -> str:
        """The output of psql without headings."""
        options = ("-h", str(self._folder), "-U", "farm", "-d", "postgres", "-qtAc", statement)
        return self._run("psql", *options).stdout

    def require_password(self, user: str, password: str) -> None:
        """A new user, the only one that is asked for its password."""
        self.execute(f"create role {user} superuser login password '{password}'")
        rules = self._folder / "data" / "pg_hba.conf"
        rules.write_text(f"local all {user} scram-sha-256\n{rules.read_text()}")
        self.execute("select pg_reload_conf()")

    def url(self, database: str, user: str = "farm") -> str:
        return f"postgresql://{user}@/{database}?host={quote(str(self._folder), safe='')}"

    def _run(self, program: str, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(self._argv([program, *arguments]), capture_output=True, text=True, cwd="/", check=False)
        assert done.returncode == 0 or not check, f"{program}: {done.stderr}"
        return done

    def _argv(self, argv: list[str], *options: str) -> list[str]:
        user = () if self._user is None else (f"--reuid={self._user.pw_uid}", f"--regid={self._user.pw_gid}")
        groups = () if self._user is None else ("--clear-groups",)
        return ["setpriv", *user, *groups, *options, str(self._binaries / argv[0]), *argv[1:]]


def _user_exists(name: str) -> bool:
    return any(each.pw_name == name for each in pwd.getpwall())

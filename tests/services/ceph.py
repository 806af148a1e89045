"""Ceph's RADOS gateway: S3 on this machine, in memory, with every daemon a child of the tests."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
import uuid
from contextlib import ExitStack
from pathlib import Path
from typing import Any

DAEMONS = ("ceph-mon", "ceph-osd", "radosgw")
TOOLS = (*DAEMONS, "ceph", "monmaptool", "radosgw-admin", "setpriv")
START_SECONDS = 60.0

# Nobody is authenticated between the daemons, which listen on the loopback only. One copy of everything. No cache in
# the gateway: after it was killed, each change of a bucket would wait 30 s for the dead one to drop its copy.
CONFIGURATION = """
[global]
fsid = {fsid}
mon host = v2:127.0.0.1:{monitor}
public addr = 127.0.0.1
cluster addr = 127.0.0.1
auth cluster required = none
auth service required = none
auth client required = none
run dir = {folder}
admin socket = {folder}/$name.asok
pid file = {folder}/$name.pid
log file = {folder}/$name.log
log to stderr = false
crash dir = {folder}/crash
osd pool default size = 1
osd pool default min size = 1
mon allow pool size one = true
osd pool default pg num = 1
osd pool default pgp num = 1
osd pool default pg autoscale mode = off
osd crush chooseleaf type = 0
mon max pg per osd = 1000
mon data = {folder}/mon
[mon]
paxos propose interval = 0.05
paxos min wait = 0.02
mon initial members = a
[osd]
osd data = {folder}/osd
osd objectstore = memstore
memstore device bytes = 2147483648
osd crush initial weight = 1
[client.rgw]
ms mon client mode = crc
rgw data = {folder}/rgw
rgw frontends = beast endpoint=127.0.0.1:{port} tcp_nodelay=1
rgw enable usage log = false
rgw cache enabled = false
rgw relaxed s3 bucket names = true
"""


def lacks_ceph() -> str | None:
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    packages = "ceph-mon ceph-osd radosgw ceph-common"
    return f"needs Ceph ({', '.join(missing)} missing): apt-get install {packages}" if missing else None


class Ceph:
    """One monitor, one disk in memory, one gateway; ended with the block."""

    access_key = "farm-tests"
    secret_key = "a-secret-of-the-tests"

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._environment = {**os.environ, "CEPH_CONF": str(folder / "ceph.conf")}
        self._monitor, self._port = _free_port(), _free_port()
        self._running = ExitStack()
        self._gateway: subprocess.Popen[bytes] | None = None

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def __enter__(self) -> Ceph:
        for name in ("mon", "osd", "rgw", "crash"):
            (self._folder / name).mkdir()
        fsid, disk = str(uuid.uuid4()), str(uuid.uuid4())
        text = CONFIGURATION.format(fsid=fsid, folder=self._folder, monitor=self._monitor, port=self._port)
        (self._folder / "ceph.conf").write_text(text)
        try:
            monmap = str(self._folder / "monmap")
            self._do("monmaptool", "--create", "--addv", "a", f"[v2:127.0.0.1:{self._monitor}]", "--fsid", fsid, monmap)
            self._do("ceph-mon", "-i", "a", "--mkfs", "--monmap", monmap)
            self._start("ceph-mon", "-f", "-i", "a")
            self._do("ceph", "osd", "new", disk)
            self._do("ceph-osd", "-i", "0", "--mkfs", "--osd-uuid", disk)
            self._start("ceph-osd", "-f", "-i", "0")
            _wait(lambda: b"1 up" in self._do("ceph", "osd", "stat"))
            self.start_gateway()
            self._make_user("farm", self.access_key, self.secret_key)
        except BaseException:
            self._running.close()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self._running.close()

    def new_user(self, name: str) -> tuple[str, str]:
        """Key and secret of a new user, who has no rights yet."""
        key, secret = f"key-of-{name}", uuid.uuid4().hex
        self._make_user(name, key, secret)
        return key, secret

    def start_gateway(self) -> None:
        self._gateway = self._start("radosgw", "-f", "-n", "client.rgw")
        _wait(self._answers)

    def kill_gateway(self) -> None:
        """Kills it like a machine that loses its power: written data stays, waiting clients get no answer."""
        assert self._gateway is not None
        self._gateway.send_signal(signal.SIGKILL)
        self._gateway.wait()

    def client(self) -> Any:
        """A client of the tests' own, which looks behind the store's back."""
        import boto3

        return boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            region_name="us-east-1",
            aws_access_key_id=self.access_key,
            aws_secret_access_key=self.secret_key,
        )

    def _make_user(self, name: str, key: str, secret: str) -> None:
        keys = ("--access-key", key, "--secret-key", secret)
        self._do("radosgw-admin", "user", "create", f"--uid={name}", f"--display-name={name}", *keys)

    def _answers(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self._port), timeout=1).close()
        except OSError:
            return False
        return True

    def _do(self, *command: str) -> bytes:
        done = subprocess.run(command, env=self._environment, capture_output=True, timeout=START_SECONDS)
        assert done.returncode == 0, f"{command}: {done.stderr.decode()}"
        return done.stdout

    def _start(self, *command: str) -> subprocess.Popen[bytes]:
        """A child that ends with the tests, however these end; to the kernel that is the thread that calls this."""
        process = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", *command],
            env=self._environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self._running.callback(process.wait)
        self._running.callback(process.kill)
        return process


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    return port


def _wait(ready: Any) -> None:
    end = time.monotonic() + START_SECONDS
    while not ready():
        assert time.monotonic() < end, "a daemon of Ceph does not start"
        time.sleep(0.05)

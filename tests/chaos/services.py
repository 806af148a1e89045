"""The servers of all rounds, started when a round first asks for them."""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from typing import Self

from tests.chaos.late import LateProcesses
from tests.chaos.work import Undisturbed, undisturbed
from tests.cluster.ray_nodes import RayNodes
from tests.services.ceph import Ceph
from tests.services.postgresql import PostgreSQL

BUCKET = "farm"


class Services:
    """Ended with the block, all of them."""

    def __init__(self) -> None:
        self._running = ExitStack()
        self.late = LateProcesses()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._running.close()

    @cached_property
    def undisturbed(self) -> Undisturbed:
        return undisturbed()

    @cached_property
    def postgresql(self) -> PostgreSQL:
        """PostgreSQL that loses no committed transaction, also when it is killed."""
        return self._running.enter_context(PostgreSQL(safe=True))

    @cached_property
    def ceph(self) -> Ceph:
        # The path of a socket may have 107 characters only.
        folder = self._running.enter_context(tempfile.TemporaryDirectory(prefix="ceph-"))
        ceph = self._running.enter_context(Ceph(Path(folder)))
        ceph.client().create_bucket(Bucket=BUCKET)
        return ceph

    @cached_property
    def nodes(self) -> RayNodes:
        """Two; their temporary files lie in a folder of their own."""
        folder = self._running.enter_context(tempfile.TemporaryDirectory(prefix="chaos-"))
        return self._running.enter_context(RayNodes(2, TMPDIR=folder))

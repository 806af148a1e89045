"""Every fault by its name, and what it needs."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass

from tests.chaos import faults, ray_faults
from tests.chaos.round import Round
from tests.chaos.services import Services
from tests.needs import lacks_ray, lacks_toolchain
from tests.services.ceph import lacks_ceph
from tests.services.postgresql import lacks_postgresql


@dataclass(frozen=True)
class Fault:
    """A round with one kind of fault."""

    play: Callable[[Round], None]
    needs: tuple[Callable[[], str | None], ...] = ()

    def lacks(self) -> str | None:
        """The requirement that this machine lacks, in words."""
        return next((lack for needs in (lacks_toolchain, *self.needs) if (lack := needs())), None)


FAULTS = {
    # First: what it leaves to end by itself does so while the others are played.
    "ray-coordinator-killed": Fault(ray_faults.ray_coordinator_killed, (lacks_ray,)),
    "coordinator-killed": Fault(faults.coordinator_killed),
    "zombie-coordinator": Fault(faults.zombie_coordinator),
    "poison-job": Fault(faults.poison_job),
    "two-versions": Fault(faults.two_versions),
    "clock-ahead": Fault(faults.clock_ahead, (lacks_postgresql,)),
    "coordinators-racing": Fault(faults.coordinators_racing),
    "ptxas-hanging": Fault(faults.ptxas_hanging),
    "byte-flipped": Fault(faults.byte_flipped),
    "blob-deleted": Fault(faults.blob_deleted),
    "record-swapped": Fault(faults.record_swapped),
    "bundle-forged": Fault(faults.bundle_forged),
    "store-full": Fault(faults.store_full, (faults.lacks_mount,)),
    "cache-full": Fault(faults.cache_full, (faults.lacks_mount, lacks_ceph)),
    "postgresql-killed": Fault(faults.postgresql_killed, (lacks_postgresql,)),
    "s3-killed": Fault(faults.s3_killed, (lacks_ceph,)),
    "worker-killed": Fault(ray_faults.worker_killed, (lacks_ray,)),
    "raylet-killed": Fault(ray_faults.raylet_killed, (lacks_ray,)),
}


@dataclass(frozen=True)
class Played:
    """Outcome of a round."""

    said: str
    in_time: bool
    """Whether there was still work to do when the fault came."""
    problem: str
    """Empty if everything held."""


def again(fault: str, seed: int) -> str:
    """The command that plays the round again."""
    return f"python -m tests.chaos --rounds 1 --seed {seed} {fault}"


def play(services: Services, fault: str, seed: int) -> Played:
    with Round(services, seed) as played:
        try:
            FAULTS[fault].play(played)
            problem = ""
        except Exception as error:  # noqa: BLE001 - whatever it is, the other rounds are played
            where = "" if isinstance(error, AssertionError) else traceback.format_exc()
            problem = f"{type(error).__name__}: {error}\n{where}{played.logs}"
        return Played(played.said, played.in_time, problem)

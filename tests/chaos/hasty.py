"""`farm` whose coordinators have a lease of a few seconds: where one dies, another takes over soon.

CHAOS_FORMAT is the job format that it reads, CHAOS_POISON the name of a job that ends it when it is planned.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from functools import partial
from typing import Any

from farm.jobs import model

LEASE_SECONDS = 4.0
BEAT_SECONDS = 0.5


def main() -> None:
    """Everything else is imported after the format is set."""
    if job_format := os.environ.get("CHAOS_FORMAT"):
        vars(model)["JOB_FORMAT"] = int(job_format)
    import farm.api
    from cli.main import main as farm_main
    from farm.scheduler import held_jobs
    from farm.scheduler.coordinator import Coordinator
    from farm.scheduler.plan import Plan, plan

    def plan_or_die(work: Sequence[Any], *others: Any) -> Plan:
        if any(job.name == os.environ.get("CHAOS_POISON") for job, _ in work):
            os.kill(os.getpid(), signal.SIGKILL)
        return plan(work, *others)

    vars(held_jobs)["plan"] = plan_or_die
    vars(farm.api)["Coordinator"] = partial(Coordinator, lease_seconds=LEASE_SECONDS, beat_seconds=BEAT_SECONDS)
    farm_main()

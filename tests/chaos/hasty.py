"""`farm` whose coordinators have a lease of a few seconds: where one dies, another takes over soon."""

from __future__ import annotations

from functools import partial

import farm.api
from cli.main import main
from farm.scheduler.coordinator import Coordinator

LEASE_SECONDS = 4.0
BEAT_SECONDS = 0.5

if __name__ == "__main__":
    vars(farm.api)["Coordinator"] = partial(Coordinator, lease_seconds=LEASE_SECONDS, beat_seconds=BEAT_SECONDS)
    main()

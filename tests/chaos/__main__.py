"""`make chaos`: faults at random moments. `python -m tests.chaos --help` has the options.

A round that fails is printed with the command that plays it again.
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
import time

from tests.chaos.catalogue import FAULTS, again, play
from tests.chaos.services import Services


def main() -> int:
    """1 if a round fails."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--rounds", type=int, default=20, help="of each fault")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6), help="of the first round")
    parser.add_argument("fault", nargs="*", help=f"all of them if none is named: {', '.join(FAULTS)}")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # servers and mounts go in order
    if unknown := set(options.fault) - set(FAULTS):
        parser.error(f"there is no fault {', '.join(sorted(unknown))}: there are {', '.join(FAULTS)}")
    failures = 0
    with Services() as services:
        for name in options.fault or FAULTS:
            if lacks := FAULTS[name].lacks():
                print(f"{name:20} skipped: {lacks}", flush=True)
                continue
            failures += play_all(services, name, range(options.seed, options.seed + options.rounds))
        if left := services.late.left():
            failures += 1
            print(f"FAILED: processes are left: {sorted(left)}", flush=True)
    return 1 if failures else 0


def play_all(services: Services, name: str, seeds: range) -> int:
    """Number of rounds that failed."""
    start, failed, in_time = time.monotonic(), 0, 0
    for seed in seeds:
        began = time.monotonic()
        played = play(services, name, seed)
        in_time += played.in_time
        seconds = time.monotonic() - began
        print(f"  {name} {seed}: {played.said}, {seconds:.1f} s{'' if played.in_time else ', too late'}", flush=True)
        if played.problem:
            failed += 1
            print(f"FAILED: {played.problem}\n  again: {again(name, seed)}", flush=True)
    each = (time.monotonic() - start) / max(1, len(seeds))
    print(
        f"{name:20} {len(seeds)} rounds, {in_time} in time, {failed} failed, {each:.1f} s each (seed {seeds.start})",
        flush=True,
    )
    return failed


if __name__ == "__main__":
    sys.exit(main())

"""One call of `farm bench`: opens the GPU, the store and the tools, measures, and keeps what was found."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from codegen.device import Device
from codegen.tiling import Accumulator
from codegen.toolchain import find_toolchain
from farm.bench.contenders import PEERS
from farm.bench.environment import environment
from farm.bench.kernels import KernelPool
from farm.bench.results import Measurement, Results, read_results, write_results
from farm.bench.roof import Peaks, peaks_of
from farm.bench.session import Rules, Session
from farm.bench.workload import Case
from farm.build import known_toolchain
from farm.errors import UsageError
from farm.ledger import open_ledger
from farm.settings import Settings
from farm.store import open_store
from farm.tuning.book import NO_RECORDS, TuningBook
from farm.tuning.files import shipped_records
from farm.tuning.record import plain_arch

Told = Callable[[Case, Sequence[Measurement], int, int], None]
"""What is told after each case: what was found, how many cases are done, how many there are."""


@dataclass(frozen=True)
class Plan:
    """How a benchmark runs."""

    peers: tuple[str, ...] = tuple(PEERS)
    seed: int = 0
    optimisation: int = 3
    accumulate: Accumulator = "float32"
    sets: int | None = None
    flops: float | None = None
    """The GPU's peak in float32, instead of what is known of it."""
    bytes_per_second: float | None = None
    file: Path | None = None
    """Where the results are kept as they come."""
    tuning: bool = True
    """Take tilings from tuning records, as farm compile does."""
    with_ptx: bool = False
    """Count and measure the kernels' PTX too."""
    resume: bool = False
    """Take from that file what it has."""

    def to_json(self) -> dict[str, Any]:
        """What shapes the measurements."""
        return {
            "peers": list(self.peers),
            "seed": self.seed,
            "optimisation": self.optimisation,
            "accumulate": self.accumulate,
            "sets": self.sets,
            "tuning": self.tuning,
        }


def benchmark(settings: Settings, cases: Sequence[Case], plan: Plan, tell: Told) -> Results:
    """Measures all cases on the GPU here.

    Raises DeviceError without a GPU, UsageError for a file that cannot be resumed; what a single contender cannot do is
    a measurement with a reason.
    """
    with Device() as device:
        facts = device.facts
        found = peaks_of(
            facts.name, facts.capability, facts.multiprocessors, facts.clock_hz, facts.memory_clock_hz, facts.bus_bits
        )
        peaks = Peaks(plan.flops or found.flops, plan.bytes_per_second or found.bytes_per_second)
        store = open_store(settings)
        toolchain = known_toolchain(find_toolchain(settings.nvcc, settings.ptxas), store)
        rules = Rules(plan.peers, peaks, plan.seed, plan.accumulate, plan.sets)
        arch, level = facts.arch, plan.optimisation
        book = tuning_book(settings, arch) if plan.tuning else NO_RECORDS
        with KernelPool(settings, store, toolchain, arch, level, with_ptx=plan.with_ptx, book=book) as pool:
            session = Session(device, pool, rules)
            here = environment(facts, peaks, toolchain, session.versions())
            results = Results(here, plan.to_json())
            if plan.resume and plan.file and plan.file.exists():
                results = resumed(read_results(plan.file), results)
            done = {each.case for each in results.measurements}  # a case is written whole
            left = [case for case in cases if case.key not in done]
            begun = len(cases) - len(left)
            if plan.file:
                write_results(plan.file, results)  # before minutes are spent: it may not be possible
            for number, (case, measured) in enumerate(zip(left, session.run(left), strict=True), begun + 1):
                kept = [each for each in results.measurements if each.case != case.key]
                results = replace(results, measurements=(*kept, *measured))
                if plan.file:
                    write_results(plan.file, results)
                tell(case, measured, number, len(cases))
    return results


def tuning_book(settings: Settings, arch: str) -> TuningBook:
    """The records for an architecture: the ledger's, and those that ship."""
    ledger = open_ledger(settings)
    try:
        return TuningBook.of(ledger.tuning.records([plain_arch(arch)]), shipped_records())
    finally:
        ledger.close()


def resumed(before: Results, now: Results) -> Results:
    """The results of an earlier run, to go on from. Raises UsageError if they were measured in another way or place."""
    for what in ("gpu", "nvcc", "ptxas", "libraries"):
        if before.environment.get(what) != now.environment.get(what):
            raise UsageError(
                f"the file was measured with {what} {before.environment.get(what)}, here it is "
                f"{now.environment.get(what)}: write to another file"
            )
    if dict(before.options) != dict(now.options):
        raise UsageError("the file was measured with other options: give the same ones, or write to another file")
    return replace(now, measurements=before.measurements)

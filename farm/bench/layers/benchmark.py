"""One run of `farm bench run`: measures cases on a GPU and keeps the results."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from codegen.ir.tiling import Accumulator
from codegen.sass.qualification import NO_QUALIFICATIONS, AssemblerChoice, Qualifications
from codegen.toolchain.tools import find_toolchain
from farm.bench.environment import environment
from farm.bench.layers.contenders import PEERS
from farm.bench.layers.results import Measurement, Results, read_results, write_results
from farm.bench.layers.roof import Peaks, peaks_of
from farm.bench.layers.session import Rules, Session
from farm.bench.layers.stored_case import StoredCase, loaded_cases, stored_cases
from farm.config.settings import Settings
from farm.cuda.device import Device
from farm.cuda.measure.kernels import KernelPool
from farm.cuda.measure.workload import Case, CaseKey
from farm.errors import UsageError
from farm.executors import open_gpu
from farm.executors.contract import Notice, no_notice
from farm.ledger import open_ledger
from farm.store import open_store
from farm.tuning.book import NO_RECORDS, TuningBook
from farm.tuning.files import shipped_records
from farm.tuning.record import TuningRecord
from farm.worker.cache_lookup import known_toolchain

Told = Callable[[CaseKey, Sequence[Measurement], int, int], None]
"""Callback after each case: its measurements, the cases done, and their total."""


@dataclass(frozen=True)
class Plan:
    """Settings of a benchmark."""

    peers: tuple[str, ...] = tuple(PEERS)
    seed: int = 0
    optimisation: int = 3
    accumulate: Accumulator = "float32"
    assembler: AssemblerChoice = "auto"
    """Assembler of the measured kernels, as for farm compile."""
    sets: int | None = None
    flops: float | None = None
    """Float32 peak of the GPU; None: the known or derived one."""
    bytes_per_second: float | None = None
    file: Path | None = None
    """File rewritten after each case."""
    tuning: bool = True
    """Take tilings from tuning records, as farm compile does."""
    with_ptx: bool = False
    """Count and measure the kernels' PTX too."""
    resume: bool = False
    """Continue from the results in `file`."""

    def to_json(self) -> dict[str, Any]:
        """Options that affect the measurements."""
        return {
            "peers": list(self.peers),
            "seed": self.seed,
            "optimisation": self.optimisation,
            "accumulate": self.accumulate,
            "assembler": self.assembler,
            "sets": self.sets,
            "tuning": self.tuning,
        }


@dataclass(frozen=True)
class CaseMeasured:
    """Event: all measurements of a case."""

    case: CaseKey
    measurements: tuple[Measurement, ...]


def benchmark(
    settings: Settings,
    cases: Sequence[Case],
    plan: Plan,
    tell: Told,
    *,
    local: bool = False,
    notice: Notice = no_notice,
) -> Results:
    """Measures cases on a GPU of the cluster or, with `local`, of this machine.

    A contender that cannot run yields a measurement with a reason. Raises DeviceError and NoWorkerError without a
    GPU, UsageError for a file that cannot be resumed.
    """
    before = read_results(plan.file) if plan.resume and plan.file and plan.file.exists() else None
    done = (
        {each.case for each in before.measurements} if before else set()
    )  # all measurements of a case are written together
    left = [case for case in cases if case.key not in done]
    results = Results({}, plan.to_json())
    number = len(cases) - len(left)
    with open_gpu(settings, local=local, notice=notice) as gpu:
        sent = stored_cases(left, open_store(settings)) if gpu.is_remote else left
        records, qualifications = _known(settings)
        work = partial(benchmark_work, cases=sent, plan=plan, records=records, qualifications=qualifications)
        for event in gpu.run(work):
            match event:
                case Results():
                    results = resumed(before, event) if before else event
                case CaseMeasured():
                    kept = [each for each in results.measurements if each.case != event.case]
                    results = replace(results, measurements=(*kept, *event.measurements))
                    number += 1
            if plan.file:
                write_results(plan.file, results)  # first before minutes are spent: writing may fail
            if isinstance(event, CaseMeasured):
                tell(event.case, event.measurements, number, len(cases))
    return results


def benchmark_work(
    settings: Settings,
    cases: Sequence[Case | StoredCase],
    plan: Plan,
    records: Sequence[TuningRecord],
    qualifications: Qualifications = NO_QUALIFICATIONS,
) -> Generator[Results | CaseMeasured, None, None]:
    """Yields the environment as empty results, then an event per case. Raises DeviceError without a GPU."""
    with Device() as device:
        facts = device.facts
        found = peaks_of(
            facts.name, facts.capability, facts.multiprocessors, facts.clock_hz, facts.memory_clock_hz, facts.bus_bits
        )
        peaks = Peaks(plan.flops or found.flops, plan.bytes_per_second or found.bytes_per_second)
        store = open_store(settings)
        toolchain = known_toolchain(find_toolchain(settings.nvcc, settings.ptxas), store)
        rules = Rules(plan.peers, peaks, plan.seed, plan.accumulate, plan.sets)
        with KernelPool(
            settings,
            store,
            toolchain,
            facts.arch,
            plan.optimisation,
            gpu=facts.name,
            with_ptx=plan.with_ptx,
            book=TuningBook.of(records, shipped_records()) if plan.tuning else NO_RECORDS,
            assembler=plan.assembler,
            qualifications=qualifications,
        ) as pool:
            session = Session(device, pool, rules)
            yield Results(environment(facts, peaks, toolchain, session.versions()), plan.to_json())
            here = loaded_cases(cases, store)
            for case, measured in zip(here, session.run(here), strict=True):
                yield CaseMeasured(case.key, tuple(measured))


def _known(settings: Settings) -> tuple[list[TuningRecord], Qualifications]:
    """Tuning records and qualifications of the ledger."""
    ledger = open_ledger(settings)
    try:
        return ledger.tuning.records(), ledger.qualifications.known()
    finally:
        ledger.close()


def resumed(before: Results, now: Results) -> Results:
    """Results of an earlier run to continue. Raises UsageError if its environment or options differ."""
    for what in ("gpu", "nvcc", "ptxas", "libraries"):
        if before.environment.get(what) != now.environment.get(what):
            raise UsageError(
                f"the file was measured with {what} {before.environment.get(what)}, here it is "
                f"{now.environment.get(what)}: write to another file"
            )
    if dict(before.options) != dict(now.options):
        raise UsageError("the file was measured with other options: give the same ones, or write to another file")
    return replace(now, measurements=before.measurements)

"""Work for a GPU that is played: what it does runs in a real Ray worker, on a machine that says it has a GPU."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

from codegen.errors import ToolError
from codegen.sass.qualification import Qualifications
from codegen.verification.compare import Verification
from farm.bench.layers.benchmark import CaseMeasured, Plan
from farm.bench.layers.contenders import GENERATED
from farm.bench.layers.results import Measurement, Results
from farm.bench.layers.stored_case import StoredCase, loaded_cases
from farm.bench.networks.cases import NetworkCase
from farm.bench.networks.session import NetworkRules
from farm.config.settings import Settings
from farm.jobs.model import Build, BuildResult
from farm.store import open_store
from farm.tuning.record import TuningRecord
from farm.tuning.search.tune import TunePlan, TuningEvent, tune_on
from farm.verify.layers import LayerVerification
from tests.tuning_samples import PlayedBuilder, PlayedRig


def gpus_here() -> str:
    """The GPUs that Ray gave to this process."""
    return f"GPU {os.environ.get('CUDA_VISIBLE_DEVICES')}"


def told(settings: Settings) -> Generator[dict[str, Any], None, None]:
    """Process, GPU and settings of a job."""
    yield {"pid": os.getpid(), "gpu": gpus_here(), "database": settings.database_url, "jobs": settings.jobs}


def held(settings: Settings, until: Path) -> Generator[int, None, None]:
    """Has the GPU until there is this file."""
    yield os.getpid()
    while not until.exists():
        time.sleep(0.02)


def killed(settings: Settings) -> Generator[str, None, None]:
    yield "first"
    os.kill(os.getpid(), signal.SIGKILL)


def failing(settings: Settings) -> Generator[str, None, None]:
    yield "first"
    raise ToolError("ptxas failed: no space is left", command="ptxas x", stderr="no space")


def broken(settings: Settings) -> Generator[str, None, None]:
    yield "first"
    raise ZeroDivisionError("a defect")


def tuning(
    settings: Settings,
    cases: Sequence[StoredCase],
    known: Sequence[TuningRecord],
    plan: TunePlan,
    qualifications: Qualifications,
) -> Generator[TuningEvent, None, None]:
    """In place of `tuning_work`."""
    rig = PlayedRig(lambda tiling: 10.0, gpu=gpus_here())
    yield from tune_on(rig, PlayedBuilder(), loaded_cases(cases, open_store(settings)), known, plan)


def benchmark(
    settings: Settings,
    cases: Sequence[StoredCase],
    plan: Plan,
    records: Sequence[TuningRecord],
    qualifications: Qualifications,
) -> Generator[Results | CaseMeasured, None, None]:
    """In place of `benchmark_work`: the time of a layer is the number of its weights that are not zero."""
    yield Results({"gpu": gpus_here()}, plan.to_json())
    for case in loaded_cases(cases, open_store(settings)):
        yield CaseMeasured(case.key, (Measurement(case.key, GENERATED, float(case.weights.nonzeros)),))


def network_environment(settings: Settings) -> Generator[dict[str, Any], None, None]:
    """In place of `environment_work`."""
    yield {"gpu": gpus_here(), "device": {"arch": "sm_90"}}


def networks(
    settings: Settings, cases: Sequence[NetworkCase], rules: NetworkRules
) -> Generator[Measurement, None, None]:
    """In place of `network_work`: the time of a network is the number of its bundle's bytes."""
    store = open_store(settings)
    for case in cases:
        yield Measurement(case.key, GENERATED, float(len(store.get(str(case.bundle)) or b"")))


def verification(
    settings: Settings, builds: Sequence[Build], results: Sequence[BuildResult], batch: int, seed: int
) -> Generator[LayerVerification, None, None]:
    """In place of `verification_work`: as many blocks as the cubins have bytes."""
    store = open_store(settings)
    for build in builds:
        cubins = [store.get(str(each.cubin)) or b"" for each in results if each.build == build.id]
        size = sum(map(len, cubins))
        yield LayerVerification(
            build.layer, len(cubins), ("sm_90",), (), gpus_here(), Verification(size, size, 1, 0.0, 0.0)
        )

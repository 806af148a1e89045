"""The results of a worker; its tools are played."""

from __future__ import annotations

import re
from typing import NoReturn

import pytest

from codegen.toolchain.tools import DEFAULT_LIMITS
from farm.errors import StoreUnavailableError
from farm.jobs.model import BuildOptions
from farm.jobs.submission import new_job
from farm.scheduler.plan import plan
from farm.store.memory import MemoryStore
from farm.worker.build import Worker
from farm.worker.cache_lookup import TEMPLATE_STAGE
from farm.worker.messages import CubinRequest, CubinResult, Failure, Fault
from tests.samples import checkpoint, fixed_toolchain, layer


def test_what_a_failed_build_found_and_made_is_told_of_it_and_not_of_the_next_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store, toolchain = MemoryStore(), fixed_toolchain()
    job = new_job(checkpoint(layer("conv1")), BuildOptions(("sm_80", "sm_90")), namespace="", name="a", store=store)
    first, second = plan([(job, job.builds)], toolchain).cubins
    worker = Worker(store, toolchain, DEFAULT_LIMITS)

    def fail(failing: Worker, request: CubinRequest) -> NoReturn:
        if request is first:
            failing._direct._made_seconds = 2.0
            failing._template(request.template)
        raise StoreUnavailableError("away")

    monkeypatch.setattr(Worker, "_machine_code", fail)
    monkeypatch.setattr(Worker, "_make_template", lambda *_: (None, 1.0))
    store.put_record(TEMPLATE_STAGE, first.template.key, {"ptx": store.put(b"no PTX")})
    told, silent = worker.build(first), worker.build(second)
    assert isinstance(told, CubinResult)
    assert re.fullmatch(r"stored template .* is damaged and was rebuilt: .*", told.warning)
    assert told.skeleton_seconds == 2.0
    assert silent == CubinResult(second.key, Failure(Fault.AWAY, "away"))

"""`farm plan` names the savings of `--trust checked` only where they are large."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cli.output.layers import trust_line
from codegen.ir.layer_spec import Conv2d
from codegen.selection.tool_time import SKELETON_SECONDS
from farm.jobs.model import BuildOptions, NewJob
from farm.jobs.submission import new_job
from farm.qualification.record import QualificationRecord, qualifications_of
from farm.reports.forecast import Forecast, forecast
from farm.reports.trust import TrustSaving, trust_savings
from farm.scheduler.plan import plan
from farm.store.memory import MemoryStore
from tests.qualification_samples import qualified
from tests.samples import checkpoint, fixed_toolchain, layer

LARGE = Conv2d(256, 14, 14, 512, 3, 3, padding=(1, 1, 1, 1))
NET = checkpoint(layer("small", seed=1), layer("large", spec=LARGE))
OPTIONS = BuildOptions(("sm_75", "sm_90"))


@pytest.fixture(autouse=True)
def _one_supported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("codegen.sass.qualification.SUPPORTED_ARCHS", ("sm_90",))


def job(options: BuildOptions) -> NewJob:
    return new_job(NET, options, namespace="test", name="net", store=None)


def found(*records: QualificationRecord, options: BuildOptions = OPTIONS) -> Forecast:
    known = qualifications_of(records)
    return forecast([job(options)], [NET], fixed_toolchain(), MemoryStore(), recache=False, qualifications=known)


def test_a_forecast_says_what_trust_in_checked_code_would_save() -> None:
    [saving] = found().trust_savings
    assert saving.arch == "sm_90"
    assert 2 * SKELETON_SECONDS < saving.checked_seconds < 3 * SKELETON_SECONDS < saving.seconds


def test_nothing_is_said_of_what_is_direct_already_wrong_or_not_wanted() -> None:
    assert found(qualified()).trust_savings == ()
    assert found(qualified(wrong=1)).trust_savings == ()
    assert found(options=replace(OPTIONS, trust="checked")).trust_savings == ()
    assert found(options=replace(OPTIONS, assembler="ptxas")).trust_savings == ()
    assert found(options=replace(OPTIONS, optimisation=1)).trust_savings == ()


def test_only_the_cubins_that_were_built_count_and_only_if_they_took_much_longer() -> None:
    one = job(OPTIONS)
    todo = plan([(one, [replace(build, id=i) for i, build in enumerate(one.builds)])], fixed_toolchain())
    keys = [request.key for request in todo.cubins if request.arch == "sm_90"]
    assert trust_savings(todo, {}) == ()
    assert trust_savings(todo, {keys[0]: 0.5}) == ()
    [saving] = trust_savings(todo, {keys[0]: 60.0})
    assert saving.seconds == 60.0
    assert saving.checked_seconds < 2 * SKELETON_SECONDS


def test_the_line_names_each_architecture_with_both_times() -> None:
    savings = [TrustSaving("sm_80", 480.0, 9.0), TrustSaving("sm_86", 300.0, 9.0)]
    assert trust_line(savings[:1]) == "sm_80 would take 9.0s instead of 8m00s with --trust checked"
    assert trust_line(savings).startswith("sm_80 would take 9.0s instead of ")
    assert ", sm_86 9.0s instead of 5m" in trust_line(savings)

"""An explanation names what differs from the nearest key, in words, or the job that made the entry found."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from codegen.ir.checkpoint import Checkpoint
from codegen.ir.tiling import Tiling
from codegen.toolchain.tools import Toolchain
from farm.errors import NotFoundError, UnfinishedError
from farm.jobs.model import BuildOptions, NewSubmission, Outcome, TilingChoice
from farm.jobs.submission import new_job
from farm.reports.explanation import NOTHING_ALIKE, Explanation, explain
from farm.scheduler.coordinator import Coordinator
from farm.store.contract import RecordName
from farm.worker.cache_lookup import CUBIN_STAGE
from farm.worker.messages import CubinRequest, Failure, Fault, Request, Result, failed
from tests.samples import SMALL, SMALLER, checkpoint, fixed_toolchain, layer
from tests.unit.farmyard import ARCHS, Farmyard, PlayedExecutor

FIRST = checkpoint(layer("conv1"), layer("conv2", spec=SMALLER))


class Explained(Farmyard):
    """Runs checkpoints as jobs and explains their builds."""

    def compile(
        self,
        model: Checkpoint,
        *,
        toolchain: Toolchain | None = None,
        options: BuildOptions | None = None,
        tiling: Tiling | None = None,
    ) -> str:
        job = new_job(model, options or BuildOptions(ARCHS), namespace="test", name=model.name, store=self.store)
        if tiling is not None:
            job = replace(job, builds=tuple(replace(build, tiling=tiling) for build in job.builds))
        self.ledger.record_submission(NewSubmission(f"s-{job.id}", "ada", (job,)))
        executor = PlayedExecutor(self.store)
        tools = toolchain or fixed_toolchain()
        Coordinator(self.ledger, self.store, executor, tools, self.settings).run([job.id])
        return job.id

    def explain(self, job_id: str, what: str) -> list[Explanation]:
        job = self.ledger.job(job_id)
        return explain(self.ledger, job, self.ledger.builds(job_id), self.ledger.results(job_id), what)


@pytest.fixture
def farm(tmp_path: Path) -> Iterator[Explained]:
    farm = Explained(tmp_path)
    yield farm
    farm.ledger.close()


def test_a_first_job_has_nothing_to_be_compared_with(farm: Explained) -> None:
    [one, two] = farm.explain(farm.compile(FIRST), "conv1")
    assert (one.arch, two.arch, one.outcome, one.nearest) == (*ARCHS, Outcome.BUILT, None)
    assert one.lines == (NOTHING_ALIKE,)


def test_changed_weights_are_named_and_the_layer_of_the_same_name_is_the_nearest(farm: Explained) -> None:
    twin = layer("twin", seed=5)
    first = farm.compile(checkpoint(layer("conv1"), twin))
    job_id = farm.compile(checkpoint(layer("conv1", seed=1), twin, name="second"))
    [found] = farm.explain(job_id, "conv1/sm_90")
    assert found.nearest is not None
    assert (found.nearest.job, found.nearest.layer, found.nearest.arch) == (first, "conv1", "sm_90")
    assert list(found.differences) == ["weights"]
    before, now = found.differences["weights"]
    assert found.lines == (f"the weights changed ({before[:8]} -> {now[:8]})", "the template was there")


def test_a_layer_of_another_network_is_not_compared(farm: Explained) -> None:
    farm.compile(checkpoint(layer("conv1"), name="first"))
    other = farm.compile(checkpoint(layer("features.0", spec=SMALLER, seed=7), name="other"))
    same_name = farm.compile(checkpoint(layer("conv1", spec=SMALLER, seed=8), layer("fc", seed=9), name="third"))
    [found] = farm.explain(other, "features.0/sm_90")
    assert (found.nearest, found.differences, found.lines) == (None, {}, (NOTHING_ALIKE,))
    [of_template] = farm.explain(same_name, "conv1/sm_90")  # of another shape than the conv1 before it
    assert of_template.nearest is not None
    assert (of_template.nearest.layer, list(of_template.differences)) == ("features.0", ["weights"])


def test_another_data_type_of_the_same_layer_is_named(farm: Explained) -> None:
    farm.compile(FIRST)
    half = layer("conv1", spec=replace(SMALL, data_type="float16"), seed=3)
    [found] = farm.explain(farm.compile(checkpoint(half, name="half")), "conv1/sm_90")
    assert "template.spec.data_type" in found.differences


def test_a_newer_ptxas_is_named_with_both_versions(farm: Explained) -> None:
    farm.compile(FIRST)
    [found] = farm.explain(farm.compile(FIRST, toolchain=fixed_toolchain(ptxas="13.1.0")), "conv1/sm_80")
    assert found.lines[0] == "ptxas: 13.0.88 -> 13.1.0"
    assert list(found.differences) == ["assembler"]


def test_what_changed_in_the_template_is_named_field_by_field(farm: Explained) -> None:
    farm.compile(FIRST)
    [found] = farm.explain(farm.compile(FIRST, toolchain=fixed_toolchain(nvcc="13.1.0")), "conv1/sm_80")
    assert found.lines == ("nvcc: 13.0.88 -> 13.1.0", "the template was made too, in 1.5 s of nvcc")
    tiling = replace(farm.ledger.builds(farm.ledger.job("latest").id)[0].tiling, rows=2)
    [found] = farm.explain(farm.compile(checkpoint(layer("conv1")), tiling=tiling), "conv1/sm_80")
    assert "template.tiling.rows" in found.differences
    assert any(line.startswith("the tiling's rows: ") and line.endswith(" -> 2") for line in found.lines)


def test_other_options_of_ptxas_are_named(farm: Explained) -> None:
    farm.compile(FIRST)
    [found] = farm.explain(farm.compile(FIRST, options=BuildOptions(ARCHS, optimisation=1)), "conv1/sm_80")
    assert list(found.differences) == ["options"]
    assert found.lines[0].startswith("the options of ptxas: ")


def test_another_architecture_is_named(farm: Explained) -> None:
    farm.compile(FIRST)
    [found] = farm.explain(farm.compile(FIRST, options=BuildOptions(("sm_120",))), "conv1")
    assert found.lines[0] in ("the architecture: sm_80 -> sm_120", "the architecture: sm_90 -> sm_120")


def test_the_newest_of_equally_near_keys_is_compared(farm: Explained) -> None:
    farm.compile(FIRST)
    second = farm.compile(checkpoint(layer("conv1", seed=1)))
    [found] = farm.explain(farm.compile(checkpoint(layer("conv1", seed=2))), "conv1/sm_80")
    assert found.nearest is not None
    assert found.nearest.job == second


def test_later_jobs_explain_nothing(farm: Explained) -> None:
    first = farm.compile(FIRST)
    second = farm.compile(checkpoint(layer("conv1", seed=1), name="second"))
    farm.compile(checkpoint(layer("conv1"), name="third"))
    [found] = farm.explain(second, "conv1/sm_80")
    assert found.nearest is not None
    assert found.nearest.job == first
    assert farm.explain(first, "conv1/sm_80")[0].nearest is None


def test_a_hit_names_the_job_that_built_it(farm: Explained) -> None:
    first = farm.compile(FIRST)
    [found] = farm.explain(farm.compile(checkpoint(layer("renamed"), name="other")), "renamed/sm_90")
    assert found.outcome is Outcome.HIT
    assert found.lines == (f"job {first} (net) built it for its layer conv1",)


def test_a_hit_within_a_job_names_the_layer(farm: Explained) -> None:
    found = farm.explain(farm.compile(checkpoint(layer("one"), layer("same"))), "same/sm_80")
    assert found[0].lines == ("one of this job has the same shape and weights, and was built",)


def test_a_hit_whose_maker_is_forgotten_says_so(farm: Explained) -> None:
    farm.compile(FIRST)
    job_id = farm.compile(checkpoint(layer("conv1"), name="other"))
    farm.ledger.forget_results(farm.ledger.jobs()[-1].id)
    assert farm.explain(job_id, "conv1/sm_80")[0].lines == ("the job that built it is no longer in the ledger",)


def test_a_cubin_that_the_store_lost_is_no_riddle(farm: Explained) -> None:
    first = farm.compile(FIRST)
    [result, *_] = farm.ledger.results(first)
    farm.store.remove_records([RecordName(CUBIN_STAGE, result.cubin_key)])
    again = farm.compile(replace(FIRST, name="again", digest="12" * 32))
    found = {each.arch: each for each in farm.explain(again, "conv1")}
    assert found["sm_90"].outcome is Outcome.HIT
    assert found["sm_80"].lines[0].startswith(f"{first} had built the very same cubin: since then the store has lost")


def test_a_failure_is_told(farm: Explained) -> None:
    def refuse(request: Request) -> Result | None:
        return failed(request, Failure(Fault.INPUT, "too large")) if isinstance(request, CubinRequest) else None

    [job_id] = farm.submit("fails")
    farm.run([job_id], refuse)
    [found] = farm.explain(job_id, "conv1/sm_80")
    assert (found.outcome, found.lines[-1]) == (Outcome.FAILED, "it failed: too large")


def test_a_name_with_slashes_is_a_layer_and_what_is_none_is_said(farm: Explained) -> None:
    job_id = farm.compile(checkpoint(layer("/features/0/Conv")))
    assert len(farm.explain(job_id, "/features/0/Conv")) == 2
    assert len(farm.explain(job_id, "/features/0/Conv/sm_80")) == 1
    with pytest.raises(NotFoundError, match=r"no layer 'conv9': farm inspect"):
        farm.explain(job_id, "conv9")
    with pytest.raises(NotFoundError, match="was not for sm_75: its architectures are sm_80, sm_90"):
        farm.explain(job_id, "/features/0/Conv/sm_75")


def test_a_layer_that_architectures_have_different_tilings_of_is_explained_for_each(farm: Explained) -> None:
    made = new_job(FIRST, BuildOptions(ARCHS), namespace="test", name="tuned", store=farm.store)
    first, *others = made.builds
    second = replace(first, tiling=replace(first.tiling, rows=2), choices=(TilingChoice("sm_90", "NVIDIA H200"),))
    first = replace(first, choices=(TilingChoice("sm_80"),))
    tuned = replace(made, builds=(first, second, *others))
    farm.ledger.record_submission(NewSubmission("s-tuned", "ada", (tuned,)))
    farm.run([tuned.id])
    assert [(each.arch, each.outcome) for each in farm.explain(tuned.id, "conv1")] == [
        ("sm_80", Outcome.BUILT),
        ("sm_90", Outcome.BUILT),
    ]
    for arch in ARCHS:
        assert [each.arch for each in farm.explain(tuned.id, f"conv1/{arch}")] == [arch]


def test_each_batch_size_with_cubins_of_its_own_is_explained(farm: Explained) -> None:
    made = new_job(FIRST, BuildOptions(("sm_90",), (1, 64)), namespace="test", name="several", store=farm.store)
    farm.ledger.record_submission(NewSubmission("s-several", "ada", (made,)))
    farm.run([made.id])
    assert [each.batches for each in farm.explain(made.id, "conv1/sm_90")] == [(1,), (64,)]


def test_a_build_that_nothing_looked_for_has_no_explanation(farm: Explained) -> None:
    [job_id] = farm.submit("waits")
    with pytest.raises(UnfinishedError, match=r"nothing is known of conv1 yet: job .* is PENDING"):
        farm.explain(job_id, "conv1")

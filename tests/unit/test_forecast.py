"""A forecast says what a compile would make and find, and how much of a model is compiled."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from codegen.ir.checkpoint import Layer, Weights
from codegen.ir.layer_spec import Conv2d, ConvTranspose2d, Linear, SkippedLayer
from codegen.selection.choose import choose_tiling
from codegen.selection.tool_time import DIRECT_SECONDS, SKELETON_SECONDS, nvcc_seconds, ptxas_seconds
from farm.jobs.model import BuildOptions, NewJob, NewSubmission
from farm.jobs.submission import new_job
from farm.reports.coverage import coverage_of
from farm.reports.forecast import Forecast, forecast
from farm.scheduler.coordinator import Coordinator
from farm.scheduler.plan import Plan, plan
from farm.store.memory import MemoryStore
from farm.worker.cache_lookup import PATCH_STAGE
from farm.worker.direct import SKELETON_STAGE, skeleton_key_of
from tests.samples import SMALL, SMALLER, checkpoint, fixed_toolchain, layer
from tests.unit.farmyard import Farmyard, PlayedExecutor

OPTIONS = BuildOptions(("sm_80", "sm_90"))
NET = checkpoint(layer("conv1"), layer("conv2", spec=SMALLER))


def job(options: BuildOptions = OPTIONS, store: MemoryStore | None = None) -> NewJob:
    return new_job(NET, options, namespace="test", name="net", store=store)


def found(store: MemoryStore, options: BuildOptions = OPTIONS, *, times: int = 1, recache: bool = False) -> Forecast:
    jobs = [job(options=options) for _ in range(times)]
    return forecast(jobs, [NET] * times, fixed_toolchain(), store, recache=recache)


def jobs_plan(options: BuildOptions) -> Plan:
    """The plan that a coordinator would make of the job."""
    one = job(options=options)
    return plan([(one, [replace(build, id=i) for i, build in enumerate(one.builds)])], fixed_toolchain())


def test_an_empty_store_has_nothing_and_all_is_to_be_made() -> None:
    store = MemoryStore()
    plan = found(store)
    assert (plan.templates_to_make, plan.templates_there) == (2, 0)
    assert (plan.cubins_to_make, plan.cubins_there) == (4, 0)
    assert plan.nvcc_seconds is not None
    assert plan.nvcc_seconds > 0
    assert plan.ptxas_seconds == pytest.approx(sum(each.ptxas_seconds for each in plan.models[0].layers))
    assert plan.code_bytes == sum(each.code_bytes * len(each.archs) for each in plan.models[0].layers)
    assert list(store.blobs()) == []


def test_what_a_job_has_built_is_found_in_the_store_unless_the_store_is_not_believed(tmp_path: Path) -> None:
    yard = Farmyard(tmp_path)
    built = job(options=BuildOptions(("sm_80",)), store=yard.store)
    yard.ledger.record_submission(NewSubmission("s", "ada", (built,)))
    executor = PlayedExecutor(yard.store)
    Coordinator(yard.ledger, yard.store, executor, fixed_toolchain(), yard.settings).run([built.id])
    plan = found(yard.store)
    assert (plan.templates_to_make, plan.templates_there) == (0, 2)
    assert (plan.cubins_to_make, plan.cubins_there) == (2, 2)
    assert plan.nvcc_seconds == 0
    empty = found(MemoryStore())
    assert empty.saved_seconds == 0
    assert plan.total_seconds + plan.saved_seconds == pytest.approx(empty.total_seconds)
    assert [(each.cubins, each.cubins_there, each.template_there) for each in plan.models[0].layers] == [
        (2, 1, True)
    ] * 2
    assert found(yard.store, recache=True).cubins_there == 0
    [blob, *_] = [each.digest for each in yard.store.blobs() if each.size_bytes == 64]
    yard.store.remove_blobs([blob], 0)
    lost = found(yard.store)
    assert lost.templates_there + lost.cubins_there == 3  # a record without its blob counts as none
    yard.ledger.close()


def test_what_several_models_share_is_made_once() -> None:
    one, two = found(MemoryStore()), found(MemoryStore(), times=2)
    assert len(two.models) == 2
    assert replace(two, models=one.models) == one


def test_a_template_of_the_full_form_has_no_predicted_time() -> None:
    assert found(MemoryStore(), replace(OPTIONS, form="full")).nvcc_seconds is None


def test_what_is_assembled_directly_takes_the_assemblers_time_and_ptxas_its_skeletons_once() -> None:
    store, direct = MemoryStore(), BuildOptions(("sm_90",), assembler="direct")
    plan = found(store, direct, times=2)
    by_ptxas = found(store, replace(direct, assembler="ptxas"))
    assert by_ptxas.assembler_seconds == 0
    assert 2 * DIRECT_SECONDS < plan.assembler_seconds < by_ptxas.ptxas_seconds + 2 * DIRECT_SECONDS
    assert (plan.ptxas_seconds, plan.skeleton_seconds) == (0, 2 * SKELETON_SECONDS)
    layers = plan.models[0].layers
    assert [(layer.ptxas_seconds, layer.skeleton_seconds) for layer in layers] == [(0, SKELETON_SECONDS)] * 2
    first, second = jobs_plan(direct).cubins
    store.put_record(SKELETON_STAGE, skeleton_key_of(first, fixed_toolchain()), {"cubin": "ab" * 32})
    assert found(store, direct).skeleton_seconds == SKELETON_SECONDS
    store.put_record(SKELETON_STAGE, skeleton_key_of(second, fixed_toolchain()), {"refused": "a reason"})
    refused = found(store, direct)
    assert sorted(layer.ptxas_seconds > 0 for layer in refused.models[0].layers) == [False, True]
    assert refused.ptxas_seconds in [layer.ptxas_seconds for layer in by_ptxas.models[0].layers]


def test_of_checkpoints_with_one_mask_all_but_the_first_are_patched_and_all_if_the_store_has_its_code() -> None:
    store, doubled = MemoryStore(), replace(NET, layers=tuple(map(with_doubled_weights, NET.layers)))
    jobs = [new_job(net, OPTIONS, namespace="test", name="net", store=None) for net in (NET, doubled)]
    of_both = forecast(jobs, [NET, doubled], fixed_toolchain(), store, recache=False)
    assert (of_both.cubins_to_make, of_both.cubins_patched) == (8, 4)
    assert [[layer.cubins_patched for layer in model.layers] for model in of_both.models] == [[0, 0], [2, 2]]
    assert of_both.ptxas_seconds == found(store).ptxas_seconds
    first, second, *_ = jobs_plan(OPTIONS).cubins
    code = store.put(b"code")
    store.put_record(PATCH_STAGE, first.patch_template, {"cubin": code})
    store.put_record(PATCH_STAGE, second.patch_template, {"refused": "a reason"})
    assert found(store).cubins_patched == 1
    assert found(store, recache=True).cubins_patched == 0


def with_doubled_weights(one: Layer) -> Layer:
    return replace(one, weights=Weights(2 * one.weights.kernel, 2 * one.weights.bias))


def test_a_coordinator_plans_direct_code_with_the_assemblers_time() -> None:
    direct = jobs_plan(BuildOptions(("sm_90",), assembler="direct"))
    assert all(DIRECT_SECONDS < request.seconds < 2 * DIRECT_SECONDS for request in direct.cubins)


def test_more_code_takes_ptxas_longer_and_a_low_level_shorter() -> None:
    short, long = 4000.0, 16000.0
    assert ptxas_seconds(SMALL, short, 3) < ptxas_seconds(SMALL, long, 3)
    assert ptxas_seconds(SMALL, long, 1) < ptxas_seconds(SMALL, long, 3)
    assert ptxas_seconds(replace(SMALL, data_type="float16"), long, 3) > ptxas_seconds(SMALL, long, 3)
    sparse = layer().weights.nonzeros_per_output
    assert (nvcc_seconds(SMALL, choose_tiling(SMALL, 64, sparse)) or 0) > 0


@pytest.mark.parametrize(
    ("spec", "multiply_adds"),
    [
        (Conv2d(3, 8, 8, 4, 3, 3, padding=(1, 1, 1, 1)), 108 * 64),
        (Conv2d(4, 8, 8, 4, 3, 3, stride=(2, 2), groups=2), 72 * 9),
        (ConvTranspose2d(3, 8, 8, 4, 2, 2, stride=(2, 2)), 48 * 64),
        (Linear(10, 5), 50),
    ],
)
def test_a_layer_has_a_multiply_add_for_each_weight_and_position(
    spec: Conv2d | ConvTranspose2d | Linear, multiply_adds: int
) -> None:
    assert spec.multiply_adds == multiply_adds


def test_a_models_coverage_counts_what_is_skipped_as_far_as_that_is_known() -> None:
    builds = job().builds
    [first, second] = builds
    weights = first.spec.weights_count + second.spec.weights_count
    multiply_adds = first.spec.multiply_adds + second.spec.multiply_adds
    again = replace(first, choices=())  # the same layer, for another architecture
    all_of_it = coverage_of([first, again, second], ())
    assert (all_of_it.compiled, all_of_it.weights, all_of_it.multiply_adds) == (2, weights, multiply_adds)
    assert all_of_it.share_of_weights(all_of_it.weights) == 1
    skipped = (
        SkippedLayer("fc", "Gemm", "too large", weights, 3 * multiply_adds),
        SkippedLayer("lstm", "LSTM", "not compiled"),
    )
    part = coverage_of(builds, skipped)
    assert part.share_of_weights(part.weights) == pytest.approx(1 / 2)
    assert part.share_of_multiply_adds(part.multiply_adds) == pytest.approx(1 / 4)
    assert (part.skipped, part.of_unknown_size) == (2, 1)


def test_the_rows_of_a_linear_layer_are_multiplied_each() -> None:
    net = checkpoint(replace(layer("fc", spec=Linear(16, 8)), rows=197))
    builds = new_job(net, OPTIONS, namespace="test", name="net", store=None).builds
    assert coverage_of(builds, ()).multiply_adds == 16 * 8 * 197

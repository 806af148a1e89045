"""The farm on one machine with the real tools, from a checkpoint to a bundle."""

from __future__ import annotations

import json
import multiprocessing
import re
from collections.abc import Iterator
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
from jsonschema import Draft202012Validator

from codegen.ir.checkpoint import Weights
from codegen.ir.layer_spec import Conv2d, SkippedLayer
from codegen.sass.isa.opcodes import OPCODES
from farm.api import Farm
from farm.config.settings import Settings
from farm.errors import BlobLostError, UnfinishedError, UsageError
from farm.jobs.model import BuildOptions, Job, Outcome, Status
from farm.store import open_store
from farm.testing import laptop_farm
from farm.worker.cache_lookup import TEMPLATE_STAGE
from tests.samples import SMALLER, checkpoint, layer
from tests.services.meeting import BARRIER, will_meet
from tests.toolchain.tools import NET, OPTIONS, REFUSAL, Tools
from tests.verifications import assert_right


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Farm, Job]]:
    """One finished job, for tests that only look."""
    net = replace(NET, skipped=(SkippedLayer("fc1", "Gemm", "fully connected layers are not compiled"),))
    with laptop_farm(tmp_path_factory.mktemp("farm")) as farm:
        [job] = farm.compile([net], BuildOptions(("sm_75", "sm_90")))
        yield farm, job


def test_the_same_checkpoint_again_runs_no_tool(farm: Farm, tools: Tools) -> None:
    [first] = farm.compile([NET], OPTIONS)
    assert (first.status, first.hits, first.done) == (Status.SUCCEEDED, 0, 4)
    assert tools.calls() == ["nvcc"] * 2 + ["ptxas"] * 4
    [second] = farm.compile([NET], OPTIONS)
    assert (second.status, second.hits, second.done) == (Status.SUCCEEDED, 4, 4)
    assert tools.calls() == []


def test_new_weights_in_an_old_shape_need_ptxas_only_and_unchanged_layers_nothing(farm: Farm, tools: Tools) -> None:
    farm.compile([NET], OPTIONS)
    tools.calls()
    trained = checkpoint(layer("conv1"), layer("conv2", spec=SMALLER, seed=1))
    [job] = farm.compile([trained], OPTIONS)
    assert (job.status, job.hits) == (Status.SUCCEEDED, 2)
    assert tools.calls() == ["ptxas"] * 2


def test_another_architecture_of_the_same_generation_of_ptx_needs_ptxas_only(farm: Farm, tools: Tools) -> None:
    farm.compile([NET], OPTIONS)
    tools.calls()
    farm.compile([NET], replace(OPTIONS, archs=("sm_120",)))
    assert tools.calls() == ["ptxas"] * 2


def test_layers_whose_weights_are_the_same_bytes_in_other_shapes_are_not_mixed_up(farm: Farm) -> None:
    data = np.random.default_rng(0).standard_normal(18, dtype=np.float32).tobytes()
    specs = Conv2d(8, 4, 4, 2, 1, 1), Conv2d(5, 4, 4, 3, 1, 1)  # 2 x 8 weights and 2 biases, 3 x 5 and 3
    net = checkpoint(
        *(replace(layer(f"conv{i}", spec), weights=Weights.from_bytes(spec, data)) for i, spec in enumerate(specs))
    )
    [job] = farm.compile([net], BuildOptions(("sm_90",)))
    assert job.status is Status.SUCCEEDED, job.reason
    assert_right(farm.verify(job.id))


def test_verify_runs_machine_code_for_the_architecture_whose_words_it_knows(farm: Farm) -> None:
    [job] = farm.compile([NET], BuildOptions(("sm_75", "sm_80", "sm_90", "sm_88")))
    found = list(farm.verify(job.id))
    assert {(each.archs, each.where, each.ptx_because) for each in found} == {
        (("sm_75",), "machine code", ""),
        (("sm_80",), "machine code", ""),
        (("sm_90",), "machine code", ""),
        (("sm_88",), "emulator", "machine code of sm_88 is not emulated"),
    }
    assert_right(found)


def test_verify_finds_a_cubin_of_another_layer(farm: Farm) -> None:
    [job] = farm.compile([checkpoint(layer("conv1"), layer("conv2", seed=1))], BuildOptions(("sm_90",)))
    one, other = farm.inspect(job.id).results
    farm._ledger.record_results([replace(one, cubin=other.cubin)])
    assert [each.verification.ok for each in farm.verify(job.id)] == [False, True]


def test_verify_runs_ptx_where_the_emulator_or_the_hazard_checker_does_not_know_a_word_and_says_so(
    farm: Farm, monkeypatch: pytest.MonkeyPatch
) -> None:
    [job] = farm.compile([checkpoint(layer())], BuildOptions(("sm_90",)))
    known = next(each for each in OPCODES.values() if each.name == "FFMA")
    unknown = {
        "does not know the instruction": {known.number: replace(known, understood=None)},
        "cannot be checked: word .*: FFMA with unknown bits": {known.number: replace(known, understood=(), fixed=(1,))},
        "has the unknown opcode 0x.23 of sm_90": {},
    }
    for reason, row in unknown.items():
        with monkeypatch.context() as patch:
            patch.delitem(OPCODES, known.number)
            for number, opcode in row.items():
                patch.setitem(OPCODES, number, opcode)
            [found] = farm.verify(job.id)
        assert_right([found])
        assert found.where == "emulator"
        assert re.search(reason, found.ptx_because)


def test_a_lost_or_truncated_cubin_is_made_again(farm: Farm, tools: Tools, tmp_path: Path) -> None:
    [job] = farm.compile([NET], OPTIONS)
    tools.calls()
    lost, truncated, *_ = [blob_of(tmp_path, str(each.cubin)) for each in farm.inspect(job.id).results]
    lost.unlink()
    truncated.write_bytes(b"\x7fELF")
    [job] = farm.compile([NET], OPTIONS)
    assert (job.status, job.hits) == (Status.SUCCEEDED, 2)
    assert tools.calls() == []  # the store has the code of their masks
    farm.fetch(job.id, tmp_path / "out")


def test_a_flipped_bit_in_a_cubin_is_found_by_fetch_and_made_again_by_the_next_compile(
    farm: Farm, tools: Tools, tmp_path: Path
) -> None:
    [job] = farm.compile([NET], OPTIONS)
    tools.calls()
    [damaged, *_] = [blob_of(tmp_path, str(each.cubin)) for each in farm.inspect(job.id).results]
    right = damaged.read_bytes()
    damaged.write_bytes(right[:-1] + bytes([right[-1] ^ 1]))
    with pytest.raises(BlobLostError, match=r"has lost the cubin conv1 .*: run farm compile again$"):
        farm.fetch(job.id, tmp_path / "out")
    [job] = farm.compile([NET], OPTIONS)
    assert (job.status, job.hits) == (Status.SUCCEEDED, 3)
    assert tools.calls() == []  # the store has the code of its mask
    farm.fetch(job.id, tmp_path / "out")
    assert damaged.read_bytes() == right


def blob_of(folder: Path, digest: str) -> Path:
    return folder / "store" / "v1" / "cas" / digest[:2] / digest


def test_a_template_that_was_lost_is_made_again_where_it_is_needed(farm: Farm, tools: Tools, tmp_path: Path) -> None:
    farm.compile([NET], OPTIONS)
    tools.calls()
    for record in (tmp_path / "store" / "v1" / "ac" / "template").rglob("*.json"):
        record.unlink()
    [job] = farm.compile([NET], replace(OPTIONS, archs=("sm_80", "sm_120")))
    assert (job.status, job.hits) == (Status.SUCCEEDED, 2)
    assert tools.calls() == ["nvcc"] * 2 + ["ptxas"] * 2


@pytest.mark.slow
@pytest.mark.parametrize(
    "text", [b"\xff\xfe", b"no template", b'// farm.template {"spec": {}}\n', b"one that lost its placeholders"]
)
def test_a_stored_template_that_cannot_be_used_is_made_again_and_the_log_says_so(
    text: bytes, farm: Farm, settings: Settings, tools: Tools
) -> None:
    farm.compile([NET], OPTIONS)
    tools.calls()
    store = open_store(settings)
    for stored in [each for each in store.records() if each.stage == TEMPLATE_STAGE]:
        record = store.get_record(TEMPLATE_STAGE, stored.key) or {}
        whole = store.get(record["ptx"]) or b""
        blob = store.put(whole.replace(b"fma.rn.f32", b"mul.rn.f32") if b"lost" in text else text)
        store.put_record(TEMPLATE_STAGE, stored.key, {**record, "ptx": blob})
    other = replace(OPTIONS, archs=("sm_80", "sm_120"))
    [job] = farm.compile([NET], other)
    assert (job.status, job.hits) == (Status.SUCCEEDED, 2)
    assert tools.calls() == ["nvcc"] * 2 + ["ptxas"] * 2
    warned = [event.text for event in farm.logs(job.id) if event.level == "warning"]
    # What is no text at all is no template to anybody; the others only the worker reads.
    told = [] if text.startswith(b"\xff") else ["conv1 sm_120", "conv2 sm_120"]
    assert sorted(each.partition(": stored template")[0] for each in warned) == told
    [again] = farm.compile([NET], replace(OPTIONS, archs=("sm_75", "sm_90", "sm_120")))
    assert again.status is Status.SUCCEEDED
    assert [event for event in farm.logs(again.id) if event.level == "warning"] == []


def test_verification_says_how_to_replace_a_stored_template_that_cannot_be_used(farm: Farm, settings: Settings) -> None:
    [job] = farm.compile([NET], OPTIONS)
    store = open_store(settings)
    for stored in [each for each in store.records() if each.stage == TEMPLATE_STAGE]:
        store.put_record(TEMPLATE_STAGE, stored.key, {"ptx": store.put(b"no template")})
    assert all("FARM_RECACHE=1" in each.verification.message for each in farm.verify(job.id))
    with Farm.open(replace(settings, recache=True)) as again:
        again.compile([NET], OPTIONS)
    assert_right(farm.verify(job.id))


def test_full_and_rolled_templates_are_kept_apart(farm: Farm, tools: Tools) -> None:
    farm.compile([NET], OPTIONS)
    tools.calls()
    [job] = farm.compile([NET], replace(OPTIONS, form="full"))
    assert (job.status, job.hits) == (Status.SUCCEEDED, 0)
    assert tools.calls() == ["nvcc"] * 2 + ["ptxas"] * 4


def test_a_job_that_has_not_run_cannot_be_fetched(farm: Farm, tmp_path: Path) -> None:
    submission = farm.submit([NET], OPTIONS)
    with pytest.raises(UnfinishedError, match="PENDING"):
        farm.fetch(submission.jobs[0].id, tmp_path / "out")


def test_a_submission_that_is_pending_is_taken_up_by_the_same_compile(farm: Farm) -> None:
    [pending] = farm.submit([NET], OPTIONS).jobs
    [job] = farm.compile([NET], OPTIONS)
    assert (job.id, job.status) == (pending.id, Status.SUCCEEDED)


def test_strict_submits_nothing_that_has_a_skipped_layer(farm: Farm) -> None:
    net = replace(NET, skipped=(SkippedLayer("fc1", "Gemm", "not compiled"),))
    with pytest.raises(UsageError, match=r"fc1 \(Gemm\): not compiled"):
        farm.submit([net], replace(OPTIONS, strict=True))
    assert farm.jobs() == []


def test_the_bundle_of_a_real_job_keeps_to_the_schema(compiled: tuple[Farm, Job], tmp_path: Path) -> None:
    farm, job = compiled
    manifest = json.loads(farm.fetch(job.id, tmp_path / "out").read_text())
    Draft202012Validator(json.loads(files("farm.bundle").joinpath("manifest.schema.json").read_text())).validate(
        manifest
    )
    assert manifest["toolchain"] == {"nvcc": "13.0.88", "ptxas": "13.0.88"}
    for name in ("conv1", "conv2"):
        for arch in ("sm_75", "sm_90"):
            assert (tmp_path / "out" / name / f"{arch}.cubin").read_bytes().startswith(b"\x7fELF")


def test_every_layer_is_verified_once_for_each_virtual_architecture(compiled: tuple[Farm, Job]) -> None:
    farm, job = compiled
    found = list(farm.verify(job.id))
    assert [(each.layer, each.archs, each.verification.ok) for each in found] == [
        ("conv1", ("sm_75",), True),
        ("conv1", ("sm_90",), True),
        ("conv2", ("sm_75",), True),
        ("conv2", ("sm_90",), True),
    ]
    assert all(each.verification.blocks_run == each.verification.blocks_total > 0 for each in found)


def test_verification_notices_a_kernel_that_is_not_the_one_assembled(tmp_path: Path) -> None:
    with laptop_farm(tmp_path) as farm:
        [job] = farm.compile([checkpoint(layer())], BuildOptions(("sm_90",)))
        [result] = farm.inspect(job.id).results
        farm._ledger.record_results([replace(result, ptx="00" * 32)])
        [found] = farm.verify(job.id)
    assert not found.verification.ok
    assert "run farm compile again" in found.verification.message


def test_a_job_tells_of_its_layers_in_order_with_all_that_ptxas_reports(compiled: tuple[Farm, Job]) -> None:
    farm, job = compiled
    detail = farm.inspect(job.id)
    assert list(dict.fromkeys(build.layer for build in detail.builds)) == ["conv1", "conv2"]
    built = [(build.layer, result.arch) for build in detail.builds for result in detail.results_of(build)]
    assert sorted(built) == [(layer, arch) for layer in ("conv1", "conv2") for arch in ("sm_75", "sm_90")]
    for build in detail.builds:
        for result in detail.results_of(build):
            assert result.outcome is Outcome.BUILT
            assert result.fmas_kept == build.nonzeros * build.tiling.rows
            assert min(result.registers, result.cubin_bytes, result.ptxas_seconds, result.template_seconds) > 0
    assert [each.name for each in detail.job.skipped] == ["fc1"]


def test_the_log_tells_of_templates_cubins_and_the_end(compiled: tuple[Farm, Job]) -> None:
    farm, job = compiled
    texts = [event.text for event in farm.logs(job.id)]
    assert texts[0] == "planned: 4 templates, 4 cubins"
    assert sum("made in" in text for text in texts) == 4
    assert any(text.startswith("conv2 sm_90: built") for text in texts)
    assert texts[-1] == "succeeded"
    assert farm.logs(job.id, farm.logs(job.id)[-2].id)[0].text == "succeeded"


def test_only_layers_without_weights_are_warned_of(farm: Farm) -> None:
    empty = layer("empty", sparsity=1.0)
    [warning] = farm.submit([checkpoint(layer("sparse"), empty)], OPTIONS).warnings
    assert "only zeros" in warning
    assert "empty" in warning
    assert "sparse" not in warning


def test_the_doctor_finds_nothing_wrong_and_uses_every_part(farm: Farm) -> None:
    found = {check.name: check for check in farm.doctor()}
    assert {"toolchain", "compile", "store", "database", "executor"} <= found.keys()
    assert [check.text for check in found.values() if not check.ok] == []


def test_the_doctor_says_what_is_wrong_and_the_way_out(settings: Settings, tools: Tools) -> None:
    tools.refuse(REFUSAL)
    with Farm.open(settings) as farm:
        wrong = [check for check in farm.doctor() if not check.ok]
    assert [check.name for check in wrong] == ["compile"]
    assert REFUSAL in wrong[0].text
    assert wrong[0].way_out


def test_a_job_that_is_fully_cached_starts_no_process_at_all(
    farm: Farm, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    farm.compile([NET], OPTIONS)

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a process was started")

    monkeypatch.setattr("subprocess.Popen", refuse)
    with Farm.open(settings) as again:
        (job,) = again.compile([NET], OPTIONS)
    assert (job.status, job.hits) == (Status.SUCCEEDED, job.total)


def test_a_tool_whose_file_changed_is_asked_again(farm: Farm, settings: Settings, tools: Tools) -> None:
    before = farm.toolchain.fingerprint
    tools.refuse(REFUSAL)
    with Farm.open(settings) as again:
        assert again.toolchain.fingerprint != before
        assert again.toolchain.archs == farm.toolchain.archs


def compile_when_both_are_ready(settings: Settings, strict: bool) -> Job:
    """The work of one process: the same cubins, for a job of its own."""
    with Farm.open(settings) as farm:
        submission = farm.submit([NET], replace(OPTIONS, strict=strict))
        BARRIER[0].wait()
        [job] = farm.run([submission.jobs[0].id])
        return job


def test_two_coordinators_that_race_run_each_tool_once(settings: Settings, tools: Tools) -> None:
    context = multiprocessing.get_context("spawn")
    with context.Pool(2, initializer=will_meet, initargs=(context.Barrier(2),)) as pool:
        asked = [(settings, False), (settings, True)]
        first, second = pool.starmap(compile_when_both_are_ready, asked, chunksize=1)
    assert first.id != second.id
    assert [(job.status, job.done) for job in (first, second)] == [(Status.SUCCEEDED, 4)] * 2
    assert first.hits + second.hits == 4
    assert tools.calls() == ["nvcc"] * 2 + ["ptxas"] * 4

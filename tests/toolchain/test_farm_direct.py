"""`farm compile --assembler direct`: cubins without ptxas where the assembler can, and where it cannot it says why."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from cli.main import run
from codegen.ir.checkpoint import Weights
from codegen.ir.tiling import Part
from codegen.keys import assembler_digest
from codegen.ptx.template import Template
from codegen.sass.assemble.assembler import DirectAssembler
from codegen.sass.assemble.link import LinkedCode
from codegen.sass.cubin import CubinFile
from codegen.sass.qualification import SUPPORTED_ARCHS
from codegen.sass.verify.hazards import check_cubin
from farm.api import Farm
from farm.config.settings import Settings, load_settings
from farm.jobs.model import BuildOptions, Status
from farm.ledger import open_ledger
from farm.qualification.record import QualificationRecord
from farm.store import open_store
from farm.store.contract import blob_digest
from tests.bundle_samples import manifest_of, validator
from tests.qualification_samples import qualified
from tests.samples import SMALLER, checkpoint, layer
from tests.toolchain.tools import NET, Tools

DIRECT = BuildOptions(("sm_90",), assembler="direct")


@pytest.fixture(autouse=True)
def surroundings(settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FARM_STORE", settings.store_url)
    monkeypatch.setenv("FARM_DATABASE_URL", settings.database_url)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))


def test_a_second_checkpoint_of_the_same_shapes_needs_neither_nvcc_nor_ptxas(
    farm: Farm, tools: Tools, settings: Settings
) -> None:
    [first] = farm.compile([NET], DIRECT)
    assert first.status is Status.SUCCEEDED, first.reason
    assert tools.calls() == ["nvcc", "nvcc", "ptxas", "ptxas"]
    again = checkpoint(layer("conv1", seed=8), layer("conv2", spec=SMALLER, seed=9))
    [second] = farm.compile([again], DIRECT)
    assert second.status is Status.SUCCEEDED, second.reason
    assert tools.calls() == []
    for job in (first, second):
        assert {result.assembler for result in farm.inspect(job.id).results} == {"direct"}
    store = open_store(settings)
    for result in farm.inspect(second.id).results:
        check_cubin(CubinFile.read(store.get(str(result.cubin)) or b""))


def test_what_all_checkpoints_of_a_sweep_share_is_read_once(farm: Farm, monkeypatch: pytest.MonkeyPatch) -> None:
    read = Counter[str]()
    from_ptx, of = Template.from_ptx, DirectAssembler.of

    def read_template(ptx: str) -> Template:
        read[f"template {blob_digest(ptx.encode())}"] += 1
        return from_ptx(ptx)

    def read_skeleton(
        template: Template, skeleton: bytes, arch: str, known: Iterable[DirectAssembler]
    ) -> DirectAssembler:
        read[f"skeleton {template.spec}"] += 1
        return of(template, skeleton, arch, known)

    shapes = [replace(SMALLER, output_channels=kernels) for kernels in range(1, 7)]
    sweep = [
        checkpoint(*(layer(f"conv{i}", spec, seed=10 * step + i) for i, spec in enumerate(shapes)), name=f"step{step}")
        for step in range(3)
    ]
    farm.compile(sweep[:1], DIRECT)  # makes the templates and the skeletons
    monkeypatch.setattr(Template, "from_ptx", read_template)
    monkeypatch.setattr(DirectAssembler, "of", read_skeleton)
    jobs = farm.compile(sweep[1:], DIRECT)
    assert {job.status for job in jobs} == {Status.SUCCEEDED}
    assert set(read.values()) == {1}


def test_architectures_that_write_code_alike_share_it(
    farm: Farm, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []
    code = DirectAssembler.code

    def counted(assembler: DirectAssembler, weights: Weights, part: Part) -> LinkedCode:
        made.append(assembler.arch)
        return code(assembler, weights, part)

    monkeypatch.setattr(DirectAssembler, "code", counted)
    [job] = farm.compile([NET], replace(DIRECT, archs=("sm_80", "sm_86", "sm_89")))
    assert job.status is Status.SUCCEEDED, job.reason
    results, store = farm.inspect(job.id).results, open_store(settings)
    assert len(made) < len(results), made
    for result in results:
        cubin = CubinFile.read(store.get(str(result.cubin)) or b"")
        check_cubin(cubin)
        assert f"sm_{cubin.capability}" == result.arch


def test_bundle_inspect_and_store_say_who_made_the_code(
    farm: Farm, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    [job] = farm.compile([NET], DIRECT)
    farm.fetch(job.id, tmp_path / "out")
    manifest = manifest_of(tmp_path / "out")
    validator().validate(manifest)
    cubins = [each["cubins"]["sm_90"] for one in manifest["layers"] for each in one["launches"]]
    assert [(cubin["assembler"], cubin["evidence"]) for cubin in cubins] == [("direct", "checked without a GPU")] * 2
    assert run(["inspect", job.id]) == 0
    assert "2 of 2 cubins assembled directly (checked without a GPU)\n" in capsys.readouterr().out
    assert run(["cache", "ls"]) == 0
    assert re.search(r"^skeleton +2 ", capsys.readouterr().out, re.MULTILINE)


def test_what_the_assembler_does_not_know_ptxas_does_and_the_job_says_why(
    farm: Farm, capsys: pytest.CaptureFixture[str]
) -> None:
    layers = [layer("conv1"), layer("half", spec=replace(SMALLER, data_type="float16"))]
    [job] = farm.compile([checkpoint(*layers)], replace(DIRECT, archs=("sm_88", "sm_90")))
    assert job.status is Status.SUCCEEDED, job.reason
    made = {(result.arch, result.build): result.assembler for result in farm.inspect(job.id).results}
    assert sorted(made.values()) == ["direct", "direct", "ptxas", "ptxas"]
    assert run(["inspect", job.id]) == 0
    shown = capsys.readouterr().out
    assert "2 of 4 cubins assembled directly (checked without a GPU), the others by ptxas\n" in shown


def test_full_templates_are_left_to_ptxas(farm: Farm, capsys: pytest.CaptureFixture[str]) -> None:
    [job] = farm.compile([checkpoint(layer("conv1", spec=SMALLER))], replace(DIRECT, form="full"))
    assert job.status is Status.SUCCEEDED, job.reason
    assert run(["inspect", job.id]) == 0
    assert "all cubins made by ptxas: the direct assembler does not support full templates\n" in capsys.readouterr().out


def test_ptxas_is_the_default_until_a_gpu_has_qualified_direct_code(
    farm: Farm, capsys: pytest.CaptureFixture[str]
) -> None:
    [job] = farm.compile([NET], BuildOptions(("sm_90",)))
    assert {result.assembler for result in farm.inspect(job.id).results} == {"ptxas"}
    assert run(["inspect", job.id]) == 0
    version = farm.toolchain.ptxas_version
    reason = f"float32 on sm_90 is not qualified for ptxas {version}; run farm qualify on such a GPU"
    assert f"all cubins made by ptxas: {reason}\n" in capsys.readouterr().out
    checks = {check.name: check for check in farm.doctor()}
    assert checks["assembler"].ok
    untried = f"{', '.join(SUPPORTED_ARCHS)} not qualified: run farm qualify on such a GPU, or take --trust checked"
    assert untried in checks["assembler"].text


def test_qualified_code_is_assembled_directly_by_default_and_the_rest_says_why_not(
    farm: Farm, settings: Settings, tools: Tools, capsys: pytest.CaptureFixture[str]
) -> None:
    version = farm.toolchain.ptxas_version
    record(settings, qualified(ptxas=version))
    [job] = farm.compile([NET], BuildOptions(("sm_88", "sm_90")))
    made = {(result.arch, result.assembler, result.fallback) for result in farm.inspect(job.id).results}
    reason = f"the direct assembler supports {', '.join(SUPPORTED_ARCHS)}, not sm_88"
    assert made == {("sm_90", "direct", ""), ("sm_88", "ptxas", reason)}
    assert run(["inspect", job.id]) == 0
    shown = capsys.readouterr().out
    assert "2 of 4 cubins assembled directly (qualified on NVIDIA Made-Up), the others by ptxas\n" in shown
    assert f"2 by ptxas: {reason}\n" in shown
    told = next(check.text for check in farm.doctor() if check.name == "assembler")
    assert told.startswith(f"sm_90 float32 without ptxas {version} (the same in 5,000 layers on NVIDIA Made-Up); ")
    tools.calls()
    [asked] = farm.compile([NET], BuildOptions(("sm_90",), assembler="ptxas"))
    assert {result.assembler for result in farm.inspect(asked.id).results} == {"ptxas"}
    assert tools.calls() == ["ptxas", "ptxas"]


def test_once_the_assembler_has_changed_ptxas_is_back_and_the_job_and_the_doctor_say_so(
    farm: Farm, settings: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    record(settings, qualified(ptxas=farm.toolchain.ptxas_version, sources="0" * 64))
    [job] = farm.compile([NET], BuildOptions(("sm_90",)))
    assert {result.assembler for result in farm.inspect(job.id).results} == {"ptxas"}
    assert run(["inspect", job.id]) == 0
    reason = "the assembler has changed since; run farm qualify on such a GPU"
    assert reason in capsys.readouterr().out
    assert reason in next(check.text for check in farm.doctor() if check.name == "assembler")


def test_a_trust_lets_auto_take_what_no_gpu_has_run_and_the_bytes_do_not_depend_on_it(
    farm: Farm, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    stale = qualified(ptxas=farm.toolchain.ptxas_version, sources="0" * 64)
    record(settings, stale)
    [careful] = farm.compile([NET], BuildOptions(("sm_90",)))
    [job] = farm.compile([NET], BuildOptions(("sm_90",), trust="checked"))
    monkeypatch.setenv("FARM_TRUST", "checked")
    with Farm.open(load_settings()) as trusting:
        [by_setting] = trusting.compile([NET], BuildOptions(("sm_90",)))
    record(settings, replace(stale, sources=assembler_digest()))
    [qualified_now] = farm.compile([NET], BuildOptions(("sm_90",)))
    jobs = (careful, job, by_setting, qualified_now)
    assert [{(each.assembler, each.evidence) for each in farm.inspect(one.id).results} for one in jobs] == [
        {("ptxas", "")},
        {("direct", "checked without a GPU")},
        {("direct", "checked without a GPU")},
        {("direct", "qualified on NVIDIA Made-Up")},
    ]
    assert len({tuple(each.cubin_key for each in farm.inspect(one.id).results) for one in jobs[1:]}) == 1


def record(settings: Settings, *records: QualificationRecord) -> None:
    ledger = open_ledger(settings)
    ledger.qualifications.put(records)
    ledger.close()


def test_statistics_and_explanations_know_of_skeletons_and_of_who_made_the_code(
    farm: Farm, capsys: pytest.CaptureFixture[str]
) -> None:
    farm.compile([NET], DIRECT)
    again = checkpoint(layer("conv1", seed=8), layer("conv2", spec=SMALLER, seed=9))
    farm.compile([again], DIRECT)
    found = farm.statistics()
    assert (found.skeleton.misses, found.skeleton.hits, found.direct, found.cubin.misses) == (2, 2, 4, 4)
    assert found.skeleton.saved_seconds == pytest.approx(found.skeleton.spent_seconds)
    assert found.skeleton.spent_seconds > 0
    assert run(["stats"]) == 0
    shown = capsys.readouterr().out
    assert re.search(r"^skeleton +2 +2 +50\.0% +ptxas ", shown, re.MULTILINE)
    assert ", 4 of 4 assembled without ptxas\n" in shown
    farm.compile([NET], replace(DIRECT, assembler="ptxas"))
    assert run(["explain", "latest/conv1"]) == 0
    assert "its machine code is made by ptxas now" in capsys.readouterr().out
    assert farm.statistics().skeleton.hits == 2

"""A farm with a store that others can write: no record without a valid signature is used, and each command says so."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from cli.main import run
from codegen.model_zoo import lenet5, write_network
from farm.api import Farm
from farm.config.settings import Settings
from farm.errors import JobFailedError, UsageError
from farm.jobs.model import BuildOptions, Job, Outcome, Status
from farm.maintenance.gc import Limits
from farm.store.disk import DiskStore
from farm.worker.cache_lookup import CUBIN_STAGE
from tests.samples import checkpoint, layer
from tests.signing_keys import key_file, public_half
from tests.verifications import assert_right

NET = checkpoint(layer("conv1"), layer("conv2", seed=1))
"""Two layers of one shape: their cubins differ in their weights only."""
OPTIONS = BuildOptions(("sm_80", "sm_90"), assembler="direct")


@dataclass(frozen=True)
class Attacked:
    """A farm with a finished job, and its store as others with write access see it."""

    farm: Farm
    settings: Settings
    store: DiskStore
    job: Job

    def cubin_keys(self, layer: str) -> list[str]:
        detail = self.farm.inspect(self.job.id)
        [build] = [each for each in detail.builds if each.layer == layer]
        return [result.cubin_key for result in detail.results_of(build)]

    def swap(self) -> set[str]:
        """Exchange the records of the two layers' cubins; returns the keys."""
        keys = list(zip(self.cubin_keys("conv1"), self.cubin_keys("conv2"), strict=True))
        for one, other in keys:
            records = [self.store.get_record(CUBIN_STAGE, key) for key in (one, other)]
            assert None not in records
            for key, record in zip((other, one), records, strict=True):
                self.store.put_record(CUBIN_STAGE, key, record or {})
        return {key for pair in keys for key in pair}

    def warnings(self, job: Job) -> list[str]:
        return [event.text for event in self.farm.logs(job.id) if event.level == "warning"]


@pytest.fixture
def signed_settings(settings: Settings, tmp_path: Path) -> Settings:
    return replace(settings, signing_keys=key_file(tmp_path / "keys.pem"))


@pytest.fixture
def attacked(signed_settings: Settings) -> Iterator[Attacked]:
    store = DiskStore(Path(signed_settings.store_url.removeprefix("file://")))
    with Farm.open(signed_settings) as farm:
        [job] = farm.compile([NET], OPTIONS)
        assert job.status is Status.SUCCEEDED
        yield Attacked(farm, signed_settings, store, job)


def test_swapped_records_are_misses_that_the_log_tells_and_the_cubins_are_right(attacked: Attacked) -> None:
    before = [result.cubin for result in attacked.farm.inspect(attacked.job.id).results]
    attacked.swap()
    [job] = attacked.farm.compile([NET], OPTIONS)
    results = attacked.farm.inspect(job.id).results
    assert (job.status, job.hits) == (Status.SUCCEEDED, 0)
    assert {result.outcome for result in results} == {Outcome.BUILT}
    assert [result.cubin for result in results] == before
    told = attacked.warnings(job)
    assert len(told) == 4
    assert all("has no valid signature and was rebuilt" in text for text in told)
    assert_right(attacked.farm.verify(job.id))
    [again] = attacked.farm.compile([NET], OPTIONS)
    assert (again.hits, attacked.warnings(again)) == (4, [])


def test_records_of_every_stage_are_checked(attacked: Attacked) -> None:
    records = list(attacked.store.records())
    for each in records:
        record = dict(attacked.store.get_record(each.stage, each.key) or {})
        del record["signature"]
        attacked.store.put_record(each.stage, each.key, record)
    assert {each.stage for each in records} >= {"template", "skeleton", "cubin"}
    with Farm.open(attacked.settings) as farm:
        [job] = farm.compile([NET], OPTIONS)
        assert (job.status, job.hits) == (Status.SUCCEEDED, 0)
        told = " ".join(attacked.warnings(job))
    for stage in ("template", "skeleton", "cubin"):
        assert f"stored {stage} " in told


def test_a_scrub_lists_swapped_records_and_repairs_them(attacked: Attacked) -> None:
    assert list(attacked.farm.scrub()) == []
    keys = attacked.swap()
    found = list(attacked.farm.scrub(repair=True))
    assert {(each.stage, each.name, each.unsigned) for each in found} == {(CUBIN_STAGE, key, True) for key in keys}
    assert list(attacked.farm.scrub()) == []


def test_fetch_names_the_cubins_whose_records_were_swapped(
    attacked: Attacked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FARM_STORE", attacked.settings.store_url)
    monkeypatch.setenv("FARM_DATABASE_URL", attacked.settings.database_url)
    monkeypatch.setenv("FARM_SIGNING_KEYS", str(attacked.settings.signing_keys))
    command = ["fetch", attacked.job.id, "--verify", "-o", str(tmp_path / "bundle")]
    assert run(command) == 0
    capsys.readouterr()
    attacked.swap()
    assert run(command) == 39
    told = capsys.readouterr().err.splitlines()
    assert len(told) == 4
    assert all("no valid signed record of this cubin" in line for line in told)


def test_a_signed_bundle_is_verified_by_the_public_key_alone(
    attacked: Attacked, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    attacked.farm.fetch(attacked.job.id, tmp_path / "bundle", sign=True)
    public = tmp_path / "public.pem"
    public.write_bytes(public_half((tmp_path / "keys.pem").read_bytes()))
    assert run(["bundle", "verify", str(tmp_path / "bundle"), "--key", str(public)]) == 0
    assert "all digests match, signed" in capsys.readouterr().out


def test_a_machine_with_the_public_key_alone_submits_but_leaves_no_job_of_a_compile_that_it_refuses(
    signed_settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    public = tmp_path / "public.pem"
    public.write_bytes(public_half((tmp_path / "keys.pem").read_bytes()))
    write_network(tmp_path / "lenet5.onnx", lenet5(0.9, 0))
    monkeypatch.setenv("FARM_STORE", signed_settings.store_url)
    monkeypatch.setenv("FARM_DATABASE_URL", signed_settings.database_url)
    monkeypatch.setenv("FARM_SIGNING_KEYS", str(public))
    with Farm.open(replace(signed_settings, signing_keys=public)) as farm:
        with pytest.raises(UsageError, match="cannot sign results"):
            farm.compile([NET], OPTIONS)
        assert run(["compile", str(tmp_path / "lenet5.onnx"), "--arch", "sm_80"]) == 2
        assert list(farm.jobs()) == []
        farm.submit([NET], OPTIONS)
        assert len(farm.jobs()) == 1


def test_a_bundle_with_a_cubin_of_another_layer_is_not_signed(attacked: Attacked, tmp_path: Path) -> None:
    detail = attacked.farm.inspect(attacked.job.id)
    one, other = [each for each in detail.results if each.arch == "sm_90"]
    attacked.farm._ledger.record_results([replace(one, cubin=other.cubin)])
    with pytest.raises(JobFailedError, match=r"not signed: conv. sm_90: "):
        attacked.farm.fetch(attacked.job.id, tmp_path / "bundle", sign=True)
    assert not (tmp_path / "bundle").exists()


def test_garbage_collection_with_other_keys_counts_records_and_removes_none(attacked: Attacked, tmp_path: Path) -> None:
    other = replace(attacked.settings, signing_keys=key_file(tmp_path / "other.pem"))
    count = len(list(attacked.store.records()))
    with Farm.open(other) as farm:
        done = farm.collect_garbage(Limits())
    assert (done.unsigned, done.records, done.blobs) == (count, (), ())


def test_public_keys_use_what_is_stored_and_build_nothing(attacked: Attacked, tmp_path: Path) -> None:
    public = tmp_path / "public.pem"
    public.write_bytes(public_half((tmp_path / "keys.pem").read_bytes()))
    with Farm.open(replace(attacked.settings, signing_keys=public)) as farm:
        assert_right(farm.verify(attacked.job.id))
        assert farm.fetch(attacked.job.id, tmp_path / "bundle").exists()
        with pytest.raises(UsageError, match="its first key is public"):
            farm.compile([NET], OPTIONS)

"""Tuning records in a ledger, on a real SQLite file and on a real PostgreSQL server."""

from __future__ import annotations

from dataclasses import replace

import pytest

from codegen.ir.tiling import Tiling
from farm.errors import LedgerError
from farm.jobs.model import BuildOptions, TilingChoice
from farm.ledger import Ledger
from tests.services.ledger_rows import new_job, submit
from tests.tuning_samples import record

TILING = Tiling("conv2d", 8, 8, 1, 4, 3, 2, images=2)
OTHER = replace(TILING, stages=3)
COLD = replace(record(TILING, microseconds=9.0), cold_microseconds=12.0, model_cold_microseconds=14.0)
"""Chosen as in a network."""


def test_a_record_comes_back_as_it_was_put(ledger: Ledger) -> None:
    for each in (record(TILING), COLD):
        ledger.tuning.put(each)
        assert ledger.tuning.records() == [each]


def test_a_record_takes_the_place_of_the_one_of_its_key_and_gpu_even_if_it_is_slower(ledger: Ledger) -> None:
    ledger.tuning.put(record(TILING, microseconds=5.0))
    ledger.tuning.put(record(OTHER, microseconds=7.0))
    ledger.tuning.put(record(TILING, gpu="another", microseconds=6.0))
    assert {(each.gpu, each.tiling, each.microseconds) for each in ledger.tuning.records()} == {
        ("NVIDIA Made-Up", OTHER, 7.0),
        ("another", TILING, 6.0),
    }


def test_records_are_found_by_architecture(ledger: Ledger) -> None:
    for arch in ("sm_80", "sm_90"):
        ledger.tuning.put(record(TILING, arch=arch))
    assert [each.key.arch for each in ledger.tuning.records(["sm_90"])] == ["sm_90"]
    assert ledger.tuning.records(["sm_9"]) == []


def test_of_records_that_are_merged_the_faster_ones_stay(ledger: Ledger) -> None:
    ledger.tuning.put(record(TILING, microseconds=5.0))
    slower, faster = record(OTHER, microseconds=6.0), record(OTHER, microseconds=4.0)
    new = record(OTHER, batch=1)
    assert ledger.tuning.merge([slower, new]) == 1
    assert ledger.tuning.merge([slower, faster, slower]) == 1
    assert ledger.tuning.merge([slower, faster, new]) == 0
    assert {each.microseconds for each in ledger.tuning.records()} == {4.0, new.microseconds}


def test_a_record_chosen_as_in_a_network_takes_the_place_of_one_that_was_not_and_is_never_replaced_by_one(
    ledger: Ledger,
) -> None:
    warm = record(OTHER, microseconds=1.0)
    ledger.tuning.put(warm)
    assert ledger.tuning.merge([COLD]) == 1
    assert ledger.tuning.merge([warm, replace(COLD, cold_microseconds=13.0)]) == 0
    assert ledger.tuning.records() == [COLD]


def test_a_merge_that_fails_changes_nothing(ledger: Ledger) -> None:
    good = record(TILING)
    bad = replace(good, key=replace(good.key, arch=None))
    with pytest.raises(LedgerError, match="arch"):
        ledger.tuning.merge([good, bad])
    assert ledger.tuning.records() == []


def test_a_job_whose_architectures_have_different_tilings_counts_each_cubin_once(ledger: Ledger) -> None:
    [plain] = new_job(layers=1).builds
    first = replace(plain, choices=(TilingChoice("sm_80", note="the record was not used: it is too large"),))
    second = replace(plain, tiling=OTHER, choices=(TilingChoice("sm_90", "NVIDIA Made-Up"),))
    options = BuildOptions(("sm_80", "sm_90"), tuning=False)
    submit(ledger, replace(new_job(options=options), builds=(first, second)))
    job = ledger.job("aaaa1111")
    assert (job.total, job.options) == (2, options)
    assert [replace(build, id=0) for build in ledger.builds(job.id)] == [first, second]

"""Admission records in a ledger: one for each GPU and assembler, the latest."""

from __future__ import annotations

from farm.ledger import Ledger
from tests.admission_samples import admission


def test_a_record_comes_back_and_a_later_one_of_the_same_gpu_takes_its_place(ledger: Ledger) -> None:
    ledger.admissions.put([admission(), admission(gpu="another"), admission(data_type="float16")])
    ledger.admissions.put([admission(layers=9000, outputs=2**40)])
    assert set(ledger.admissions.records()) == {
        admission(layers=9000, outputs=2**40),
        admission(gpu="another"),
        admission(data_type="float16"),
    }
    ledger.admissions.put([])


def test_what_the_ledger_knows_admits(ledger: Ledger) -> None:
    record = admission()
    assert ledger.admissions.known().refusal(record.arch, record.ptxas, record.data_type)
    ledger.admissions.put([record])
    assert not ledger.admissions.known().refusal(record.arch, record.ptxas, record.data_type)
    ledger.admissions.put([admission(gpu="another", wrong=1)])
    assert "found differences" in ledger.admissions.known().refusal(record.arch, record.ptxas, record.data_type)


def test_a_record_that_says_nothing_takes_the_place_of_none_that_does(ledger: Ledger) -> None:
    short = admission(layers=24)
    ledger.admissions.put([short])
    ledger.admissions.put([admission(layers=48), admission(gpu="another", wrong=1)])
    assert {record.layers for record in ledger.admissions.records() if record.gpu == short.gpu} == {48}
    ledger.admissions.put([admission()])
    known = set(ledger.admissions.records())
    ledger.admissions.put([short, admission(gpu="another", layers=24)])
    assert set(ledger.admissions.records()) == known

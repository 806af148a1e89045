"""The ledger keeps the latest qualification record per GPU and assembler."""

from __future__ import annotations

from farm.ledger import Ledger
from tests.qualification_samples import qualified


def test_a_record_comes_back_and_a_later_one_of_the_same_gpu_takes_its_place(ledger: Ledger) -> None:
    ledger.qualifications.put([qualified(), qualified(gpu="another"), qualified(data_type="float16")])
    ledger.qualifications.put([qualified(layers=9000, outputs=2**40)])
    assert set(ledger.qualifications.records()) == {
        qualified(layers=9000, outputs=2**40),
        qualified(gpu="another"),
        qualified(data_type="float16"),
    }
    ledger.qualifications.put([])


def test_a_record_in_the_ledger_qualifies(ledger: Ledger) -> None:
    record = qualified()
    assert ledger.qualifications.known().unqualified_reason(record.arch, record.ptxas, record.data_type)
    ledger.qualifications.put([record])
    assert not ledger.qualifications.known().unqualified_reason(record.arch, record.ptxas, record.data_type)
    ledger.qualifications.put([qualified(gpu="another", wrong=1)])
    assert "found wrong outputs" in ledger.qualifications.known().unqualified_reason(
        record.arch, record.ptxas, record.data_type
    )


def test_an_inconclusive_record_never_replaces_a_conclusive_one(ledger: Ledger) -> None:
    short = qualified(layers=24)
    ledger.qualifications.put([short])
    ledger.qualifications.put([qualified(layers=48), qualified(gpu="another", wrong=1)])
    assert {record.layers for record in ledger.qualifications.records() if record.gpu == short.gpu} == {48}
    ledger.qualifications.put([qualified()])
    known = set(ledger.qualifications.records())
    ledger.qualifications.put([short, qualified(gpu="another", layers=24)])
    assert set(ledger.qualifications.records()) == known

"""Cases for another machine: weights are passed through the store."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from codegen.ir.checkpoint import Weights
from codegen.ir.layer_spec import LayerSpec
from farm.cuda.measure.workload import Case, CaseKey
from farm.errors import BlobLostError
from farm.store.contract import Store


@dataclass(frozen=True)
class StoredCase:
    """A Case whose weights are in the store."""

    key: CaseKey
    spec: LayerSpec
    weights: str
    """Digest of the weights."""
    rows: int
    peers_only: bool
    others_bytes: int | None


def stored_cases(cases: Sequence[Case], store: Store) -> list[StoredCase]:
    """Stores the weights of cases. Raises StoreError."""
    return [
        StoredCase(
            case.key, case.spec, store.put(case.weights.to_bytes()), case.rows, case.peers_only, case.others_bytes
        )
        for case in cases
    ]


def loaded_cases(cases: Sequence[Case | StoredCase], store: Store) -> list[Case]:
    """Loads the weights of cases. Raises StoreError, and BlobLostError for missing weights."""
    return [case if isinstance(case, Case) else _loaded(case, store) for case in cases]


def _loaded(case: StoredCase, store: Store) -> Case:
    data = store.get(case.weights)
    if data is None:
        raise BlobLostError(
            f"the store {store.describe()} lacks the weights of {case.key.operator}: use one store on this machine "
            "and on the cluster"
        )
    weights = Weights.from_bytes(case.spec, data)
    return Case(case.key, case.spec, weights, case.rows, case.peers_only, case.others_bytes)

"""Cases that travel: whole again where the store is, and a reason where it is another one."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from farm.bench.layers.stored_case import loaded_cases, stored_cases
from farm.cuda.measure.workload import Choice, operator_cases, structured_cases
from farm.errors import BlobLostError
from farm.store.memory import MemoryStore

CASES = [
    *operator_cases(["lenet-conv1"], Choice((64, 1), (0.5, 0.9), ("float32", "float16"))),
    *structured_cases(["lenet-conv2"], (1,)),
]


def test_a_case_is_the_same_after_its_way_through_the_store_and_travels_without_its_weights() -> None:
    store = MemoryStore()
    sent = pickle.dumps(stored_cases(CASES, store))
    assert len(sent) < min(case.weights.kernel.nbytes for case in CASES) * len(CASES)
    again = loaded_cases(pickle.loads(sent), store)
    assert stored_cases(again, store) == stored_cases(CASES, store)
    assert np.array_equal(again[0].weights.kernel, CASES[0].weights.kernel)


def test_a_case_that_never_travelled_needs_no_store() -> None:
    assert loaded_cases(CASES, MemoryStore()) == CASES


def test_weights_that_another_store_has_are_an_error_in_words() -> None:
    with pytest.raises(BlobLostError, match="use one store"):
        loaded_cases(stored_cases(CASES[:1], MemoryStore()), MemoryStore())

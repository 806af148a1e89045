"""Mutants of bundles do the C runtime no harm; `make fuzz-runtime` draws 100,000 of each kind."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.toolchain.runtime_fuzzer import Target, build_fuzzer, fuzz, make_targets

MUTANTS = 2000
SEED = 31


@pytest.fixture(scope="module")
def fuzzer(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Mapping[str, Target]]:
    folder = tmp_path_factory.mktemp("fuzzer")
    return build_fuzzer(folder), make_targets(folder)


@pytest.mark.parametrize("kind", ["plan", "plan-with-constants", "archive", "cubin", "glue"])
def test_a_mutated_bundle_is_refused_in_one_line_or_runs(fuzzer: tuple[Path, Mapping[str, Target]], kind: str) -> None:
    program, targets = fuzzer
    tally = fuzz(program, targets[kind], MUTANTS, SEED)
    assert tally.mutants == MUTANTS
    assert MUTANTS // 20 < tally.ran < MUTANTS * 19 // 20

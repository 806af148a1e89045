"""Two rounds of each fault; `make chaos` plays twenty."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.chaos.catalogue import FAULTS, play
from tests.chaos.services import Services


@pytest.fixture(scope="module")
def services() -> Iterator[Services]:
    with Services() as services:
        yield services


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("fault", FAULTS)
def test_every_job_ends_as_it_should_whatever_fails_at_whatever_moment(
    services: Services, fault: str, seed: int
) -> None:
    if lacks := FAULTS[fault].lacks():
        pytest.skip(lacks)
    played = play(services, fault, seed)
    assert not played.problem, f"{played.problem}\npython -m tests.chaos --rounds 1 --seed {seed} {fault}"

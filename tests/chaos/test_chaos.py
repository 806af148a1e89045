"""Two rounds of each fault; `make chaos` plays twenty."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.chaos.catalogue import FAULTS, again, play
from tests.chaos.services import Services

SEEDS = (1, 2)


@pytest.fixture(scope="module")
def services() -> Iterator[Services]:
    with Services() as services:
        yield services
        assert not services.late.left()


# Both rounds in one test: of the processes that run the tests, one starts what the fault needs.
@pytest.mark.parametrize("fault", FAULTS)
def test_every_job_ends_as_it_should_whatever_fails_at_whatever_moment(services: Services, fault: str) -> None:
    if lacks := FAULTS[fault].lacks():
        pytest.skip(lacks)
    for seed in SEEDS:
        problem = play(services, fault, seed).problem
        assert not problem, f"{problem}\n{again(fault, seed)}"

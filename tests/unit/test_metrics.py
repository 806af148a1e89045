"""Metrics as Prometheus reads them, over a real connection."""

from __future__ import annotations

import http.client
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NoReturn
from urllib.parse import urlsplit

import pytest
from prometheus_client.parser import text_string_to_metric_families

from farm import http_server
from farm.api import Farm
from farm.errors import LedgerAwayError, UnreachableError, UsageError
from farm.http_server import PageHandler
from farm.ledger.database import Database
from farm.reports.metrics import MetricsServer
from tests.unit.farmyard import Farmyard


@pytest.fixture
def farm(tmp_path: Path) -> Iterator[Farmyard]:
    farm = Farmyard(tmp_path)
    yield farm
    farm.ledger.close()


def get(server: MetricsServer, path: str, method: str = "GET") -> tuple[int, str]:
    connection = http.client.HTTPConnection(urlsplit(server.address).netloc, timeout=10)
    connection.request(method, path)
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, text


def samples(text: str) -> dict[tuple[str, ...], float]:
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_the_ledger_s_numbers_are_served_in_prometheus_format(farm: Farmyard) -> None:
    farm.run(farm.submit("one", "two"))
    farm.submit("waits")
    with MetricsServer(farm.ledger, 0) as server:
        status, text = get(server, "/metrics")
    assert status == 200
    found = samples(text)
    assert found["farm_jobs", "SUCCEEDED"] == 2
    assert found["farm_jobs", "PENDING"] == 1
    assert found["farm_jobs", "FAILED"] == 0
    assert (found["farm_cache_hits", "cubin"], found["farm_cache_misses", "cubin"]) == (4, 4)
    assert (found["farm_cache_hits", "template"], found["farm_cache_misses", "template"]) == (2, 2)
    assert found["farm_cache_spent_seconds", "template"] == 3.0
    assert found["farm_fmas", "deleted"] == 8 * 90
    assert found["farm_cubin_bytes", "built"] == 4 * 64


def test_the_numbers_are_of_all_time_so_that_zero_makes_no_graph_fall(farm: Farmyard) -> None:
    farm.run(farm.submit("one"))
    farm.ledger.statistics.zero()
    with MetricsServer(farm.ledger, 0) as server:
        assert samples(get(server, "/metrics")[1])["farm_cache_misses", "cubin"] == 4


def test_three_pages_are_served_and_nothing_else(farm: Farmyard) -> None:
    with MetricsServer(farm.ledger, 0) as server:
        for path in ("/livez", "/readyz"):
            assert get(server, path) == (200, "ok\n")
        assert get(server, "/metrics?name[]=x")[0] == 200
        for path in ("/", "/metrics/", "/healthz", "/../metrics", "/etc/passwd"):
            assert get(server, path)[0] == 404
        for method in ("POST", "PUT", "DELETE", "TRACE"):
            assert get(server, "/metrics", method)[0] == 501


def test_a_database_that_is_away_makes_a_coordinator_unready_but_ends_none(
    farm: Farmyard, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(_database: Database) -> NoReturn:
        raise LedgerAwayError("the database does not answer now")

    with MetricsServer(farm.ledger, 0) as server:
        with monkeypatch.context() as context:
            context.setattr(Database, "reading", away)
            assert get(server, "/readyz") == (503, "the database does not answer now\n")
            assert get(server, "/metrics")[0] == 503
            assert get(server, "/livez") == (200, "ok\n")
        assert get(server, "/readyz")[0] == 200
        assert get(server, "/metrics")[0] == 200


def test_coordinators_and_their_workers_are_counted(farm: Farmyard) -> None:
    worker = {"running": 2, "pending": 1, "finished": 7, "failed": 1}
    for name in ("one", "two"):
        farm.ledger.coordinators.register(name, "node", serves=True, lease_seconds=60)
        farm.ledger.coordinators.beat(name, 60, [worker])
    farm.ledger.coordinators.register("dead", "node", serves=True, lease_seconds=-1)
    with MetricsServer(farm.ledger, 0) as server:
        found = samples(get(server, "/metrics")[1])
    assert found["farm_coordinators",] == 2
    assert [found[f"farm_builds_{name}",] for name in worker] == [4, 2, 14, 2]


def test_the_farm_serves_what_its_ledger_says(farm: Farmyard) -> None:
    farm.submit("waits")
    with Farm(farm.settings, farm.store, farm.ledger).metrics(0) as server:
        assert samples(get(server, "/metrics")[1])["farm_jobs", "PENDING"] == 1


def test_it_listens_on_this_machine_only_unless_asked(farm: Farmyard) -> None:
    with MetricsServer(farm.ledger, 0) as server:
        assert server.address.startswith("http://127.0.0.1:")


def test_the_port_is_free_again_afterwards(farm: Farmyard) -> None:
    with MetricsServer(farm.ledger, 0) as server:
        port = int(server.address.rpartition(":")[2])
        with pytest.raises(UnreachableError, match=f"cannot be served at 127.0.0.1:{port} .*: name another port"):
            MetricsServer(farm.ledger, port)
    with MetricsServer(farm.ledger, port) as server:
        assert get(server, "/livez")[0] == 200


def test_a_client_that_says_nothing_keeps_nobody_waiting(farm: Farmyard) -> None:
    with (
        MetricsServer(farm.ledger, 0) as server,
        socket.create_connection(("127.0.0.1", int(server.address.rpartition(":")[2]))),
    ):
        assert get(server, "/livez")[0] == 200


def test_clients_that_send_their_requests_bit_by_bit_do_not_keep_all_connections(
    farm: Farmyard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "MOST_CONNECTIONS", 1)
    monkeypatch.setattr(PageHandler, "timeout", 2.0)
    with (
        MetricsServer(farm.ledger, 0) as server,
        socket.create_connection(("127.0.0.1", int(server.address.rpartition(":")[2]))) as slow,
    ):
        slow.sendall(b"GET /livez HTTP/1.0\r\nX: ")
        with suppress(OSError):  # until it is cut
            for _ in range(600):
                slow.sendall(b"x")
                time.sleep(0.05)
        assert get(server, "/livez")[0] == 200


def test_without_the_library_the_way_out_is_named(farm: Farmyard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(UsageError, match=r"in a checkout of this program, .* -m pip install '\.\[metrics\]'"):
        MetricsServer(farm.ledger, 0)

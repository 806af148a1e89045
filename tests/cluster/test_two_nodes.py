"""A cluster of two nodes with a token, with PostgreSQL as its ledger and S3 as its store: all of it real."""

from __future__ import annotations

import hashlib
import json
import re
import secrets
import socket
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from codegen.model_zoo import lenet5, write_network
from tests.cluster.ray_nodes import RayNodes
from tests.command import farm
from tests.services.ceph import Ceph, lacks_ceph
from tests.services.postgresql import PostgreSQL, lacks_postgresql
from tests.signing_keys import key_file

BUCKET = "farm"
ARCHS = "sm_80,sm_90"
USER = "ada"


@dataclass(frozen=True)
class Place:
    nodes: RayNodes
    ceph: Ceph
    database: PostgreSQL
    environment: dict[str, str]
    """Environment of every user of this farm."""
    secrets: dict[str, str]
    """Secrets that no output may show, by their description."""


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    for lacks in (lacks_ceph(), lacks_postgresql()):
        if lacks:
            pytest.skip(lacks)
    with tempfile.TemporaryDirectory(prefix="ceph-") as folder, Ceph(Path(folder)) as ceph, PostgreSQL() as database:
        password = secrets.token_hex(12)
        database.require_password(USER, password)
        ceph.client().create_bucket(Bucket=BUCKET)
        credentials = {"AWS_ACCESS_KEY_ID": ceph.access_key, "AWS_SECRET_ACCESS_KEY": ceph.secret_key}
        with RayNodes(2, **credentials) as nodes:
            url = database.url("postgres", USER).replace(f"{USER}@", f"{USER}:{password}@")
            environment = {
                **nodes.environment,
                **credentials,
                "FARM_RAY_ADDRESS": nodes.address,
                "FARM_STORE": f"s3://{BUCKET}/team",
                "FARM_S3_ENDPOINT": ceph.endpoint,
                "FARM_DATABASE_URL": url,
                "FARM_SIGNING_KEYS": str(key_file(Path(folder) / "keys.pem")),
            }
            hidden = {"token": nodes.token, "database password": password, "S3 secret": ceph.secret_key}
            yield Place(nodes, ceph, database, environment, hidden)
        assert not nodes.processes()
        assert not nodes.folder.exists()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "lenet5.onnx"
    write_network(path, lenet5(0.9, seed=0))
    return path


def cubins(bundle: Path) -> dict[str, str]:
    """The digest of each file of machine code in a bundle."""
    found = {str(path.relative_to(bundle)): path.read_bytes() for path in bundle.rglob("*.cubin")}
    return {name: hashlib.sha256(data).hexdigest() for name, data in found.items()}


def ledger_dump(server: PostgreSQL) -> str:
    """Every row of every table, as text."""
    return server.query("select schema_to_xml('public', true, false, '')")


def test_a_job_runs_on_both_nodes_and_gives_the_bytes_of_an_inline_run_and_tells_no_secret(
    place: Place, model: Path, tmp_path: Path
) -> None:
    assert farm(tmp_path, place.environment, "db", "upgrade").code == 0
    options = ("compile", str(model), "--arch", ARCHS, "--json", "-o")
    done = farm(tmp_path, place.environment, *options, str(tmp_path / "cluster"))
    assert done.code == 0, done.err
    [job] = json.loads(done.out)["jobs"]
    assert job["status"] == "SUCCEEDED"

    inline = farm(tmp_path / "alone", {"FARM_EXECUTOR": "inline"}, *options, str(tmp_path / "inline"))
    assert inline.code == 0, inline.err
    made = cubins(tmp_path / "cluster")
    assert len(made) > 2
    assert made == cubins(tmp_path / "inline")

    written = [{path.name for path in place.nodes.cache(node).rglob("*") if path.is_file()} for node in (0, 1)]
    assert all(set(made.values()) & names for names in written), "a node made no cubin"

    shown = [farm(tmp_path, place.environment, *command) for command in COMMANDS]
    said = [done.out, done.err, *(each.out + each.err for each in shown), ledger_dump(place.database)]
    folders = [place.nodes.logs(node) for node in (0, 1)]
    logs = [path.read_text(errors="replace") for each in folders for path in each.rglob("*.*") if path.is_file()]
    logs += [path.read_text() for path in place.nodes.folder.glob("*.log")]
    assert job["id"] in said[-1]
    assert len(logs) > 10
    for text in said + logs:
        for what, secret in place.secrets.items():
            assert secret not in text, what


COMMANDS = (
    ("doctor",),
    ("doctor", "--json"),
    ("config", "show"),
    ("config", "show", "--json"),
    ("status", "--json"),
    ("logs", "latest"),
    ("db", "current"),
)


def test_doctor_joins_the_cluster_and_says_where_the_token_is(place: Place, tmp_path: Path) -> None:
    assert farm(tmp_path, place.environment, "db", "upgrade").code == 0
    checks = json.loads(farm(tmp_path, place.environment, "doctor", "--json").out)["checks"]
    [found] = [each for each in checks if each["name"] == "executor"]
    assert found["ok"]
    token = place.environment["RAY_AUTH_TOKEN_PATH"]
    expected = f"the Ray cluster at {place.nodes.address}, with the token in {token}, takes 4 builds at a time"
    assert found["text"] == expected


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({}, r"requires a token, but .*/.ray/auth_token cannot be read"),
        ({"RAY_AUTH_TOKEN": "another"}, r"authentication with .* failed \(using the token in RAY_AUTH_TOKEN"),
        ({"RAY_AUTH_MODE": "disabled"}, r"authentication with .* failed \(using no token"),
    ],
    ids=["no token", "another token", "authentication switched off"],
)
def test_a_wrong_or_missing_token_is_refused_with_a_message(
    place: Place, model: Path, tmp_path: Path, variables: dict[str, str], said: str
) -> None:
    environment = {name: value for name, value in place.environment.items() if not name.startswith("RAY_AUTH")}
    environment |= variables | {"FARM_STORE": f"file://{tmp_path}/s", "FARM_DATABASE_URL": f"sqlite:///{tmp_path}/db"}
    done = farm(tmp_path, environment, "compile", str(model), "--arch", "sm_90", "--json")
    assert done.code == 32, done.err
    last = done.err.strip().splitlines()[-1]
    assert f"the Ray cluster at {place.nodes.address}" in last
    assert re.search(said, last)
    assert "RAY_AUTH_TOKEN_PATH" in last
    assert done.out == ""


def test_a_machine_outside_the_cluster_is_told_how_to_join_it(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        environment = {"FARM_RAY_ADDRESS": address, "RAY_AUTH_TOKEN": "a-token"}
        done = farm(tmp_path, environment, "doctor", "--json")
    [found] = [each for each in json.loads(done.out)["checks"] if each["name"] == "executor"]
    assert done.code == 32
    assert f"this machine is not one. Run ray start --address={address} --num-cpus=0 here first" in found["text"]

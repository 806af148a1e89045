"""The compose file against the schema of the Compose specification, and against our own rules."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from farm.signing import read_keyring
from tests.infra.documents import INFRA, documents

[COMPOSE] = documents("compose.yaml")
SERVICES: dict[str, Any] = COMPOSE["services"]
LONG_RUNNING = sorted(set(SERVICES) - {"migrate"})


def test_it_is_a_compose_file() -> None:
    check = Path(sys.executable).parent / "check-jsonschema"
    options = ["--builtin-schema", "vendor.compose-spec", INFRA / "compose.yaml"]
    done = subprocess.run([check, *options], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", SERVICES)
def test_every_service_has_limits_and_no_rights_to_gain(name: str) -> None:
    limits = SERVICES[name]["deploy"]["resources"]["limits"]
    assert set(limits) == {"cpus", "memory", "pids"}
    assert SERVICES[name]["security_opt"] == ["no-new-privileges:true"]
    assert not {"privileged", "cap_add", "network_mode", "pid"} & set(SERVICES[name])


@pytest.mark.parametrize("name", LONG_RUNNING)
def test_what_runs_on_is_watched(name: str) -> None:
    assert SERVICES[name]["healthcheck"]["test"][0] == "CMD"
    assert SERVICES[name]["restart"] == "unless-stopped"


@pytest.mark.parametrize("port", [port for each in SERVICES.values() for port in each.get("ports", [])])
def test_ports_are_open_to_this_machine_only(port: str) -> None:
    assert port.startswith("127.0.0.1:")


def test_ray_is_reached_from_the_other_containers_only() -> None:
    assert {name for name in SERVICES if SERVICES[name].get("ports")} == {"postgresql", "s3", "coordinator"}


def test_ray_asks_for_its_token_wherever_it_runs() -> None:
    for name in ("ray-head", "worker", "coordinator"):
        environment = SERVICES[name]["environment"]
        assert environment["RAY_AUTH_MODE"] == "token"
        assert environment["RAY_AUTH_TOKEN_PATH"] == "/run/secrets/ray_token"
        assert "ray_token" in SERVICES[name]["secrets"]


def test_the_database_is_migrated_before_a_coordinator_uses_it() -> None:
    assert SERVICES["migrate"]["command"] == ["farm", "db", "upgrade"]
    assert SERVICES["migrate"]["depends_on"]["postgresql"]["condition"] == "service_healthy"
    assert SERVICES["coordinator"]["depends_on"]["migrate"]["condition"] == "service_completed_successfully"


def test_every_volume_and_secret_that_is_used_is_declared_and_the_other_way_round() -> None:
    mounted = {volume.partition(":")[0] for each in SERVICES.values() for volume in each.get("volumes", [])}
    assert mounted == set(COMPOSE["volumes"])
    assert {secret for each in SERVICES.values() for secret in each.get("secrets", [])} == set(COMPOSE["secrets"])


def test_make_secrets_makes_what_the_file_names_and_leaves_it_the_second_time(tmp_path: Path) -> None:
    script = tmp_path / "make-secrets"
    script.write_bytes((INFRA / "make-secrets").read_bytes())
    script.chmod(0o755)

    def made() -> dict[str, bytes]:
        subprocess.run([script], check=True, capture_output=True)
        return {f"secrets/{path.name}": path.read_bytes() for path in (tmp_path / "secrets").iterdir()}

    first = made()
    named = {secret["file"] for secret in COMPOSE["secrets"].values()} | set(SERVICES["s3"]["env_file"])
    assert set(first) == named
    assert made() == first
    assert (tmp_path / "secrets").stat().st_mode & 0o777 == 0o700
    assert first["secrets/postgresql_password"] in first["secrets/pg_service.conf"]
    assert len(set(first.values())) == len(first)
    assert read_keyring(tmp_path / "secrets" / "signing_keys").signer is not None


def test_no_secret_is_in_git() -> None:
    done = subprocess.run(["git", "check-ignore", "infra/secrets/ray_token"], cwd=INFRA.parent, capture_output=True)
    assert done.returncode == 0 or not (INFRA.parent / ".git").exists()
    assert os.access(INFRA / "make-secrets", os.X_OK)

"""No error shows a password."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path

import pytest

from codegen.toolchain.tools import Toolchain
from farm.config.settings import load_settings, redacted
from farm.errors import UsageError
from farm.executors.ray.builds import ClusterExecutor
from farm.store.disk import DiskStore
from tests.command import farm

PASSWORD = "correct-horse"
URL = f"postgresql://ada:{PASSWORD}@127.0.0.1:9/farm"
"""Nobody listens there."""
S3_SECRET = "battery/staple+secret"


def test_settings_are_printed_without_the_database() -> None:
    assert PASSWORD not in repr(load_settings({"FARM_DATABASE_URL": URL}))


@pytest.mark.parametrize("password", ["p", "a/b", "a b", "a@b", "a:b", "it's", 'say "so"', "a\nb"])
@pytest.mark.parametrize("scheme", ["postgresql", "mysql", "s3"])
def test_a_url_that_will_not_do_is_told_without_its_password(scheme: str, password: str) -> None:
    password = f"{password}{PASSWORD}"
    for name in ("FARM_DATABASE_URL", "FARM_STORE", "FARM_S3_ENDPOINT", "FARM_EXECUTOR"):
        with pytest.raises(UsageError, match=r"\*\*\*@host|invalid value") as caught:
            load_settings({name: f"{scheme}://ada:{password}@host/not a database/"})
        assert PASSWORD not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        f"connection to {URL} failed",
        f"postgresql+psycopg://ada:x/{PASSWORD}@h/d?sslmode=require",
        f"postgresql://h/d?user=a&password={PASSWORD}&sslmode=require",
        f"postgresql://h/d?sslpassword={PASSWORD}",
        f"https://ada:{PASSWORD}@host/",
    ],
)
def test_a_password_in_a_url_within_a_text_is_masked(text: str) -> None:
    assert PASSWORD not in redacted(text)
    assert "***" in redacted(text)


def test_workers_are_not_sent_the_database(tmp_path: Path) -> None:
    settings = load_settings({"FARM_DATABASE_URL": URL, "FARM_STORE": f"file://{tmp_path}"})
    tools = Toolchain(tmp_path / "nvcc", tmp_path / "ptxas")
    sent = ClusterExecutor(settings, DiskStore(tmp_path), tools)._worker_settings
    assert PASSWORD.encode() not in pickle.dumps(sent)
    assert sent == replace(settings, database_url="")


@pytest.mark.parametrize(
    "command",
    [
        ("config", "show"),
        ("config", "show", "--json"),
        ("doctor",),
        ("doctor", "--json"),
        ("status",),
        ("status", "--json"),
        ("db", "upgrade"),
        ("db", "current"),
        ("logs", "latest"),
    ],
    ids=" ".join,
)
def test_no_command_shows_a_password_of_a_farm_that_is_away(tmp_path: Path, command: tuple[str, ...]) -> None:
    environment = {
        "FARM_DATABASE_URL": URL,
        "FARM_STORE": f"file://{tmp_path / 'store'}",
        "FARM_EXECUTOR": "inline",
        "AWS_ACCESS_KEY_ID": "somebody",
        "AWS_SECRET_ACCESS_KEY": S3_SECRET,
        "RAY_AUTH_TOKEN": PASSWORD[::-1],
        "PGPASSWORD": PASSWORD,
    }
    done = farm(tmp_path, environment, *command)
    assert done.code in (0, 32), done.err
    assert done.out or done.err
    for secret in (PASSWORD, S3_SECRET, PASSWORD[::-1]):
        assert secret not in done.out + done.err

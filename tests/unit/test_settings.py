"""Settings: environment over file over default, and each wrong value named."""

from __future__ import annotations

from pathlib import Path

import pytest

from farm.config.settings import load_settings, node_cache_folder, redacted
from farm.config.settings_table import SETTINGS
from farm.errors import UsageError


def write(folder: Path, text: str) -> Path:
    path = folder / "config.toml"
    path.write_text(text)
    return path


def test_the_defaults_are_embedded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    settings = load_settings({})
    assert settings.store_url == f"file://{tmp_path}/data/farm/store"
    assert settings.database_url == f"sqlite:///{tmp_path}/data/farm/farm.db"
    assert (settings.ray_address, settings.nvcc, settings.executor, settings.recache) == (None, None, "auto", False)
    assert settings.jobs >= 1
    assert set(settings.origins.values()) == {"default"}
    assert set(settings.origins) == {setting.name for setting in SETTINGS}


def test_the_command_line_beats_the_environment_beats_the_file(tmp_path: Path) -> None:
    path = write(tmp_path, '[ray]\njobs = 3\nexecutor = "inline"\nmax_retries = 7\n')
    settings = load_settings({"FARM_JOBS": "4", "FARM_EXECUTOR": "ray"}, path, {"jobs": 5, "executor": None})
    assert (settings.jobs, settings.executor, settings.max_retries) == (5, "ray", 7)
    assert settings.origins["jobs"] == "command line"
    assert settings.origins["executor"] == "environment FARM_EXECUTOR"
    assert settings.origins["max_retries"] == f"{path} [ray] max_retries"


def test_farm_config_names_another_file(tmp_path: Path) -> None:
    path = write(tmp_path, '[store]\nurl = "/srv/store"\n')
    assert load_settings({"FARM_CONFIG": str(path)}).store_url == "file:///srv/store"
    with pytest.raises(UsageError, match="unset FARM_CONFIG"):
        load_settings({"FARM_CONFIG": str(tmp_path / "missing.toml")})


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("FARM_STORE", "ftp://x", "file:///an/absolute/folder"),
        ("FARM_STORE", "", "file:///an/absolute/folder|non-empty"),
        ("FARM_DATABASE_URL", "mysql://x", "sqlite:////an/absolute/file.db or postgresql://user@host/database"),
        ("FARM_DATABASE_URL", "sqlite:///here.db", "sqlite:////an/absolute/file.db or postgresql://user@host/database"),
        (
            "FARM_DATABASE_URL",
            "sqlite:///:memory:",
            "sqlite:////an/absolute/file.db or postgresql://user@host/database",
        ),
        ("FARM_STORE", "s3://", "s3://bucket/prefix"),
        ("FARM_STORE", "s3://Bucket", "s3://bucket/prefix"),
        ("FARM_STORE", "s3://bucket/a//b", "s3://bucket/prefix"),
        ("FARM_S3_ENDPOINT", "host:9000", "http://host:port"),
        ("FARM_S3_ENDPOINT", "http://host:9000/path", "without a user or a path"),
        ("FARM_CACHE_SIZE", "-1", "a size such as"),
        ("FARM_CACHE_SIZE", "", "or 0"),
        ("FARM_STORE_SIZE", "0", "a size such as .*, above 0"),
        ("FARM_STORE_AGE", "30", "a duration such as 90d"),
        ("FARM_LEDGER_AGE", "59m", "at least 1 h"),
        ("FARM_JOBS", "0", "whole number of at least 1"),
        ("FARM_JOBS", "two", "whole number of at least 1"),
        ("FARM_MAX_RETRIES", "-1", "whole number of at least 0"),
        ("FARM_JOB_TIMEOUT", "nan", "a duration such as"),
        ("FARM_JOB_TIMEOUT", "3600", "a duration such as"),
        ("FARM_TOOL_MEMORY", "8 gigs", "a size such as"),
        ("FARM_RECACHE", "maybe", "true or false"),
        ("FARM_EXECUTOR", "slurm", "auto, ray, processes or inline"),
        ("FARM_NAMESPACE", "", "non-empty"),
    ],
)
def test_a_wrong_value_is_an_error_that_names_it_and_what_is_allowed(variable: str, value: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        load_settings({variable: value})
    assert variable in str(caught.value)
    assert repr(value) in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "[stor]\nurl = 1\n",
            r"'stor' is not a section.*\[database\], \[ray\], \[statistics\], \[store\], \[toolchain\]",
        ),
        ("[store]\nuri = 1\n", "unknown key 'uri'.* age, cache_dir, cache_size, namespace"),
        ("[store]\nurl = 7\n", r"\[store\] url: invalid value 7"),
        ("store = 1\n", "'store' is not a section"),
        ("[store\n", "cannot be read"),
    ],
)
def test_a_wrong_file_is_an_error_that_names_the_place(tmp_path: Path, text: str, message: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(UsageError, match=message) as caught:
        load_settings({}, path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("text", "size"), [("8GiB", 8 * 2**30), ("512 MiB", 2**29), ("1024B", 1024), ("8GB", 8 * 10**9)]
)
def test_sizes_are_read_with_their_units(text: str, size: int) -> None:
    assert load_settings({"FARM_TOOL_MEMORY": text}).tool_memory_bytes == size


@pytest.mark.parametrize(("text", "flag"), [("1", True), ("true", True), ("off", False), ("0", False), ("", False)])
def test_flags_are_read_from_words(text: str, flag: bool) -> None:
    assert load_settings({"FARM_RECACHE": text}).recache is flag


@pytest.mark.parametrize("variable", ["FARM_DATABASE_URL", "FARM_S3_ENDPOINT", "FARM_STORE"])
def test_a_refused_url_is_named_without_its_password(variable: str) -> None:
    with pytest.raises(UsageError, match=r"ada:\*\*\*@host") as caught:
        load_settings({variable: "mysql://ada:s3cret@host/farm"})
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize("scheme", ["postgres", "postgresql", "postgresql+psycopg"])
@pytest.mark.parametrize(
    "rest",
    ["ada:p%40w@host:5432/farm", "host/farm", "/farm?host=/run/postgresql", "ada@[::1]:5432/farm?sslmode=require"],
)
def test_a_url_of_postgresql_is_taken_in_every_spelling(scheme: str, rest: str) -> None:
    assert load_settings({"FARM_DATABASE_URL": f"{scheme}://{rest}"}).database_url == f"postgresql+psycopg://{rest}"


@pytest.mark.parametrize("url", ["postgresql://host", "postgresql://host/", "postgresql://ada:pw@host:x/farm"])
def test_a_url_of_postgresql_names_a_database(url: str) -> None:
    with pytest.raises(UsageError, match=r"or postgresql://user@host/database"):
        load_settings({"FARM_DATABASE_URL": url})


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("postgresql://ada:p:w@d@host:5432/farm", "postgresql://ada:***@host:5432/farm"),
        ("postgresql+psycopg://ada:p/w@host/farm", "postgresql+psycopg://ada:***@host/farm"),
        (
            "postgresql://ada@host/farm?password=pw&sslmode=require",
            "postgresql://ada@host/farm?password=***&sslmode=require",
        ),
        ("https://:pw@minio:9000", "https://:***@minio:9000"),
        ("http://minio:9000/a@b", "http://minio:9000/a@b"),
        ("sqlite:////home/ada/farm.db", "sqlite:////home/ada/farm.db"),
    ],
)
def test_only_the_password_of_a_url_is_hidden(text: str, shown: str) -> None:
    assert redacted(text) == shown


def test_a_user_without_a_name_can_submit(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr("os.getuid", lambda: 987_654_321)
    assert load_settings({}).submitter == "user-987654321"


def test_a_store_in_s3_is_read_with_what_surrounds_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    path = write(tmp_path, '[store]\nurl = "s3://bucket/a/b"\ns3_region = "eu-west-1"\ncache_size = "1GiB"\n')
    settings = load_settings({"FARM_S3_ENDPOINT": "https://s3.example.org"}, path)
    assert (settings.store_url, settings.s3_endpoint) == ("s3://bucket/a/b", "https://s3.example.org")
    assert (settings.s3_region, settings.cache_bytes, settings.cache_dir) == ("eu-west-1", 2**30, None)
    assert node_cache_folder(settings) == tmp_path / "farm" / "store"


def test_a_cache_size_of_0_switches_the_cache_off(tmp_path: Path) -> None:
    assert load_settings({"FARM_CACHE_SIZE": "0"}).cache_bytes == 0
    assert load_settings({}, write(tmp_path, "[store]\ncache_size = 0\n")).cache_bytes == 0


def test_limits_are_off_unless_they_are_set(tmp_path: Path) -> None:
    for settings in (load_settings({}), load_settings({"FARM_STORE_SIZE": "", "FARM_LEDGER_AGE": ""})):
        assert (settings.store_bytes, settings.store_age_seconds, settings.ledger_age_seconds) == (None, None, None)
    path = write(tmp_path, '[store]\nsize = "2TiB"\nage = "30d"\n[database]\nage = "12h"\n')
    settings = load_settings({}, path)
    assert (settings.store_bytes, settings.store_age_seconds) == (2 * 2**40, 30 * 86_400.0)
    assert settings.ledger_age_seconds == 12 * 3600.0

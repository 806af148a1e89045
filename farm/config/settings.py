"""Settings: environment over configuration file over default. The only reader of either."""

from __future__ import annotations

import os
import re
import tempfile
import tomllib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import platformdirs

from farm.config.table import SETTINGS
from farm.errors import UsageError


@dataclass(frozen=True)
class Settings:
    """Everything that can be configured, each value already checked."""

    store_url: str
    s3_endpoint: str | None
    """None: Amazon's own."""
    s3_region: str | None
    """None: what boto3 finds by itself."""
    cache_dir: Path | None
    """Where a machine keeps what it read from S3; None: below the XDG cache folder of whoever runs there."""
    cache_bytes: int
    """At most, on each machine; 0: nothing is kept."""
    store_bytes: int | None
    """At most; None: no limit, as for the next two."""
    store_age_seconds: float | None
    """Since its last use."""
    ledger_age_seconds: float | None
    """How long jobs are kept after their end."""
    database_url: str = field(repr=False)
    """sqlite:////... or postgresql+psycopg://..., which may hold a password: show it `redacted`."""
    ray_address: str | None
    """None: Ray on this machine."""
    namespace: str
    job_timeout_seconds: float
    tool_timeout_seconds: float
    """For one run of nvcc or ptxas."""
    tool_memory_bytes: int
    tool_memory_most_bytes: int
    """What runs out of memory is tried once more with twice the memory, but never with more than this."""
    max_retries: int
    """How often a build is retried after its worker died."""
    away_seconds: float
    """How long a store or a database that does not answer is waited for."""
    worker_wait_seconds: float
    """How long a cluster that grows may take to start a machine; `farm serve` waits for as long as it takes."""
    recache: bool
    """Build everything anew, also what the cache holds."""
    read_only: bool
    jobs: int
    """Processes at once."""
    nvcc: Path | None
    """None: the pinned wheels."""
    ptxas: Path | None
    runtime_dir: Path | None
    """Where processes of a machine see which of its cores are in use; None: a folder for temporary files."""
    executor: str
    submitter: str
    origins: Mapping[str, str] = field(default_factory=dict, compare=False)
    """Where each value came from, in words."""


def node_cache_folder(settings: Settings) -> Path:
    """Where this machine keeps what it read from S3; settings travel to machines on which folders are elsewhere."""
    return settings.cache_dir or Path(platformdirs.user_cache_dir("farm")) / "store"


def cores_folder(settings: Settings) -> Path:
    """Where this machine's processes share its cores. Raises UsageError where another user has taken its place."""
    if settings.runtime_dir is not None:
        return settings.runtime_dir
    folder = Path(tempfile.gettempdir()) / f"farm-{os.getuid()}"
    with suppress(FileNotFoundError):
        if folder.lstat().st_uid != os.getuid():
            raise UsageError(f"{folder} belongs to another user: name a folder of yours in FARM_RUNTIME_DIR")
    return folder


def redacted(text: str) -> str:
    """The same text with *** for each password in a URL: every setting is shown in this form."""
    text = re.sub(r"(postgres[^:\s]*://[^:/@\s]*):\S*@", r"\1:***@", text)  # PostgreSQL's may hold a slash
    text = re.sub(r"([?&](?:ssl)?password=)[^&\s'\"]*", r"\1***", text)
    return re.sub(r"(://[^:/@\s]*):[^/\s]*@", r"\1:***@", text)


def _redacted_value(value: Any) -> str:
    """A value that will not do: whatever stands before its last @ may be a password, spaces and slashes included."""
    return redacted(re.sub(r"(://[^:/@]*):.*@", r"\1:***@", repr(value)))


@dataclass(frozen=True)
class RayAuthentication:
    """How this machine proves to a Ray cluster that it may give it work."""

    on: bool
    token: str | None
    """Where it stands, in words, never the token itself; None: nowhere."""
    missing: str = ""
    """Why there is none."""


def ray_authentication(environ: Mapping[str, str] | None = None) -> RayAuthentication:
    """What Ray will find, in its own order; on unless RAY_AUTH_MODE says otherwise."""
    environ = os.environ if environ is None else environ
    on = environ.get("RAY_AUTH_MODE", "token").lower() != "disabled"
    if environ.get("RAY_AUTH_TOKEN"):
        return RayAuthentication(on, "the token in RAY_AUTH_TOKEN")
    named = environ.get("RAY_AUTH_TOKEN_PATH")
    path = Path(named) if named else Path(environ.get("HOME") or Path.home()) / ".ray" / "auth_token"
    try:
        found = bool(path.read_bytes().strip())
    except OSError as error:
        return RayAuthentication(on, None, f"{path} cannot be read ({error.strerror})")
    return RayAuthentication(on, f"the token in {path}") if found else RayAuthentication(on, None, f"{path} is empty")


def config_path(environ: Mapping[str, str] | None = None) -> Path:
    """The configuration file that is read, whether it exists or not."""
    named = (os.environ if environ is None else environ).get("FARM_CONFIG")
    return Path(named).expanduser() if named else Path(platformdirs.user_config_dir("farm")) / "config.toml"


def load_settings(
    environ: Mapping[str, str] | None = None,
    config_file: Path | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> Settings:
    """Reads the settings; `overrides` (from the command line) come first.

    Raises UsageError that names the variable or the place in the file, the value, and what is allowed.
    """
    environ = os.environ if environ is None else environ
    path = config_file or config_path(environ)
    document = _read_file(path, required=config_file is not None or bool(environ.get("FARM_CONFIG")))
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for setting in SETTINGS:
        section = document.get(setting.section, {})
        if overrides and overrides.get(setting.name) is not None:
            value, origin = overrides[setting.name], "command line"
        elif setting.variable in environ:
            value, origin = environ[setting.variable], f"environment {setting.variable}"
        elif setting.key in section:
            value, origin = section[setting.key], f"{path} {setting.place}"
        else:
            value, origin = setting.default(), "default"
        try:
            values[setting.name] = setting.kind.read(value)
        except ValueError as error:
            raise UsageError(f"{origin}: {_redacted_value(value)} will not do, it takes {error}") from None
        origins[setting.name] = origin
    return Settings(**values, origins=origins)


def _read_file(path: Path, *, required: bool) -> dict[str, Any]:
    try:
        document = tomllib.loads(path.read_text())
    except FileNotFoundError:
        if required:
            raise UsageError(f"there is no configuration file {path}: create it or unset FARM_CONFIG") from None
        return {}
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"the configuration file {path} cannot be read: {error}") from None
    known: dict[str, set[str]] = {}
    for setting in SETTINGS:
        known.setdefault(setting.section, set()).add(setting.key)
    for section, content in document.items():
        if section not in known or not isinstance(content, dict):
            names = ", ".join(f"[{name}]" for name in sorted(known))
            raise UsageError(f"{path}: '{section}' is not a section, there are {names}")
        for key in content:
            if key not in known[section]:
                raise UsageError(
                    f"{path} [{section}]: '{key}' is not known, there are {', '.join(sorted(known[section]))}"
                )
    return document


def set_environment_defaults(values: Mapping[str, str]) -> None:
    """Sets variables that a library reads from the environment, unless the user has set them."""
    for name, value in values.items():
        os.environ.setdefault(name, value)

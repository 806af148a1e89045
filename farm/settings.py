"""Settings: environment over configuration file over default. The only reader of either."""

from __future__ import annotations

import getpass
import os
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import platformdirs

from farm.errors import UsageError

GIB = 2**30


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
    """Of a job, since its end."""
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
    """Of a build whose worker died."""
    away_seconds: float
    """How long a store or a database that does not answer is waited for."""
    recache: bool
    """Build everything anew, also what the cache holds."""
    read_only: bool
    jobs: int
    """Processes at once."""
    nvcc: Path | None
    """None: the pinned wheels."""
    ptxas: Path | None
    executor: str
    submitter: str
    origins: Mapping[str, str] = field(default_factory=dict, compare=False)
    """Where each value came from, in words."""


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError("a text that is not empty")
    return value


def _optional(value: Any) -> str | None:
    return None if value == "" else _text(value)


def _path(value: Any) -> Path | None:
    return None if value == "" else Path(_text(value)).expanduser()


def _flag(value: Any) -> bool:
    words = dict.fromkeys(("1", "true", "yes", "on"), True) | dict.fromkeys(("", "0", "false", "no", "off"), False)
    flag = words.get(str(value).lower())
    if flag is None:
        raise ValueError("true or false")
    return flag


def _number(least: float) -> Callable[[Any], float]:
    def read(value: Any) -> float:
        try:
            number = float(value)
        except (TypeError, ValueError):
            number = float("nan")
        if isinstance(value, bool) or not least <= number < float("inf"):
            raise ValueError(f"a number of at least {least:g}")
        return number

    return read


def _whole(least: int) -> Callable[[Any], int]:
    def read(value: Any) -> int:
        if isinstance(value, bool) or not re.fullmatch(r"\d+", str(value)) or int(value) < least:
            raise ValueError(f"a whole number of at least {least}")
        return int(value)

    return read


def _bytes(value: Any) -> int:
    match = re.fullmatch(r"(\d+)\s*(|KiB|MiB|GiB|TiB)", str(value))
    if not match or int(match[1]) == 0:
        raise ValueError("a size such as 8GiB, 512MiB or a number of bytes")
    return int(match[1]) * {"": 1, "KiB": 2**10, "MiB": 2**20, "GiB": GIB, "TiB": 2**40}[match[2]]


def _bytes_or_none(value: Any) -> int:
    if str(value) == "0":
        return 0
    try:
        return _bytes(value)
    except ValueError as error:
        raise ValueError(f"{error}, or 0") from None


def age_seconds(value: str) -> float:
    """An age as in 90d, 12h, 30m or 45s. Raises ValueError, which says so."""
    match = re.fullmatch(r"(\d{1,9})([smhd])", value.strip())
    if not match:
        raise ValueError("an age, as in 30d, 12h or 90m")
    return float(match[1]) * {"s": 1, "m": 60, "h": 3600, "d": 86_400}[match[2]]


def _age_limit(value: Any) -> float | None:
    if value == "":
        return None
    if (seconds := age_seconds(str(value))) < 3600:
        raise ValueError("an age of at least 1h, as in 30d or 12h")
    return seconds


def _store_url(value: Any) -> str:
    text = _text(value)
    if text.startswith("/"):
        text = f"file://{text}"
    if not re.fullmatch(r"file:///.*|s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/[\w.-]+)*/?", text, re.DOTALL):
        raise ValueError("file:///an/absolute/folder or s3://bucket/prefix")
    return text


def _endpoint(value: Any) -> str | None:
    text = _optional(value)
    if text is not None and not re.fullmatch(r"https?://[^/@\s]+/?", text):
        raise ValueError("http://host:port or https://host, without a user or a path")
    return text


_POSTGRESQL = re.compile(
    r"postgres(?:ql)?(?:\+psycopg)?://((?:\S*@)?(?:\[[^\]\s]+\]|[^@:/?\s]*)(?::\d+)?/[^/?\s]+(?:\?\S*)?)"
)
"""As libpq takes it, with a database's name: its server may stand in ?host=."""


def _database_url(value: Any) -> str:
    text = _text(value)
    if match := _POSTGRESQL.fullmatch(text):
        return f"postgresql+psycopg://{match[1]}"
    if not re.fullmatch(r"sqlite:////[^?]+", text):
        raise ValueError("sqlite:////an/absolute/file.db or postgresql://user@host/database")
    return text


def _executor(value: Any) -> str:
    if value not in ("ray", "inline"):
        raise ValueError("ray or inline")
    return str(value)


@dataclass(frozen=True)
class _Option:
    """Where one setting is read: its variable, its place in the file, how its value is checked."""

    variable: str
    section: str
    key: str
    read: Callable[[Any], Any]
    default: Callable[[], Any]


def _data_folder() -> Path:
    return Path(platformdirs.user_data_dir("farm"))


def node_cache_folder(settings: Settings) -> Path:
    """Where this machine keeps what it read from S3; settings travel to machines on which folders are elsewhere."""
    return settings.cache_dir or Path(platformdirs.user_cache_dir("farm")) / "store"


def _login_name() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container may run under a number that has no name
        return f"user-{os.getuid()}"


_OPTIONS: dict[str, _Option] = {
    "store_url": _Option("FARM_STORE", "store", "url", _store_url, lambda: f"file://{_data_folder() / 'store'}"),
    "s3_endpoint": _Option("FARM_S3_ENDPOINT", "store", "s3_endpoint", _endpoint, lambda: ""),
    "s3_region": _Option("FARM_S3_REGION", "store", "s3_region", _optional, lambda: ""),
    "cache_dir": _Option("FARM_CACHE_DIR", "store", "cache_dir", _path, lambda: ""),
    "cache_bytes": _Option("FARM_CACHE_SIZE", "store", "cache_size", _bytes_or_none, lambda: 10 * GIB),
    "store_bytes": _Option(
        "FARM_STORE_SIZE", "store", "size", lambda value: None if value == "" else _bytes(value), lambda: ""
    ),
    "store_age_seconds": _Option("FARM_STORE_AGE", "store", "age", _age_limit, lambda: ""),
    "read_only": _Option("FARM_READ_ONLY", "store", "read_only", _flag, lambda: False),
    "recache": _Option("FARM_RECACHE", "store", "recache", _flag, lambda: False),
    "namespace": _Option("FARM_NAMESPACE", "store", "namespace", _text, lambda: "default"),
    "database_url": _Option(
        "FARM_DATABASE_URL", "database", "url", _database_url, lambda: f"sqlite:///{_data_folder() / 'farm.db'}"
    ),
    "ledger_age_seconds": _Option("FARM_LEDGER_AGE", "database", "age", _age_limit, lambda: ""),
    "ray_address": _Option("FARM_RAY_ADDRESS", "ray", "address", _optional, lambda: ""),
    "executor": _Option("FARM_EXECUTOR", "ray", "executor", _executor, lambda: "ray"),
    "jobs": _Option("FARM_JOBS", "ray", "jobs", _whole(1), lambda: len(os.sched_getaffinity(0))),
    "job_timeout_seconds": _Option("FARM_JOB_TIMEOUT", "ray", "job_timeout", _number(1), lambda: 86_400.0),
    "max_retries": _Option("FARM_MAX_RETRIES", "ray", "max_retries", _whole(0), lambda: 2),
    "away_seconds": _Option("FARM_AWAY_TIMEOUT", "ray", "away_timeout", _number(0), lambda: 300.0),
    "submitter": _Option("FARM_SUBMITTER", "ray", "submitter", _text, _login_name),
    "nvcc": _Option("FARM_NVCC", "toolchain", "nvcc", _path, lambda: ""),
    "ptxas": _Option("FARM_PTXAS", "toolchain", "ptxas", _path, lambda: ""),
    "tool_timeout_seconds": _Option("FARM_TOOL_TIMEOUT", "toolchain", "timeout", _number(1), lambda: 600.0),
    "tool_memory_bytes": _Option("FARM_TOOL_MEMORY", "toolchain", "memory", _bytes, lambda: 8 * GIB),
    "tool_memory_most_bytes": _Option("FARM_TOOL_MEMORY_MOST", "toolchain", "memory_most", _bytes, lambda: 16 * GIB),
}


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
    for name, option in _OPTIONS.items():
        section = document.get(option.section, {})
        if overrides and overrides.get(name) is not None:
            value, origin = overrides[name], "command line"
        elif option.variable in environ:
            value, origin = environ[option.variable], f"environment {option.variable}"
        elif option.key in section:
            value, origin = section[option.key], f"{path} [{option.section}] {option.key}"
        else:
            value, origin = option.default(), "default"
        try:
            values[name] = option.read(value)
        except ValueError as error:
            raise UsageError(f"{origin}: {_redacted_value(value)} will not do, it takes {error}") from None
        origins[name] = origin
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
    for option in _OPTIONS.values():
        known.setdefault(option.section, set()).add(option.key)
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


def setting_names() -> dict[str, tuple[str, str]]:
    """For `farm config show`: each setting's variable and its place in the file, in the file's order."""
    return {name: (option.variable, f"[{option.section}] {option.key}") for name, option in _OPTIONS.items()}


def set_environment_defaults(values: Mapping[str, str]) -> None:
    """Sets variables that a library reads from the environment, unless the user has set them."""
    for name, value in values.items():
        os.environ.setdefault(name, value)

"""Settings from the environment, the configuration file and defaults, in this order. Nothing else reads them."""

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

from codegen.sass.qualification import Trust
from farm.config.price import Price
from farm.config.settings_table import SETTINGS
from farm.errors import UsageError


@dataclass(frozen=True)
class Settings:
    """All settings, with checked values."""

    store_url: str
    s3_endpoint: str | None
    """None: Amazon's own."""
    s3_region: str | None
    """None: the region that boto3 finds."""
    cache_dir: Path | None
    """Folder for a machine's copies of blobs from S3; None: in the user's XDG cache folder."""
    cache_bytes: int
    """Size limit of that folder on each machine; 0: nothing is kept."""
    store_bytes: int | None
    """Size limit of the store; None: no limit, as for the next two."""
    store_age_seconds: float | None
    """Age limit of the store's contents since their last use."""
    ledger_age_seconds: float | None
    """Time for which jobs are kept after their end."""
    database_url: str = field(repr=False)
    """sqlite:////... or postgresql+psycopg://...; it may hold a password, so show it `redacted`."""
    price: Price | None
    """Price of CPU time; None: costs are not shown."""
    otlp_endpoint: str | None
    """Receiver of traces; None: none are made."""
    ray_address: str | None
    """None: Ray on this machine."""
    namespace: str
    job_timeout_seconds: float
    tool_timeout_seconds: float
    """Time limit of one run of nvcc or ptxas."""
    tool_memory_bytes: int
    tool_memory_most_bytes: int
    """Limit for the second try of a tool that ran out of memory, which gets twice as much."""
    max_retries: int
    """Retries of a build whose worker died."""
    away_seconds: float
    """Time to wait for a store or a database that does not answer."""
    worker_wait_seconds: float
    """Time to wait for an autoscaling cluster to start a machine; `farm serve` waits without a limit."""
    recache: bool
    """Build everything again, even cache hits."""
    read_only: bool
    signing_keys: Path | None
    """File of the keys that sign and verify action records; None: they are not signed."""
    jobs: int
    """Number of concurrent builds without a cluster."""
    trust: Trust
    """Evidence that the assembler `auto` asks of direct code."""
    nvcc: Path | None
    """None: the nvcc of the pinned wheels."""
    ptxas: Path | None
    runtime_dir: Path | None
    """Folder in which a machine's processes share its cores; None: one in the folder for temporary files."""
    executor: str
    submitter: str
    origins: Mapping[str, str] = field(default_factory=dict, compare=False)
    """Origin of each value, such as `environment FARM_STORE`."""


def node_cache_folder(settings: Settings) -> Path:
    """This machine's folder for copies of blobs from S3. Settings travel to machines with other folders."""
    return settings.cache_dir or Path(platformdirs.user_cache_dir("farm")) / "store"


def compilations_folder() -> Path:
    """This machine's folder for the networks that benchmarks compile with torch.compile."""
    return Path(platformdirs.user_cache_dir("farm")) / "torch"


def cores_folder(settings: Settings) -> Path:
    """The folder in which this machine's processes share its cores. Raises UsageError if another user owns it."""
    if settings.runtime_dir is not None:
        return settings.runtime_dir
    folder = Path(tempfile.gettempdir()) / f"farm-{os.getuid()}"
    with suppress(FileNotFoundError):
        if folder.lstat().st_uid != os.getuid():
            raise UsageError(f"{folder} belongs to another user: name a folder of yours in FARM_RUNTIME_DIR")
    return folder


def redacted(text: str) -> str:
    """A text with *** in place of each password in a URL. Every setting is shown in this form."""
    text = re.sub(r"(postgres[^:\s]*://[^:/@\s]*):\S*@", r"\1:***@", text)  # PostgreSQL's may hold a slash
    text = re.sub(r"([?&](?:ssl)?password=)[^&\s'\"]*", r"\1***", text)
    return re.sub(r"(://[^:/@\s]*):[^/\s]*@", r"\1:***@", text)


def _redacted_value(value: Any) -> str:
    """An invalid value for a message. All before its last @ may be a password, even with spaces and slashes."""
    return redacted(re.sub(r"(://[^:/@]*):.*@", r"\1:***@", repr(value)))


@dataclass(frozen=True)
class RayAuthentication:
    """Authentication of this machine to a Ray cluster."""

    on: bool
    token: str | None
    """Origin of the token in words, never the token itself; None: there is no token."""
    missing: str = ""
    """Why there is no token."""


def ray_authentication(environ: Mapping[str, str] | None = None) -> RayAuthentication:
    """The authentication that Ray will find, in Ray's order. It is on unless RAY_AUTH_MODE disables it."""
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


def http_token(environ: Mapping[str, str] | None = None) -> str | None:
    """The token of the live page in FARM_HTTP_TOKEN, which no setting holds, so that it is neither shown nor sent."""
    return (os.environ if environ is None else environ).get("FARM_HTTP_TOKEN")


def config_path(environ: Mapping[str, str] | None = None) -> Path:
    """The path of the configuration file, which need not exist."""
    named = (os.environ if environ is None else environ).get("FARM_CONFIG")
    return Path(named).expanduser() if named else Path(platformdirs.user_config_dir("farm")) / "config.toml"


def load_settings(
    environ: Mapping[str, str] | None = None,
    config_file: Path | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> Settings:
    """Reads the settings; `overrides`, from the command line, come first.

    Raises UsageError with the variable or the place in the file, the invalid value, and the expected kind of value.
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
            where = f"--{setting.key}" if origin == "command line" else origin
            raise UsageError(f"{where}: invalid value {_redacted_value(value)}: expected {error}") from None
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
            raise UsageError(f"{path}: '{section}' is not a section. The sections are {names}")
        for key in content:
            if key not in known[section]:
                raise UsageError(
                    f"{path} [{section}]: unknown key '{key}'. The keys are {', '.join(sorted(known[section]))}"
                )
    return document


def set_environment_defaults(values: Mapping[str, str]) -> None:
    """Sets variables that a library reads from the environment, unless the user has set them."""
    for name, value in values.items():
        os.environ.setdefault(name, value)

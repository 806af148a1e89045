"""The table of settings: name, variable, place in the configuration file, type, default and description of each.

Settings are read from this table, `farm config show` prints it, and cli/REFERENCE.md repeats it.
"""

from __future__ import annotations

import getpass
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import platformdirs

from codegen.sass.qualification import DEFAULT_TRUST, TRUSTS
from farm.config.price import Price, read_price
from farm.config.units import DURATIONS, SIZES, format_bytes, format_seconds, read_bytes, read_seconds

LEAST_LIMIT_SECONDS = 3600.0
"""The smallest age limit: nothing younger is removed."""


@dataclass(frozen=True)
class Kind:
    """A type of value: its name in the documentation, its parser and its formatter."""

    name: str
    read: Callable[[Any], Any]
    """Parses a value. Raises ValueError with a description of valid values."""
    show: Callable[[Any], str] = str


@dataclass(frozen=True)
class Setting:
    """One row of the table."""

    name: str
    """Name of the field in Settings."""
    variable: str
    section: str
    key: str
    kind: Kind
    sentence: str
    default: Callable[[], Any]
    default_text: str
    """The default in the documentation, since it may depend on the machine."""

    @property
    def place(self) -> str:
        """The place in the configuration file, such as [store] url."""
        return f"[{self.section}] {self.key}"

    def shown(self, value: Any) -> str:
        """The value with its unit, such as 10 GiB or 90 d; empty for None."""
        return "" if value is None else self.kind.show(value)


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError("a non-empty text")
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


def _whole(least: int) -> Callable[[Any], int]:
    def read(value: Any) -> int:
        if isinstance(value, bool) or not re.fullmatch(r"\d+", str(value)) or int(value) < least:
            raise ValueError(f"a whole number of at least {least}")
        return int(value)

    return read


def _size(value: Any) -> int:
    size = read_bytes(str(value))
    if size < 1:
        raise ValueError(f"{SIZES}, above 0")
    return size


def _size_or_0(value: Any) -> int:
    try:
        return read_bytes(str(value))
    except ValueError as error:
        raise ValueError(f"{error}, or 0") from None


def _size_limit(value: Any) -> int | None:
    return None if value == "" else _size(value)


def _duration(least_seconds: float) -> Callable[[Any], float]:
    def read(value: Any) -> float:
        seconds = read_seconds(str(value))
        if seconds < least_seconds:
            raise ValueError(f"{DURATIONS}, of at least {format_seconds(least_seconds)}")
        return seconds

    return read


def _age_limit(value: Any) -> float | None:
    return None if value == "" else _duration(LEAST_LIMIT_SECONDS)(value)


def _price(value: Any) -> Price | None:
    return None if value == "" else read_price(str(value))


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
"""A libpq URL with the name of a database. The server may be given by ?host=."""


def _database_url(value: Any) -> str:
    text = _text(value)
    if match := _POSTGRESQL.fullmatch(text):
        return f"postgresql+psycopg://{match[1]}"
    if not re.fullmatch(r"sqlite:////[^?]+", text):
        raise ValueError("sqlite:////an/absolute/file.db or postgresql://user@host/database")
    return text


def _executor(value: Any) -> str:
    if value not in ("auto", "ray", "processes", "inline"):
        raise ValueError("auto, ray, processes or inline")
    return str(value)


def _trust(value: Any) -> str:
    if value not in TRUSTS:
        raise ValueError(" or ".join(TRUSTS))
    return str(value)


def _data_folder() -> Path:
    return Path(platformdirs.user_data_dir("farm"))


def _login_name() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container may run under a user id without a name
        return f"user-{os.getuid()}"


def _nothing() -> str:
    return ""


def _flag_text(value: bool) -> str:
    return "true" if value else "false"


TEXT = Kind("text", _text)
OPTIONAL_TEXT = Kind("text", _optional)
FILE = Kind("path", _path)
FLAG = Kind("true or false", _flag, _flag_text)
SIZE = Kind("size", _size, format_bytes)
SIZE_OR_0 = Kind("size", _size_or_0, format_bytes)
SIZE_LIMIT = Kind("size", _size_limit, format_bytes)
DURATION = Kind("duration", _duration(1), format_seconds)
DURATION_OR_0 = Kind("duration", _duration(0), format_seconds)
AGE_LIMIT = Kind("duration", _age_limit, format_seconds)
PRICE = Kind("price", _price)

SETTINGS: tuple[Setting, ...] = (
    Setting(
        "store_url", "FARM_STORE", "store", "url", Kind("URL", _store_url),
        "Store of templates, cubins and weights: `file:///folder` or `s3://bucket/prefix`.",
        lambda: f"file://{_data_folder() / 'store'}", "`$XDG_DATA_HOME/farm/store`",
    ),
    Setting(
        "s3_endpoint", "FARM_S3_ENDPOINT", "store", "s3_endpoint", Kind("URL", _endpoint),
        "An S3 server other than Amazon's, as in `https://host:9000`.",
        _nothing, "Amazon's",
    ),
    Setting(
        "s3_region", "FARM_S3_REGION", "store", "s3_region", OPTIONAL_TEXT,
        "The bucket's region.",
        _nothing, "what boto3 finds",
    ),
    Setting(
        "cache_dir", "FARM_CACHE_DIR", "store", "cache_dir", FILE,
        "Folder for each machine's copies of blobs from S3.",
        _nothing, "`$XDG_CACHE_HOME/farm/store`",
    ),
    Setting(
        "cache_bytes", "FARM_CACHE_SIZE", "store", "cache_size", SIZE_OR_0,
        "How much of S3 each machine keeps at most; `0` keeps nothing.",
        lambda: "10GiB", "10 GiB",
    ),
    Setting(
        "store_bytes", "FARM_STORE_SIZE", "store", "size", SIZE_LIMIT,
        "`farm serve` keeps the store below this size; what was unused for longest goes first.",
        _nothing, "no limit",
    ),
    Setting(
        "store_age_seconds", "FARM_STORE_AGE", "store", "age", AGE_LIMIT,
        "`farm serve` removes from the store what was not used for this long; at least 1 h.",
        _nothing, "no limit",
    ),
    Setting(
        "read_only", "FARM_READ_ONLY", "store", "read_only", FLAG,
        "Write nothing to the store.",
        lambda: False, "false",
    ),
    Setting(
        "signing_keys", "FARM_SIGNING_KEYS", "store", "signing_keys", FILE,
        "Ed25519 keys in PEM, one after another: the first signs results, all are accepted; needed with S3.",
        _nothing, "results are not signed",
    ),
    Setting(
        "recache", "FARM_RECACHE", "store", "recache", FLAG,
        "Build everything again, even what the cache holds.",
        lambda: False, "false",
    ),
    Setting(
        "namespace", "FARM_NAMESPACE", "store", "namespace", TEXT,
        "The team or project that new templates and cubins belong to, for `farm cache ls` and `gc --namespace`.",
        lambda: "default", "`default`",
    ),
    Setting(
        "database_url", "FARM_DATABASE_URL", "database", "url", Kind("URL", _database_url),
        "The ledger: `sqlite:////file.db` or `postgresql://user@host/database`.",
        lambda: f"sqlite:///{_data_folder() / 'farm.db'}", "`$XDG_DATA_HOME/farm/farm.db`",
    ),
    Setting(
        "ledger_age_seconds", "FARM_LEDGER_AGE", "database", "age", AGE_LIMIT,
        "`farm serve` forgets jobs this long after their end; at least 1 h.",
        _nothing, "no limit",
    ),
    Setting(
        "price", "FARM_PRICE", "statistics", "price", PRICE,
        "Price of a core, as in `0.04/core-hour`: `farm plan` and `farm stats` show costs; `--price` overrides it.",
        _nothing, "no costs are shown",
    ),
    Setting(
        "otlp_endpoint", "FARM_OTLP_ENDPOINT", "traces", "otlp_endpoint", Kind("URL", _endpoint),
        "An OpenTelemetry receiver, as in `http://host:4318`, that gets a trace of each job (extra `otel`).",
        _nothing, "no traces",
    ),
    Setting(
        "ray_address", "FARM_RAY_ADDRESS", "ray", "address", OPTIONAL_TEXT,
        "The Ray cluster that builds, as in `host:6379`.",
        _nothing, "Ray on this machine",
    ),
    Setting(
        "executor", "FARM_EXECUTOR", "ray", "executor", Kind("auto, ray, processes or inline", _executor),
        "`processes` builds on this machine without Ray, `inline` in the command's own process, one at a time; `auto` "
        "takes Ray for a cluster and for work of minutes, else `processes`.",
        lambda: "auto", "`auto`",
    ),
    Setting(
        "jobs", "FARM_JOBS", "ray", "jobs", Kind("number", _whole(1)),
        "Builds at once where there is no cluster; `-j` overrides it.",
        lambda: len(os.sched_getaffinity(0)), "all CPUs",
    ),
    Setting(
        "job_timeout_seconds", "FARM_JOB_TIMEOUT", "ray", "job_timeout", DURATION,
        "A job that runs for longer has FAILED.",
        lambda: "1d", "1 d",
    ),
    Setting(
        "max_retries", "FARM_MAX_RETRIES", "ray", "max_retries", Kind("number", _whole(0)),
        "How often a build is tried again after its worker died.",
        lambda: 2, "2",
    ),
    Setting(
        "away_seconds", "FARM_AWAY_TIMEOUT", "ray", "away_timeout", DURATION_OR_0,
        "How long a coordinator waits for a store or a database that does not answer.",
        lambda: "5min", "5 min",
    ),
    Setting(
        "worker_wait_seconds", "FARM_WORKER_WAIT", "ray", "worker_wait", DURATION_OR_0,
        "How long a command waits for a Ray cluster with an autoscaler to start a machine; `farm serve` waits forever.",
        lambda: "10min", "10 min",
    ),
    Setting(
        "submitter", "FARM_SUBMITTER", "ray", "submitter", TEXT,
        "The name that jobs are submitted under.",
        _login_name, "the login name",
    ),
    Setting(
        "trust", "FARM_TRUST", "assembler", "trust", Kind(" or ".join(TRUSTS), _trust),
        "Code that `--assembler auto` assembles directly: `qualified` on a GPU, or also `checked` without one.",
        lambda: DEFAULT_TRUST, f"`{DEFAULT_TRUST}`",
    ),
    Setting(
        "nvcc", "FARM_NVCC", "toolchain", "nvcc", FILE,
        "The nvcc of a system CUDA, with the ptxas beside it.",
        _nothing, "the pinned wheel's",
    ),
    Setting(
        "ptxas", "FARM_PTXAS", "toolchain", "ptxas", FILE,
        "Another ptxas than the one beside nvcc.",
        _nothing, "the one beside nvcc",
    ),
    Setting(
        "runtime_dir", "FARM_RUNTIME_DIR", "toolchain", "runtime_dir", FILE,
        "Folder by which commands on one machine share its cores; users who name one folder share them too.",
        _nothing, "`/tmp/farm-UID`",
    ),
    Setting(
        "tool_timeout_seconds", "FARM_TOOL_TIMEOUT", "toolchain", "timeout", DURATION,
        "One run of nvcc or ptxas is killed after this.",
        lambda: "10min", "10 min",
    ),
    Setting(
        "tool_memory_bytes", "FARM_TOOL_MEMORY", "toolchain", "memory", SIZE,
        "Address space of one run of nvcc or ptxas at most.",
        lambda: "8GiB", "8 GiB",
    ),
    Setting(
        "tool_memory_most_bytes", "FARM_TOOL_MEMORY_MOST", "toolchain", "memory_most", SIZE,
        "A tool that ran out of memory gets twice as much once, but never more than this.",
        lambda: "16GiB", "16 GiB",
    ),
)  # fmt: skip

"""The tables. Times are seconds since 1970 by the database's clock; values that no query selects by are JSON."""

from __future__ import annotations

import re
from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    Dialect,
    Double,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    PrimaryKeyConstraint,
    String,
    Table,
    Text,
    TypeDecorator,
    text,
)
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "pk": "pk_%(table_name)s",
    }
)


_UNSTORABLE = re.compile("[\0\ud800-\udfff]")


class _Storable(TypeDecorator[str]):
    """Text without NUL, which PostgreSQL cannot store but the output of tools may contain, and in valid Unicode.

    Python reads a file's name or an argument that is not UTF-8 as lone surrogates, which no database stores.
    """

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:  # noqa: ARG002 - TypeDecorator's
        return None if value is None else _UNSTORABLE.sub("\N{REPLACEMENT CHARACTER}", value)


class _Words(_Storable):
    """Text of any length."""

    impl = Text
    cache_ok = True


class _Name(_Storable):
    """A name that users give to find a row by."""

    impl = String
    cache_ok = True


_Id = BigInteger().with_variant(Integer, "sqlite")  # SQLite numbers rows only in an INTEGER column

submissions = Table(
    "submissions",
    metadata,
    Column("id", _Name(32), primary_key=True),
    Column("submitter", _Words, nullable=False),
    Column("submitted_at", Double, nullable=False),
)

jobs = Table(
    "jobs",
    metadata,
    Column("number", _Id, primary_key=True, autoincrement=True),
    Column("id", _Name(32), nullable=False, unique=True),
    Column("submission", ForeignKey("submissions.id"), nullable=False),
    Column("name", _Words, nullable=False),
    Column("model", _Words, nullable=False),
    Column("model_digest", String(64), nullable=False),
    Column("request_digest", String(64), nullable=False),
    Column("network", String(64)),
    Column("options", JSON, nullable=False),
    Column("skipped", JSON, nullable=False),
    Column("status", String(16), nullable=False),
    Column("reason", _Words, nullable=False),
    Column("fault", String(16), nullable=False),
    Column("stage", String(16), nullable=False),
    Column("done", Integer, nullable=False),
    Column("total", Integer, nullable=False),
    Column("hits", Integer, nullable=False),
    Column("running", Integer, nullable=False),
    Column("ends_at", Double),
    Column("tries", Integer, nullable=False),
    Column("claims", Integer, nullable=False),  # since it was last planned
    Column("format", Integer, nullable=False),
    Column("submitted_at", Double, nullable=False),
    Column("started_at", Double),
    Column("finished_at", Double),
    Column("coordinator", _Words),
    Column("lease_until", Double),
    Index(None, "status"),
    Index(None, "request_digest"),
    Index(None, "coordinator"),
    Index(None, "submission"),
)

builds = Table(
    "builds",
    metadata,
    Column("id", _Id, primary_key=True, autoincrement=True),
    Column("job", ForeignKey("jobs.id"), nullable=False),
    Column("position", Integer, nullable=False),
    Column("layer", _Words, nullable=False),
    Column("input", _Words, nullable=False),
    Column("output", _Words, nullable=False),
    Column("spec", JSON, nullable=False),
    Column("tiling", JSON, nullable=False),
    Column("weights", String(64), nullable=False),
    Column("nonzeros", Integer, nullable=False),
    Column("mask", String(64), nullable=False),
    Column("parts", JSON, nullable=False),
    Column("residual", _Words, nullable=False),
    Column("rows", Integer, nullable=False),  # 0: unknown
    Column("folded", JSON, nullable=False),
    Column("choices", JSON, nullable=False),
    Column("gate", _Words, nullable=False),
    Index(None, "job"),
    Index(None, "weights"),
)

_MADE = text("skeleton_seconds > 0")

results = Table(
    "results",
    metadata,
    Column("build", ForeignKey("builds.id"), nullable=False),
    Column("arch", String(16), nullable=False),
    Column("part", Integer, nullable=False),
    Column("job", _Name(32), nullable=False),
    Column("outcome", String(16), nullable=False),
    Column("template_key", String(64), nullable=False),
    Column("cubin_key", String(64), nullable=False),
    Column("cubin", String(64)),
    Column("cubin_bytes", Integer, nullable=False),
    Column("ptx", String(64)),
    Column("fmas_kept", Integer, nullable=False),
    Column("fmas_deleted", Integer, nullable=False),
    Column("registers", Integer, nullable=False),
    Column("spill_bytes", Integer, nullable=False),
    Column("template_seconds", Double, nullable=False),
    Column("rewrite_seconds", Double, nullable=False),
    Column("ptxas_seconds", Double, nullable=False),
    Column("skeleton_seconds", Double, nullable=False),
    Column("error", _Words, nullable=False),
    Column("command", _Words, nullable=False),
    Column("optimisation", Integer, nullable=False),
    Column("assembler", String(16), nullable=False),
    Column("fallback", _Words, nullable=False),
    Column("evidence", _Words, nullable=False),
    Column("launch", JSON(none_as_null=True)),
    Column("recorded_at", Double, nullable=False),
    PrimaryKeyConstraint("build", "arch", "part"),
    Index(None, "job"),
    Index(None, "cubin"),
    Index(None, "cubin_key"),
    Index(None, "template_key", "build"),
    Index(None, "template_key", "arch", "skeleton_seconds", sqlite_where=_MADE, postgresql_where=_MADE),
)

job_counters = Table(
    "job_counters",
    metadata,
    Column("job", ForeignKey("jobs.id"), primary_key=True),
    Column("first_at", Double, nullable=False),
    Column("last_at", Double, nullable=False),
    Column("hits", Integer, nullable=False),
    Column("built", Integer, nullable=False),
    Column("failed", Integer, nullable=False),
    Column("direct", Integer, nullable=False),
    Column("spent_seconds", Double, nullable=False),
    Column("saved_seconds", Double, nullable=False),
    Column("fmas_kept", BigInteger, nullable=False),
    Column("fmas_deleted", BigInteger, nullable=False),
    Column("built_bytes", BigInteger, nullable=False),
    Column("hit_bytes", BigInteger, nullable=False),
    Column("template_hits", Integer, nullable=False),
    Column("template_saved_seconds", Double, nullable=False),
    Column("skeleton_hits", Integer, nullable=False),
    Column("skeleton_misses", Integer, nullable=False),
    Column("skeleton_spent_seconds", Double, nullable=False),
    Column("skeleton_saved_seconds", Double, nullable=False),
)

template_runs = Table(
    "template_runs",
    metadata,
    Column("id", _Name(32), primary_key=True),
    Column("template_key", String(64), nullable=False),
    Column("job", _Name(32), nullable=False),
    Column("seconds", Double, nullable=False),
    Column("recorded_at", Double, nullable=False),
    Index(None, "template_key"),
    Index(None, "job"),
)

keys = Table(
    "keys",
    metadata,
    Column("digest", String(64), primary_key=True),
    Column("stage", String(16), nullable=False),
    Column("fields", JSON, nullable=False),
    Column("recorded_at", Double, nullable=False),  # last time, exact to KEY_FRESH_SECONDS
)

events = Table(
    "events",
    metadata,
    Column("id", _Id, primary_key=True, autoincrement=True),
    Column("job", ForeignKey("jobs.id"), nullable=False),
    Column("at", Double, nullable=False),
    Column("level", String(16), nullable=False),
    Column("text", _Words, nullable=False),
    Index(None, "job"),
)

tuning = Table(
    "tuning",
    metadata,
    Column("key", String(64), nullable=False),
    Column("gpu", String(128), nullable=False),
    Column("arch", String(16), nullable=False),
    Column("spec", JSON, nullable=False),
    Column("batch_band", Integer, nullable=False),
    Column("density_band", Double, nullable=False),
    Column("accumulate", String(16), nullable=False),
    Column("optimisation", Integer, nullable=False),
    Column("tiling", JSON, nullable=False),
    Column("microseconds", Double, nullable=False),
    Column("model_microseconds", Double, nullable=False),
    Column("cold_microseconds", Double),
    Column("model_cold_microseconds", Double),
    Column("tried", Integer, nullable=False),
    Column("cubins", JSON, nullable=False),
    Column("measured_at", Double, nullable=False),
    PrimaryKeyConstraint("key", "gpu"),
    Index(None, "arch"),
)

qualifications = Table(
    "qualifications",
    metadata,
    Column("arch", String(16), nullable=False),
    Column("ptxas", String(32), nullable=False),
    Column("data_type", String(16), nullable=False),
    Column("sources", String(64), nullable=False),
    Column("gpu", String(128), nullable=False),
    Column("driver", String(32), nullable=False),
    Column("first", BigInteger, nullable=False),
    Column("layers", BigInteger, nullable=False),
    Column("shapes", BigInteger, nullable=False),
    Column("outputs", BigInteger, nullable=False),
    Column("refused", BigInteger, nullable=False),
    Column("wrong", BigInteger, nullable=False),
    Column("finished_at", Double, nullable=False),
    PrimaryKeyConstraint("arch", "ptxas", "data_type", "sources", "gpu"),
)

coordinators = Table(
    "coordinators",
    metadata,
    Column("id", String(128), primary_key=True),
    Column("node", _Words, nullable=False),
    Column("serves", Boolean, nullable=False),
    Column("since", Double, nullable=False),
    Column("format", Integer, nullable=False),
    Column("seen", Double, nullable=False),
    Column("lease_until", Double, nullable=False),
    Column("workers", JSON, nullable=False),
)

in_flight_keys = Table(
    "in_flight_keys",
    metadata,
    Column("key", String(64), primary_key=True),
    Column("coordinator", String(128), nullable=False),
    Column("local", Boolean, nullable=False),  # built on the coordinator's machine
    Index(None, "coordinator"),
)

key_crashes = Table(
    "key_crashes",
    metadata,
    Column("key", String(64), primary_key=True),
    Column("crashes", Integer, nullable=False),
    Column("crashed_at", Double, nullable=False),
)

marks = Table(
    "marks",
    metadata,
    Column("name", String(32), primary_key=True),
    Column("at", Double, nullable=False),
)


leases = Table(
    "leases",
    metadata,
    Column("name", String(32), primary_key=True),
    Column("holder", String(128), nullable=False),
    Column("expires_at", Double, nullable=False),
)


class _Now(FunctionElement[float]):
    type = Double()
    inherit_cache = True


def now() -> FunctionElement[float]:
    """The database's clock, in seconds since 1970: clients' clocks differ."""
    return _Now()


@compiles(_Now, "sqlite")
def _now_sqlite(_element: _Now, _compiler: Any, **_options: Any) -> str:
    return "((julianday('now') - 2440587.5) * 86400.0)"


@compiles(_Now, "postgresql")
def _now_postgresql(_element: _Now, _compiler: Any, **_options: Any) -> str:
    return "extract(epoch from clock_timestamp())::double precision"

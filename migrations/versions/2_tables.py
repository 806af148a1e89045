"""All tables of the first release."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "2"
down_revision = None

ROW_NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    _create_job_tables()
    _create_counter_table()
    _create_key_tables()
    _create_record_tables()
    _create_coordinator_tables()


def downgrade() -> None:
    tables = (
        "leases",
        "marks",
        "key_crashes",
        "in_flight_keys",
        "coordinators",
        "qualifications",
        "tuning",
        "keys",
        "template_runs",
    )
    for table in (*tables, "events", "job_counters", "results", "builds", "jobs", "submissions"):
        op.drop_table(table)


def _create_job_tables() -> None:
    op.create_table(
        "submissions",
        sa.Column("id", sa.String(32), nullable=False),
        sa.Column("submitter", sa.Text(), nullable=False),
        sa.Column("submitted_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_submissions")),
    )
    op.create_table(
        "jobs",
        sa.Column("number", ROW_NUMBER, autoincrement=True, nullable=False),
        sa.Column("id", sa.String(32), nullable=False),
        sa.Column("submission", sa.String(32), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("model_digest", sa.String(64), nullable=False),
        sa.Column("request_digest", sa.String(64), nullable=False),
        sa.Column("network", sa.String(64)),
        sa.Column("options", sa.JSON(), nullable=False),
        sa.Column("skipped", sa.JSON(), nullable=False),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("fault", sa.String(16), nullable=False),
        sa.Column("stage", sa.String(16), nullable=False),
        sa.Column("done", sa.Integer(), nullable=False),
        sa.Column("total", sa.Integer(), nullable=False),
        sa.Column("hits", sa.Integer(), nullable=False),
        sa.Column("running", sa.Integer(), nullable=False),
        sa.Column("ends_at", sa.Double()),
        sa.Column("tries", sa.Integer(), nullable=False),
        sa.Column("claims", sa.Integer(), nullable=False),
        sa.Column("format", sa.Integer(), nullable=False),
        sa.Column("submitted_at", sa.Double(), nullable=False),
        sa.Column("started_at", sa.Double()),
        sa.Column("finished_at", sa.Double()),
        sa.Column("coordinator", sa.Text()),
        sa.Column("lease_until", sa.Double()),
        sa.ForeignKeyConstraint(["submission"], ["submissions.id"], name=op.f("fk_jobs_submission")),
        sa.PrimaryKeyConstraint("number", name=op.f("pk_jobs")),
        sa.UniqueConstraint("id"),
    )
    for column in ("status", "request_digest", "coordinator", "submission"):
        op.create_index(op.f(f"ix_jobs_{column}"), "jobs", [column])
    op.create_table(
        "builds",
        sa.Column("id", ROW_NUMBER, autoincrement=True, nullable=False),
        sa.Column("job", sa.String(32), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("layer", sa.Text(), nullable=False),
        sa.Column("input", sa.Text(), nullable=False),
        sa.Column("output", sa.Text(), nullable=False),
        sa.Column("spec", sa.JSON(), nullable=False),
        sa.Column("tiling", sa.JSON(), nullable=False),
        sa.Column("weights", sa.String(64), nullable=False),
        sa.Column("nonzeros", sa.Integer(), nullable=False),
        sa.Column("mask", sa.String(64), nullable=False),
        sa.Column("parts", sa.JSON(), nullable=False),
        sa.Column("residual", sa.Text(), nullable=False),
        sa.Column("rows", sa.Integer(), nullable=False),
        sa.Column("folded", sa.JSON(), nullable=False),
        sa.Column("choices", sa.JSON(), nullable=False),
        sa.Column("gate", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["job"], ["jobs.id"], name=op.f("fk_builds_job")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_builds")),
    )
    for column in ("job", "weights"):
        op.create_index(op.f(f"ix_builds_{column}"), "builds", [column])
    op.create_table(
        "results",
        sa.Column("build", ROW_NUMBER, nullable=False),
        sa.Column("arch", sa.String(16), nullable=False),
        sa.Column("part", sa.Integer(), nullable=False),
        sa.Column("job", sa.String(32), nullable=False),
        sa.Column("outcome", sa.String(16), nullable=False),
        sa.Column("template_key", sa.String(64), nullable=False),
        sa.Column("cubin_key", sa.String(64), nullable=False),
        sa.Column("cubin", sa.String(64)),
        sa.Column("cubin_bytes", sa.Integer(), nullable=False),
        sa.Column("ptx", sa.String(64)),
        sa.Column("fmas_kept", sa.Integer(), nullable=False),
        sa.Column("fmas_deleted", sa.Integer(), nullable=False),
        sa.Column("registers", sa.Integer(), nullable=False),
        sa.Column("spill_bytes", sa.Integer(), nullable=False),
        sa.Column("template_seconds", sa.Double(), nullable=False),
        sa.Column("rewrite_seconds", sa.Double(), nullable=False),
        sa.Column("ptxas_seconds", sa.Double(), nullable=False),
        sa.Column("skeleton_seconds", sa.Double(), nullable=False),
        sa.Column("error", sa.Text(), nullable=False),
        sa.Column("command", sa.Text(), nullable=False),
        sa.Column("optimisation", sa.Integer(), nullable=False),
        sa.Column("assembler", sa.String(16), nullable=False),
        sa.Column("fallback", sa.Text(), nullable=False),
        sa.Column("evidence", sa.Text(), nullable=False),
        sa.Column("launch", sa.JSON(none_as_null=True)),
        sa.Column("recorded_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["build"], ["builds.id"], name=op.f("fk_results_build")),
        sa.PrimaryKeyConstraint("build", "arch", "part", name=op.f("pk_results")),
    )
    for column in ("job", "cubin", "cubin_key"):
        op.create_index(op.f(f"ix_results_{column}"), "results", [column])
    op.create_index(op.f("ix_results_template_key_build"), "results", ["template_key", "build"])
    made = sa.text("skeleton_seconds > 0")
    op.create_index(
        op.f("ix_results_template_key_arch_skeleton_seconds"),
        "results",
        ["template_key", "arch", "skeleton_seconds"],
        sqlite_where=made,
        postgresql_where=made,
    )
    op.create_table(
        "events",
        sa.Column("id", ROW_NUMBER, autoincrement=True, nullable=False),
        sa.Column("job", sa.String(32), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("level", sa.String(16), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["job"], ["jobs.id"], name=op.f("fk_events_job")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_events")),
    )
    op.create_index(op.f("ix_events_job"), "events", ["job"])


def _create_counter_table() -> None:
    op.create_table(
        "job_counters",
        sa.Column("job", sa.String(32), nullable=False),
        sa.Column("first_at", sa.Double(), nullable=False),
        sa.Column("last_at", sa.Double(), nullable=False),
        sa.Column("hits", sa.Integer(), nullable=False),
        sa.Column("built", sa.Integer(), nullable=False),
        sa.Column("failed", sa.Integer(), nullable=False),
        sa.Column("direct", sa.Integer(), nullable=False),
        sa.Column("spent_seconds", sa.Double(), nullable=False),
        sa.Column("saved_seconds", sa.Double(), nullable=False),
        sa.Column("fmas_kept", sa.BigInteger(), nullable=False),
        sa.Column("fmas_deleted", sa.BigInteger(), nullable=False),
        sa.Column("built_bytes", sa.BigInteger(), nullable=False),
        sa.Column("hit_bytes", sa.BigInteger(), nullable=False),
        sa.Column("template_hits", sa.Integer(), nullable=False),
        sa.Column("template_saved_seconds", sa.Double(), nullable=False),
        sa.Column("skeleton_hits", sa.Integer(), nullable=False),
        sa.Column("skeleton_misses", sa.Integer(), nullable=False),
        sa.Column("skeleton_spent_seconds", sa.Double(), nullable=False),
        sa.Column("skeleton_saved_seconds", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["job"], ["jobs.id"], name=op.f("fk_job_counters_job")),
        sa.PrimaryKeyConstraint("job", name=op.f("pk_job_counters")),
    )


def _create_key_tables() -> None:
    op.create_table(
        "template_runs",
        sa.Column("id", sa.String(32), nullable=False),
        sa.Column("template_key", sa.String(64), nullable=False),
        sa.Column("job", sa.String(32), nullable=False),
        sa.Column("seconds", sa.Double(), nullable=False),
        sa.Column("recorded_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_template_runs")),
    )
    for column in ("template_key", "job"):
        op.create_index(op.f(f"ix_template_runs_{column}"), "template_runs", [column])
    op.create_table(
        "keys",
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("stage", sa.String(16), nullable=False),
        sa.Column("fields", sa.JSON(), nullable=False),
        sa.Column("recorded_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("digest", name=op.f("pk_keys")),
    )


def _create_record_tables() -> None:
    op.create_table(
        "tuning",
        sa.Column("key", sa.String(64), nullable=False),
        sa.Column("gpu", sa.String(128), nullable=False),
        sa.Column("arch", sa.String(16), nullable=False),
        sa.Column("spec", sa.JSON(), nullable=False),
        sa.Column("batch_band", sa.Integer(), nullable=False),
        sa.Column("density_band", sa.Double(), nullable=False),
        sa.Column("accumulate", sa.String(16), nullable=False),
        sa.Column("optimisation", sa.Integer(), nullable=False),
        sa.Column("tiling", sa.JSON(), nullable=False),
        sa.Column("microseconds", sa.Double(), nullable=False),
        sa.Column("model_microseconds", sa.Double(), nullable=False),
        sa.Column("cold_microseconds", sa.Double()),
        sa.Column("model_cold_microseconds", sa.Double()),
        sa.Column("tried", sa.Integer(), nullable=False),
        sa.Column("cubins", sa.JSON(), nullable=False),
        sa.Column("measured_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("key", "gpu", name=op.f("pk_tuning")),
    )
    op.create_index(op.f("ix_tuning_arch"), "tuning", ["arch"])
    op.create_table(
        "qualifications",
        sa.Column("arch", sa.String(16), nullable=False),
        sa.Column("ptxas", sa.String(32), nullable=False),
        sa.Column("data_type", sa.String(16), nullable=False),
        sa.Column("sources", sa.String(64), nullable=False),
        sa.Column("gpu", sa.String(128), nullable=False),
        sa.Column("driver", sa.String(32), nullable=False),
        sa.Column("first", sa.BigInteger(), nullable=False),
        sa.Column("layers", sa.BigInteger(), nullable=False),
        sa.Column("shapes", sa.BigInteger(), nullable=False),
        sa.Column("outputs", sa.BigInteger(), nullable=False),
        sa.Column("refused", sa.BigInteger(), nullable=False),
        sa.Column("wrong", sa.BigInteger(), nullable=False),
        sa.Column("finished_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("arch", "ptxas", "data_type", "sources", "gpu", name=op.f("pk_qualifications")),
    )


def _create_coordinator_tables() -> None:
    op.create_table(
        "coordinators",
        sa.Column("id", sa.String(128), nullable=False),
        sa.Column("node", sa.Text(), nullable=False),
        sa.Column("serves", sa.Boolean(), nullable=False),
        sa.Column("since", sa.Double(), nullable=False),
        sa.Column("format", sa.Integer(), nullable=False),
        sa.Column("seen", sa.Double(), nullable=False),
        sa.Column("lease_until", sa.Double(), nullable=False),
        sa.Column("workers", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_coordinators")),
    )
    op.create_table(
        "in_flight_keys",
        sa.Column("key", sa.String(64), nullable=False),
        sa.Column("coordinator", sa.String(128), nullable=False),
        sa.Column("local", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_in_flight_keys")),
    )
    op.create_index(op.f("ix_in_flight_keys_coordinator"), "in_flight_keys", ["coordinator"])
    op.create_table(
        "key_crashes",
        sa.Column("key", sa.String(64), nullable=False),
        sa.Column("crashes", sa.Integer(), nullable=False),
        sa.Column("crashed_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_key_crashes")),
    )
    op.create_table(
        "marks",
        sa.Column("name", sa.String(32), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_marks")),
    )
    op.create_table(
        "leases",
        sa.Column("name", sa.String(32), nullable=False),
        sa.Column("holder", sa.String(128), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_leases")),
    )

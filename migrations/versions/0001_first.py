"""The first tables: submissions, jobs, builds, results, keys, events."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    op.create_table(
        "keys",
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("stage", sa.String(length=16), nullable=False),
        sa.Column("fields", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("digest", name=op.f("pk_keys")),
    )
    op.create_table(
        "submissions",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("submitter", sa.Text(), nullable=False),
        sa.Column("submitted_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_submissions")),
    )
    op.create_table(
        "jobs",
        sa.Column("number", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("submission", sa.String(length=32), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("model_digest", sa.String(length=64), nullable=False),
        sa.Column("request_digest", sa.String(length=64), nullable=False),
        sa.Column("options", sa.JSON(), nullable=False),
        sa.Column("skipped", sa.JSON(), nullable=False),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("stage", sa.String(length=16), nullable=False),
        sa.Column("done", sa.Integer(), nullable=False),
        sa.Column("total", sa.Integer(), nullable=False),
        sa.Column("hits", sa.Integer(), nullable=False),
        sa.Column("tries", sa.Integer(), nullable=False),
        sa.Column("submitted_at", sa.Double(), nullable=False),
        sa.Column("started_at", sa.Double(), nullable=True),
        sa.Column("finished_at", sa.Double(), nullable=True),
        sa.Column("coordinator", sa.Text(), nullable=True),
        sa.Column("lease_until", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(["submission"], ["submissions.id"], name=op.f("fk_jobs_submission")),
        sa.PrimaryKeyConstraint("number", name=op.f("pk_jobs")),
        sa.UniqueConstraint("id"),
    )
    op.create_index(op.f("ix_jobs_coordinator"), "jobs", ["coordinator"], unique=False)
    op.create_index(op.f("ix_jobs_request_digest"), "jobs", ["request_digest"], unique=False)
    op.create_index(op.f("ix_jobs_status"), "jobs", ["status"], unique=False)
    op.create_table(
        "builds",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("job", sa.String(length=32), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("layer", sa.Text(), nullable=False),
        sa.Column("input", sa.Text(), nullable=False),
        sa.Column("output", sa.Text(), nullable=False),
        sa.Column("spec", sa.JSON(), nullable=False),
        sa.Column("tiling", sa.JSON(), nullable=False),
        sa.Column("weights", sa.String(length=64), nullable=False),
        sa.Column("nonzeros", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(["job"], ["jobs.id"], name=op.f("fk_builds_job")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_builds")),
    )
    op.create_index(op.f("ix_builds_job"), "builds", ["job"], unique=False)
    op.create_table(
        "events",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("job", sa.String(length=32), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("level", sa.String(length=16), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["job"], ["jobs.id"], name=op.f("fk_events_job")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_events")),
    )
    op.create_index(op.f("ix_events_job"), "events", ["job"], unique=False)
    op.create_table(
        "results",
        sa.Column("build", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("arch", sa.String(length=16), nullable=False),
        sa.Column("job", sa.String(length=32), nullable=False),
        sa.Column("outcome", sa.String(length=16), nullable=False),
        sa.Column("template_key", sa.String(length=64), nullable=False),
        sa.Column("cubin_key", sa.String(length=64), nullable=False),
        sa.Column("cubin", sa.String(length=64), nullable=True),
        sa.Column("cubin_bytes", sa.Integer(), nullable=False),
        sa.Column("ptx", sa.String(length=64), nullable=True),
        sa.Column("fmas_kept", sa.Integer(), nullable=False),
        sa.Column("fmas_deleted", sa.Integer(), nullable=False),
        sa.Column("registers", sa.Integer(), nullable=False),
        sa.Column("spill_bytes", sa.Integer(), nullable=False),
        sa.Column("template_seconds", sa.Double(), nullable=False),
        sa.Column("rewrite_seconds", sa.Double(), nullable=False),
        sa.Column("ptxas_seconds", sa.Double(), nullable=False),
        sa.Column("error", sa.Text(), nullable=False),
        sa.Column("command", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["build"], ["builds.id"], name=op.f("fk_results_build")),
        sa.PrimaryKeyConstraint("build", "arch", name=op.f("pk_results")),
    )
    op.create_index(op.f("ix_results_cubin"), "results", ["cubin"], unique=False)
    op.create_index(op.f("ix_results_job"), "results", ["job"], unique=False)


def downgrade() -> None:
    for table in ("events", "keys", "results", "builds", "jobs", "submissions"):
        op.drop_table(table)

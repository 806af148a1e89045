"""When each result was recorded, from when `farm stats` counts, and an index for the removal of old jobs."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    op.create_table(
        "marks",
        sa.Column("name", sa.String(32), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_marks")),
    )
    op.create_index(op.f("ix_jobs_submission"), "jobs", ["submission"])
    op.add_column("results", sa.Column("recorded_at", sa.Double(), nullable=False, server_default="0"))
    # As near as is known.
    op.execute(
        "update results set recorded_at = (select coalesce(jobs.finished_at, jobs.started_at, jobs.submitted_at)"
        " from jobs where jobs.id = results.job)"
    )


def downgrade() -> None:
    op.drop_column("results", "recorded_at")
    op.drop_index(op.f("ix_jobs_submission"), "jobs")
    op.drop_table("marks")

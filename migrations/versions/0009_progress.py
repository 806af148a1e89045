"""How far jobs are, as their coordinators predict; and every run of nvcc as a row of its own."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    op.add_column("jobs", sa.Column("running", sa.Integer(), nullable=False, server_default="0"))
    op.add_column("jobs", sa.Column("ends_at", sa.Double(), nullable=True))
    op.create_table(
        "template_runs",
        sa.Column("id", sa.String(32), nullable=False),
        sa.Column("template_key", sa.String(64), nullable=False),
        sa.Column("job", sa.String(32), nullable=False),
        sa.Column("seconds", sa.Double(), nullable=False),
        sa.Column("recorded_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_template_runs")),
    )
    op.create_index(op.f("ix_template_runs_template_key"), "template_runs", ["template_key"])
    op.create_index(op.f("ix_template_runs_job"), "template_runs", ["job"])
    # Before, jobs that shared a run had its very time, and nobody else had.
    op.execute(
        "insert into template_runs (id, template_key, job, seconds, recorded_at)"
        " select 'before-0009-' || cast(row_number() over (order by min(recorded_at)) as text), template_key, min(job),"
        " template_seconds, min(recorded_at) from results where template_seconds > 0"
        " group by template_key, template_seconds"
    )


def downgrade() -> None:
    op.drop_index(op.f("ix_template_runs_job"), "template_runs")
    op.drop_index(op.f("ix_template_runs_template_key"), "template_runs")
    op.drop_table("template_runs")
    op.drop_column("jobs", "ends_at")
    op.drop_column("jobs", "running")

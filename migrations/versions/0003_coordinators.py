"""Coordinators say that they are alive, which keys they build, and how well their workers do."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    op.create_table(
        "coordinators",
        sa.Column("id", sa.String(128), nullable=False),
        sa.Column("node", sa.Text(), nullable=False),
        sa.Column("serves", sa.Boolean(), nullable=False),
        sa.Column("since", sa.Double(), nullable=False),
        sa.Column("seen", sa.Double(), nullable=False),
        sa.Column("lease_until", sa.Double(), nullable=False),
        sa.Column("workers", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_coordinators")),
    )
    op.create_table(
        "flights",
        sa.Column("key", sa.String(64), nullable=False),
        sa.Column("coordinator", sa.String(128), nullable=False),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_flights")),
    )
    op.create_index(op.f("ix_flights_coordinator"), "flights", ["coordinator"])
    op.add_column("jobs", sa.Column("fault", sa.String(16), nullable=False, server_default=""))
    op.add_column("results", sa.Column("optimisation", sa.Integer(), nullable=False, server_default="3"))
    # What was compiled before had the level that its job asked for.
    op.execute(
        "update results set optimisation ="
        " (select cast(jobs.options ->> 'optimisation' as integer) from jobs where jobs.id = results.job)"
    )


def downgrade() -> None:
    op.drop_column("results", "optimisation")
    op.drop_column("jobs", "fault")
    op.drop_index(op.f("ix_flights_coordinator"), "flights")
    op.drop_table("flights")
    op.drop_table("coordinators")

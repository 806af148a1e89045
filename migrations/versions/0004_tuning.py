"""Tuning records; a layer's architectures may have different tilings, and each says where its own comes from."""

from __future__ import annotations

from collections import Counter

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"

JOBS = sa.table("jobs", sa.column("id", sa.String), sa.column("options", sa.JSON))
BUILDS = sa.table("builds", sa.column("job", sa.String), sa.column("position", sa.Integer))


def upgrade() -> None:
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
        sa.Column("tried", sa.Integer(), nullable=False),
        sa.Column("cubins", sa.JSON(), nullable=False),
        sa.Column("measured_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("key", "gpu", name=op.f("pk_tuning")),
    )
    op.create_index(op.f("ix_tuning_arch"), "tuning", ["arch"])
    op.add_column("builds", sa.Column("choices", sa.JSON(), nullable=False, server_default="[]"))


def downgrade() -> None:
    """Jobs with a layer of several tilings are deleted: without the choices each would be for all architectures."""
    connection = op.get_bind()
    tilings = Counter((row.job, row.position) for row in connection.execute(sa.select(BUILDS)))
    foreign = {job for (job, _), count in tilings.items() if count > 1}
    for table, column in (("events", "job"), ("results", "job"), ("builds", "job"), ("jobs", "id")):
        of_job = sa.table(table, sa.column(column, sa.String))
        for job in foreign:
            connection.execute(sa.delete(of_job).where(of_job.c[column] == job))
    for row in connection.execute(sa.select(JOBS)).all():
        options = {name: value for name, value in row.options.items() if name != "tuning"}
        connection.execute(sa.update(JOBS).where(JOBS.c.id == row.id).values(options=options))
    op.drop_column("builds", "choices")
    op.drop_index(op.f("ix_tuning_arch"), "tuning")
    op.drop_table("tuning")

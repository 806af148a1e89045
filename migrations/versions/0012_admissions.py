"""Admission records: which GPUs ran code without ptxas, and found it to be the same."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"


def upgrade() -> None:
    op.create_table(
        "admissions",
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
        sa.Column("tried_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("arch", "ptxas", "data_type", "sources", "gpu", name=op.f("pk_admissions")),
    )


def downgrade() -> None:
    op.drop_table("admissions")

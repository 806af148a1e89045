"""What ptxas took for the skeleton of a cubin that is assembled directly; nobody wrote it down."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"


def upgrade() -> None:
    op.add_column("results", sa.Column("skeleton_seconds", sa.Double(), nullable=False, server_default="0"))


def downgrade() -> None:
    op.drop_column("results", "skeleton_seconds")

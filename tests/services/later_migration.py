"""A migration that a later version of this program might have."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "3"
down_revision = "2"


def upgrade() -> None:
    op.add_column("jobs", sa.Column("priority", sa.Integer(), nullable=False, server_default="7"))
    op.create_table("shelves", sa.Column("id", sa.Integer(), primary_key=True))


def downgrade() -> None:
    op.drop_table("shelves")
    op.drop_column("jobs", "priority")

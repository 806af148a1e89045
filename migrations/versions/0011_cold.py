"""What a layer takes as in a network, beside its time with its code in the caches; it was not measured."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"


def upgrade() -> None:
    op.add_column("tuning", sa.Column("cold_microseconds", sa.Double()))
    op.add_column("tuning", sa.Column("model_cold_microseconds", sa.Double()))


def downgrade() -> None:
    op.drop_column("tuning", "model_cold_microseconds")
    op.drop_column("tuning", "cold_microseconds")

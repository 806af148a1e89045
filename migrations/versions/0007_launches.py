"""How each cubin is launched, beside its digest; older ones say nothing and have to be compiled again."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    op.add_column("results", sa.Column("launch", sa.JSON(none_as_null=True), nullable=True))


def downgrade() -> None:
    op.drop_column("results", "launch")

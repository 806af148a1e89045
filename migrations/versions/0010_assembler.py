"""Who made each cubin's machine code, ptxas or the direct assembler, and why not the latter; it was always ptxas."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    op.add_column("results", sa.Column("assembler", sa.String(16), nullable=False, server_default="ptxas"))
    op.add_column("results", sa.Column("fallback", sa.Text(), nullable=False, server_default=""))


def downgrade() -> None:
    op.drop_column("results", "fallback")
    op.drop_column("results", "assembler")

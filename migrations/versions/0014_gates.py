"""What a gated layer's input is multiplied by; layers had none."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"


def upgrade() -> None:
    op.add_column("builds", sa.Column("gate", sa.Text(), nullable=False, server_default=""))


def downgrade() -> None:
    op.drop_column("builds", "gate")

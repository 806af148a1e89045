"""What is left of each job's model beside its compiled layers; older jobs do not know."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    op.add_column("jobs", sa.Column("network", sa.String(length=64), nullable=True))


def downgrade() -> None:
    op.drop_column("jobs", "network")

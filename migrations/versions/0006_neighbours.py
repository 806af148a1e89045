"""Indices for `farm explain`: who used a key, and which builds have the same template or weights."""

from __future__ import annotations

from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    op.create_index(op.f("ix_builds_weights"), "builds", ["weights"])
    op.create_index(op.f("ix_results_cubin_key"), "results", ["cubin_key"])
    op.create_index(op.f("ix_results_template_key_build"), "results", ["template_key", "build"])


def downgrade() -> None:
    op.drop_index(op.f("ix_results_template_key_build"), "results")
    op.drop_index(op.f("ix_results_cubin_key"), "results")
    op.drop_index(op.f("ix_builds_weights"), "builds")

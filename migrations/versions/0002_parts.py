"""Large layers have several parts; layers have a residual, rows, folded nodes, and specs of more than convolutions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"

NEW_OF_SPEC: dict[str, Any] = {"dilation": [1, 1], "groups": 1, "epilogue": [], "data_type": "float32"}
"""What the layers of 0001 have in the fields that their specs lack."""
NEW_OF_OPTIONS: dict[str, Any] = {"accumulate": "float32", "code_limit_bytes": 5_000_000}
"""5 MB was the limit of 0001."""
NEW_OF_TILING: dict[str, Any] = {"accumulate": "float32"}

JOBS = sa.table("jobs", sa.column("id", sa.String), sa.column("options", sa.JSON))
BUILDS = sa.table(
    "builds",
    sa.column("id", sa.Integer),
    sa.column("job", sa.String),
    sa.column("spec", sa.JSON),
    sa.column("tiling", sa.JSON),
    sa.column("parts", sa.JSON),
)


def upgrade() -> None:
    # Added in place: SQLite cannot replace a table that others refer to.
    op.add_column("builds", sa.Column("parts", sa.JSON(), nullable=False, server_default="[]"))
    op.add_column("builds", sa.Column("residual", sa.Text(), nullable=False, server_default=""))
    op.add_column("builds", sa.Column("rows", sa.Integer(), nullable=False, server_default="1"))
    op.add_column("builds", sa.Column("folded", sa.JSON(), nullable=False, server_default="[]"))
    with op.batch_alter_table("results") as results:
        results.add_column(sa.Column("part", sa.Integer(), nullable=False, server_default="0"))
        results.drop_constraint(op.f("pk_results"), type_="primary")
        results.create_primary_key(op.f("pk_results"), ["build", "arch", "part"])
    _change(BUILDS, _build_of_0001)
    _change(JOBS, lambda row: {"options": row.options | NEW_OF_OPTIONS})


def downgrade() -> None:
    """Jobs with a layer that 0001 has no words for are deleted: it would take them for something else."""
    connection = op.get_bind()
    foreign = {row.job for row in connection.execute(sa.select(BUILDS)) if not _fits_0001(row)}
    for table, column in (("events", "job"), ("results", "job"), ("builds", "job"), ("jobs", "id")):
        of_job = sa.table(table, sa.column(column, sa.String))
        for job in foreign:
            connection.execute(sa.delete(of_job).where(of_job.c[column] == job))
    _change(JOBS, lambda row: {"options": _without(row.options, NEW_OF_OPTIONS)})
    _change(
        BUILDS,
        lambda row: {"spec": _without(row.spec, NEW_OF_SPEC), "tiling": _without(row.tiling, NEW_OF_TILING)},
    )
    with op.batch_alter_table("results") as results:
        results.drop_constraint(op.f("pk_results"), type_="primary")
        results.create_primary_key(op.f("pk_results"), ["build", "arch"])
        results.drop_column("part")
    for column in ("parts", "residual", "rows", "folded"):
        op.drop_column("builds", column)


def _build_of_0001(row: Any) -> dict[str, Any]:
    parts = [[0, _groups(row.spec, row.tiling)]]
    return {"spec": row.spec | NEW_OF_SPEC, "tiling": row.tiling | NEW_OF_TILING, "parts": parts}


def _groups(spec: dict[str, Any], tiling: dict[str, Any]) -> int:
    """K groups: a layer of 0001 is one kernel with all of them."""
    return int(-(-spec["kernels"] // tiling["group_outputs"]))


def _fits_0001(row: Any) -> bool:
    return row.spec["operator"] == "conv2d" and len(row.parts) == 1 and row.spec == row.spec | NEW_OF_SPEC


def _without(fields: dict[str, Any], names: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if name not in names}


def _change(table: Any, changed: Callable[[Any], dict[str, Any]]) -> None:
    """Rewrites JSON columns of every row."""
    connection = op.get_bind()
    for row in connection.execute(sa.select(table)).all():
        connection.execute(sa.update(table).where(table.c.id == row.id).values(changed(row)))

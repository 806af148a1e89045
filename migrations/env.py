"""Alembic's entry point: runs the migrations on the engine of farm/ledger/schema.py."""

from __future__ import annotations

from alembic import context

from farm.ledger.tables import metadata


def run() -> None:
    engine = context.config.attributes["engine"].execution_options(farm_writes=True)
    with engine.connect() as connection:
        # One transaction for everything: farm's engine begins it, so on SQLite it covers the tables too.
        context.configure(connection=connection, target_metadata=metadata, render_as_batch=True, transactional_ddl=True)
        with context.begin_transaction():
            context.run_migrations()


run()

"""What Alembic runs: the revisions, on the engine that farm/ledger/schema.py hands over."""

from __future__ import annotations

from alembic import context

from farm.ledger.tables import metadata


def run() -> None:
    engine = context.config.attributes["engine"].execution_options(farm_writes=True)
    with engine.connect() as connection:
        # All or nothing: farm's engine begins transactions itself, so SQLite's cover the tables too.
        context.configure(connection=connection, target_metadata=metadata, render_as_batch=True, transactional_ddl=True)
        with context.begin_transaction():
            context.run_migrations()


run()

"""`farm db`: the ledger's schema."""

from __future__ import annotations

import typer

from cli.render import stdout

app = typer.Typer(help="The ledger's database.", no_args_is_help=True)


@app.callback()
def database() -> None:
    """The ledger's database."""


@app.command("current")
def current() -> None:
    """Print the revision of the database and of this program."""
    from farm.ledger import database_revision
    from farm.settings import load_settings, redacted

    settings = load_settings()
    found, newest = database_revision(settings)
    stdout().print(f"{found or 'empty'} (this program: {newest})  {redacted(settings.database_url)}", soft_wrap=True)


@app.command("upgrade")
def upgrade() -> None:
    """Bring the database to this program's revision."""
    from farm.ledger import database_revision, upgrade_database
    from farm.settings import load_settings

    settings = load_settings()
    before, newest = database_revision(settings)
    upgrade_database(settings)
    stdout().print("nothing to do" if before == newest else f"upgraded from {before or 'empty'} to {newest}")

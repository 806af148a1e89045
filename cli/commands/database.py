"""`farm db`: the ledger's database."""

from __future__ import annotations

from typing import Annotated

import typer

from cli.options.parse import seconds_of
from cli.output.console import stdout
from cli.progress.spinner import spinner
from farm.config.units import counted

app = typer.Typer(help="The ledger's database.", no_args_is_help=True)


@app.callback()
def database() -> None:
    """The ledger's database."""


@app.command("current")
def current() -> None:
    """Print the revision of the database and of this program."""
    from farm.config.settings import load_settings, redacted
    from farm.ledger import database_revision

    settings = load_settings()
    found, newest = database_revision(settings)
    stdout().print(f"{found or 'empty'} (this program: {newest})  {redacted(settings.database_url)}", soft_wrap=True)


@app.command("upgrade")
def upgrade(
    while_running: Annotated[
        bool, typer.Option("--while-running", help="Also while coordinators of another version are alive.")
    ] = False,
) -> None:
    """Upgrade the database to this program's revision.

    SQLite files are upgraded by every command; a PostgreSQL server is upgraded by this command only. Refused while a
    coordinator is alive; one that was killed counts as alive for half a minute.
    """
    from farm.config.settings import load_settings
    from farm.ledger import database_revision, upgrade_database

    settings = load_settings()
    before, newest = database_revision(settings)
    upgrade_database(settings, while_running=while_running)
    stdout().print("nothing to do" if before == newest else f"upgraded from {before or 'empty'} to {newest}")


@app.command("prune")
def prune(
    older_than: Annotated[
        str,
        typer.Option(
            "--older-than", metavar="DURATION", help="Age of the jobs since their end, as in 90d; at least 1h."
        ),
    ],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show how many would be deleted.")] = False,
) -> None:
    """Delete old finished jobs with their builds, results and logs; the store is not touched.

    Jobs are deleted in batches of a few hundred, so that others hardly wait. farm cache gc then frees their blobs.
    """
    from farm.api import Farm
    from farm.config.settings import load_settings

    age_seconds = seconds_of("--older-than", older_than)
    with Farm.open(load_settings()) as farm:
        if dry_run:
            stdout().print(f"would prune {counted(farm.count_prunable(age_seconds), 'job')}")
            return
        removed = 0
        with spinner("pruning jobs") as tell:
            for some in farm.prune(age_seconds):
                removed += some
                tell("jobs", removed)
    stdout().print(f"pruned {counted(removed, 'job')}{'; farm cache gc frees their blobs' if removed else ''}")

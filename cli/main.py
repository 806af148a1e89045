"""The command `farm`, and the one place where an error becomes an exit code."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Sequence

import click
import typer

from cli.bundle_command import fetch
from cli.compile_command import compile_models
from cli.config_command import app as config_app
from cli.database_command import app as database_app
from cli.demo_command import demo
from cli.doctor_command import doctor
from cli.exit_codes import INTERNAL, INTERRUPTED, USAGE, exit_code_of
from cli.inspect_command import inspect
from cli.logs_command import logs
from cli.render import stderr
from cli.status_command import status
from cli.verify_command import verify

app = typer.Typer(
    name="farm",
    help="Compiles pruned neural networks to GPU machine code made for one set of weights.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(value: bool) -> None:
    if value:
        from importlib.metadata import version

        typer.echo(f"farm {version('sparse-compile-farm')}")
        raise typer.Exit


@app.callback()
def options(
    version: bool = typer.Option(
        False, "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
    ),
) -> None:
    """Compiles pruned neural networks to GPU machine code made for one set of weights."""


app.command("compile")(compile_models)
app.command("status")(status)
app.command("inspect")(inspect)
app.command("logs")(logs)
app.command("fetch")(fetch)
app.command("verify")(verify)
app.command("doctor")(doctor)
app.command("demo")(demo)
app.add_typer(config_app, name="config")
app.add_typer(database_app, name="db")


def run(arguments: Sequence[str]) -> int:
    """Runs one command; gives its exit code (conventions: 0 ok, 1 internal, 2 usage, 32, 39, 100 to 103)."""
    try:
        result = app(args=list(arguments), prog_name="farm", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        return USAGE
    except (KeyboardInterrupt, click.Abort):
        stderr().print("interrupted", style="yellow")
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of the pipe has seen enough.
        sys.stderr.close()
        return 0
    except Exception as error:  # the last stop: whatever is not one of ours is a defect, shown whole
        code = exit_code_of(error)
        if code is None:
            traceback.print_exc()
            stderr().print("internal error: this is a defect of farm, the lines above say where", style="red")
            return INTERNAL
        stderr().print(f"farm: {error}", style="red", markup=False)
        return code
    return result if isinstance(result, int) else 0


def main() -> None:
    """The entry point."""
    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()

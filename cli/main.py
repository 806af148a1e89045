"""The command `farm`: registers every command and turns errors into exit codes."""

from __future__ import annotations

import errno
import gc
import os
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from inspect import cleandoc
from types import FrameType
from typing import Annotated, Any

import typer

from cli.commands.bench import app as bench_app
from cli.commands.bundle import app as bundle_app
from cli.commands.cache import app as cache_app
from cli.commands.cancel import cancel, retry
from cli.commands.compile import compile_models
from cli.commands.config import app as config_app
from cli.commands.database import app as database_app
from cli.commands.demo import demo
from cli.commands.doctor import doctor
from cli.commands.explain import explain
from cli.commands.export import export
from cli.commands.fetch import fetch
from cli.commands.inspect import inspect
from cli.commands.logs import logs
from cli.commands.plan import plan
from cli.commands.qualify import qualify
from cli.commands.report import report
from cli.commands.run import run_bundle
from cli.commands.serve import serve
from cli.commands.stats import stats
from cli.commands.status import status
from cli.commands.submit import submit
from cli.commands.tune import tune
from cli.commands.tuning import app as tuning_app
from cli.commands.verify import verify
from cli.commands.wait import wait
from cli.commands.workers import workers
from cli.examples import examples_text
from cli.exit_codes import INTERNAL, INTERRUPTED, OK, UNREACHABLE, USAGE, exit_code_of
from cli.output.console import discard, open_closed_streams, print_error, stderr

DISTRIBUTION = "sparse-compile-farm"

app = typer.Typer(
    name="farm",
    help="Compile pruned neural networks to GPU machine code specialised for one set of weights.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=examples_text("farm"),
)


def _print_version(value: bool) -> None:
    if value:
        from importlib.metadata import PackageNotFoundError, version

        try:
            typer.echo(f"farm {version(DISTRIBUTION)}")
        except PackageNotFoundError:
            typer.echo("farm, run from a checkout that is not installed")
        raise typer.Exit


COMPILE, JOBS, RESULTS = "Compile", "Jobs", "Results"
SPEED, OPERATION = "Speed on a GPU", "Operation"


def _add(name: str, command: Callable[..., Any], group: str) -> None:
    """Register a command in a group of `farm --help`, with examples below its own help."""
    app.command(name, rich_help_panel=group, epilog=examples_text(name))(command)


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Compile pruned neural networks to GPU machine code specialised for one set of weights."""


_add("compile", compile_models, COMPILE)
_add("plan", plan, COMPILE)
_add("submit", submit, COMPILE)
_add("serve", serve, COMPILE)
_add("demo", demo, COMPILE)
_add("status", status, JOBS)
_add("inspect", inspect, JOBS)
_add("report", report, JOBS)
_add("logs", logs, JOBS)
_add("wait", wait, JOBS)
_add("explain", explain, JOBS)
_add("cancel", cancel, JOBS)
_add("retry", retry, JOBS)
_add("fetch", fetch, RESULTS)
_add("verify", verify, RESULTS)
_add("run", run_bundle, RESULTS)
_add("export", export, RESULTS)
app.add_typer(bundle_app, name="bundle", rich_help_panel=RESULTS)
_add("tune", tune, SPEED)
app.add_typer(tuning_app, name="tuning", rich_help_panel=SPEED)
app.add_typer(bench_app, name="bench", rich_help_panel=SPEED)
_add("qualify", qualify, OPERATION)
_add("doctor", doctor, OPERATION)
_add("workers", workers, OPERATION)
_add("stats", stats, OPERATION)
app.add_typer(cache_app, name="cache", rich_help_panel=OPERATION)
app.add_typer(config_app, name="config", rich_help_panel=OPERATION)
app.add_typer(database_app, name="db", rich_help_panel=OPERATION)


def root_command() -> Any:
    """The whole command line as Typer runs it, each paragraph of a help text on one line, for the terminal to wrap."""
    root: Any = typer.main.get_command(app)
    for command in root.commands.values():
        for each in (command, *getattr(command, "commands", {}).values()):
            each.help = "\n\n".join(" ".join(paragraph.split()) for paragraph in cleandoc(each.help).split("\n\n"))
    return root


FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""Errors of writing to a full or broken disk."""

EXPECTED = {
    "int_parsing": "a whole number",
    "float_parsing": "a number",
    "greater_than_equal": "a number of at least {ge}",
    "less_than_equal": "a number of at most {le}",
}
"""The values of an option, by the kind of pydantic's error."""

REFUSED = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENAMETOOLONG)
"""Errors of a path that the system does not let this user open; no bug, wherever the path was first used."""


def run(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code (cli/exit_codes.py). Each error is one line on stderr."""
    code = _run(arguments)
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        discard(sys.stdout)  # its buffer must not fail at the end of the program
    except OSError as error:
        code = _output_lost(error)
    return code


def _run(arguments: Sequence[str]) -> int:
    command = root_command()
    try:
        # Not `app()`, which exits by itself with its own codes.
        with command.make_context("farm", list(arguments)) as context:
            result = command.invoke(context)
    except typer.Exit as end:
        return end.exit_code
    except typer.TyperException as error:
        _print_usage_error(error)
        return USAGE
    except KeyboardInterrupt:
        return INTERRUPTED
    except (BrokenPipeError, SystemExit):
        discard(sys.stdout)  # Typer prints its help with a console of its own, which raises when the reader is gone
        return OK
    except OSError as error:
        if error.errno in FULL and error.filename is None:  # an open file: stdout
            return _output_lost(error)
        if error.errno in REFUSED and error.filename is not None:
            print_error(f"{error.filename}: {error.strerror}: check the path and its permissions, or name another")
            return USAGE
        return _defect()
    except Exception as error:  # noqa: BLE001 - any other exception is a bug, shown with its traceback
        code = exit_code_of(error)
        if code is None:
            return _defect()
        print_error(str(error))
        return code
    return result if isinstance(result, int) else OK


def _defect() -> int:
    """Report the exception being handled, which the farm does not raise on purpose, as a bug."""
    for line in traceback.format_exc().splitlines():
        stderr().print(line, soft_wrap=True)
    print_error("internal error: this is a bug in farm; see the traceback above")
    return INTERNAL


def _output_lost(error: OSError) -> int:
    discard(sys.stdout)
    print_error(f"cannot write the output: {error.strerror}. Free disk space, or redirect it elsewhere.")
    return UNREACHABLE


def _print_usage_error(error: typer.TyperException) -> None:
    """Print Typer's error; it has no message where Typer printed the help for a command without arguments."""
    if message := _value_error(error) or error.format_message().replace("Value error, ", ""):  # a prefix of pydantic's
        context: typer.Context | None = getattr(error, "ctx", None)
        where = context.command_path if context else "farm"
        listed = "commands" if context and hasattr(context.command, "commands") else "options"
        ending = "" if message.endswith((".", "?")) else "."
        print_error(f"{message}{ending} {where} --help lists the {listed}.")


def _value_error(error: typer.TyperException) -> str:
    """An option whose number is out of range or none, worded as the other values are; empty for other errors."""
    option: Any = getattr(error, "param", None)
    found: list[dict[str, Any]] = getattr(error.__cause__, "errors", list)()
    if option is None or len(found) != 1 or found[0]["type"] not in EXPECTED:
        return ""
    expected = EXPECTED[found[0]["type"]].format(**found[0].get("ctx", {}))
    return f"{option.opts[-1]} {found[0]['input']}: expected {expected}"


GARBAGE_THRESHOLD = 20_000
"""Allocations between garbage collections: imports allocate thousands of objects that stay."""


def main() -> None:
    """The entry point."""
    open_closed_streams()
    signal.signal(signal.SIGTERM, _interrupt)
    gc.set_threshold(GARBAGE_THRESHOLD)
    code = run(sys.argv[1:])
    gc.freeze()  # a last collection would take a quarter of a short command's time
    if code == INTERRUPTED:
        sys.stderr.flush()
        os._exit(code)  # threads that Ray leaves behind can crash the interpreter's orderly end
    sys.exit(code)


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    """Handle SIGTERM as Ctrl-C; further signals are ignored during the cleanup."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    raise KeyboardInterrupt


if __name__ == "__main__":
    main()

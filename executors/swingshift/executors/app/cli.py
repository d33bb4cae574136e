"""The command ``swingshift``: the root application, the commands of other parts, exit statuses.

A part adds a command with an entry point of the group ``swingshift.commands``: a function
``register(app: typer.Typer) -> None``. It runs whenever the command line starts, so it, and the
module it is in, must import nothing heavy; a command imports what it needs when it is called.

Exit statuses: 0 done, 1 a fault (with a traceback), 2 something the user wrote (a line for each
problem), 130 interrupted. A command chooses its own with ``typer.Exit``, or returns it.
"""

from __future__ import annotations

import logging
import sys
from importlib.metadata import entry_points, version
from typing import Annotated

import typer

from swingshift.executors.app import commands
from swingshift.executors.app.misuse import USAGE_ERROR, describe_misuse
from swingshift.sdk.errors import UserError
from swingshift.sdk.validators import InvalidValueError

COMMAND_GROUP = "swingshift.commands"
"""The entry-point group in which a distribution names functions that add commands."""

_LOGGER = logging.getLogger("swingshift")
_FAULT_STATUS, _USER_ERROR_STATUS = 1, 2
_EPILOG = "Example: [bold]swingshift bench published --quick --policy fixed_ratio[/bold]"


def main() -> None:
    """Run the command line with the arguments of this process, and exit."""
    _log_to_stderr()
    app = make_app()
    try:
        status: object = app(prog_name="swingshift", standalone_mode=False)
    except (UserError, InvalidValueError) as error:
        if _LOGGER.isEnabledFor(logging.DEBUG):
            raise
        for line in str(error).splitlines():
            typer.echo(f"error: {line}", err=True)
        sys.exit(_USER_ERROR_STATUS)
    except USAGE_ERROR as error:
        line = describe_misuse(error)
        # without one, the help that was asked for stands in its place
        if line:
            typer.echo(f"error: {line}", err=True)
        sys.exit(_USER_ERROR_STATUS)
    except typer.Abort:
        typer.echo("aborted", err=True)
        sys.exit(_FAULT_STATUS)
    sys.exit(status if type(status) is int else 0)


def make_app() -> typer.Typer:
    """Return the root application with every command that can be loaded.

    A command that cannot is left out, and one line on stderr says so: a broken plug-in must not
    take the others with it.
    """
    app = typer.Typer(
        name="swingshift",
        help="Lend a trainer's GPUs to rollouts while they would wait for data.",
        epilog=_EPILOG,
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode="rich",
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_root)
    commands.register(app)
    for point in sorted(entry_points(group=COMMAND_GROUP), key=lambda point: point.name):
        try:
            point.load()(app)
        except Exception as error:
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            typer.echo(f"warning: command {point.name!r} is left out: {reason}", err=True)
    return app


def _show_version(asked: bool) -> None:
    if asked:
        typer.echo(f"swingshift {version('swingshift')}")
        raise typer.Exit


class _LowerCase(logging.Formatter):
    """Print ``warning: ...``, as the command line's own messages look."""

    def format(self, record: logging.LogRecord) -> str:
        return f"{record.levelname.lower()}: {super().format(record)}"


def _log_to_stderr() -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(_LowerCase())
    logging.basicConfig(level=logging.WARNING, handlers=[handler])


def _root(
    _version: Annotated[
        bool,
        typer.Option("--version", help="Show the version.", callback=_show_version, is_eager=True),
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Log everything; show the traceback of an error.")
    ] = False,
) -> None:
    if debug:
        _LOGGER.setLevel(logging.DEBUG)

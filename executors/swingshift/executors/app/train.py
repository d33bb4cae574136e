"""The command ``swingshift train``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from swingshift.executors.app.train_config import example_names, load_plan

_HELP = (
    "Train a model: a packaged example, or what a YAML file describes.\n\n"
    "Everything that comes of it goes to a folder of its own. Ctrl-C ends the run in order and "
    "saves the model; once more leaves at once. Exit status 1 when the run fails, 130 when it is "
    "interrupted."
)
_EPILOG = (
    "Example: [bold]swingshift train copy seed=1 --policy fixed_ratio[/bold]\n\n"
    "Packaged: {}. A file that names no executor runs on the local one."
)
_INTERRUPTED_STATUS = 130


def register(app: typer.Typer) -> None:
    """Add ``train`` to the command line."""
    names = ", ".join(example_names()) or "none"
    app.command("train", help=_HELP, epilog=_EPILOG.format(names))(train)


def train(
    source: Annotated[
        str,
        typer.Argument(
            metavar="CONFIG_OR_EXAMPLE", help="A path to a YAML file, or a packaged name."
        ),
    ],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KEY=VALUE]...",
            help="Replaces a key of the configuration: rollout.total_rollout_steps=640",
        ),
    ] = None,
    policy: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Another policy: a name, or file.py:Class."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="The folder of the run, new or empty; else runs/NAME-NUMBER."
        ),
    ] = None,
    plain: Annotated[
        bool, typer.Option("--plain", help="A line for each cycle, as where there is no terminal.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="The summary alone.")] = False,
) -> None:
    """Load the configuration, run it, and exit with the status that the help text promises.

    Raises:
        UserError: Something the user wrote cannot be used.
    """
    try:
        # Put off, so that the command line starts without them.
        from rich.console import Console  # noqa: PLC0415

        from swingshift.executors.app.train_session import Showing, TrainSession  # noqa: PLC0415

        plan = load_plan(source, overrides or ())
        console = Console(highlight=False)
        is_live = console.is_terminal and not plain
        showing = Showing(console=console, is_live=is_live, is_quiet=quiet)
        status = TrainSession(plan, policy=policy, out=out, showing=showing).run()
    except KeyboardInterrupt:
        # before there was a run to end in order
        typer.echo("interrupted", err=True)
        raise typer.Exit(_INTERRUPTED_STATUS) from None
    if status:
        raise typer.Exit(status)

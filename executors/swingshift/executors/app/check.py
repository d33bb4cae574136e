"""The command ``swingshift check``."""

from __future__ import annotations

from typing import Annotated

import typer

_HELP = (
    "Prove a policy sound: every law of its contract, then a short simulated run.\n\n"
    "Exit status 1 when a law is broken, or the run goes wrong."
)
_EPILOG = "Example: [bold]swingshift check my_study/my_policy.py:MyPolicy[/bold]"
_VIOLATED_STATUS = 1
_INTERRUPTED_STATUS = 130


def register(app: typer.Typer) -> None:
    """Add ``check`` to the command line."""
    app.command("check", help=_HELP, epilog=_EPILOG)(check)


def check(
    policy: Annotated[
        str,
        typer.Argument(metavar="NAME_OR_PATH", help="A registered name, or file.py:Class."),
    ],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="KEY=VALUE",
            help="Sets an argument of the policy, policy.lend_below=0.5, or a key of the run.",
        ),
    ] = None,
    seed: Annotated[
        int, typer.Option(metavar="N", min=0, help="Selects what is drawn for laws and run.")
    ] = 0,
    examples: Annotated[
        int, typer.Option(metavar="N", min=1, help="Histories drawn for each law.")
    ] = 100,
    no_run: Annotated[bool, typer.Option("--no-run", help="Judge the laws alone.")] = False,
) -> None:
    """Judge the policy, show each verdict, and exit with the status that the help text promises.

    Raises:
        UserError: There is no such policy, or it cannot be built.
    """
    # Put off, so that the command line starts without them.
    from rich.console import Console  # noqa: PLC0415

    from swingshift.executors.app.check_session import CheckSession  # noqa: PLC0415

    session = CheckSession(
        policy,
        overrides or (),
        seed=seed,
        examples=examples,
        screen=Console(highlight=False),
        status=Console(stderr=True),
    )
    try:
        is_sound = session.run(with_run=not no_run)
    except KeyboardInterrupt:
        typer.echo("interrupted", err=True)
        raise typer.Exit(_INTERRUPTED_STATUS) from None
    if not is_sound:
        raise typer.Exit(_VIOLATED_STATUS)

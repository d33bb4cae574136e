"""The commands ``policies`` and ``init``, and where those of other modules here are added."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from swingshift.executors.app import calibrate, check, train
from swingshift.sdk.errors import UserError
from swingshift.sdk.registry import PolicyParameter, policy_class, policy_names, policy_parameters

if TYPE_CHECKING:
    from rich.table import Table

STARTER_FILES = ("scenario.yaml", "my_policy.py", "test_my_policy.py")
"""What ``swingshift init`` writes, each from a template of the same name."""


def register(app: typer.Typer) -> None:
    """Add the commands to the root application."""
    app.command(epilog="Example: [bold]swingshift policies[/bold]")(policies)
    app.command(epilog="Example: [bold]swingshift init my_study[/bold]")(init)
    check.register(app)
    train.register(app)
    calibrate.register(app)


def policies() -> None:
    """List the policies that have a name: built in, or from installed packages."""
    from rich.console import Console  # noqa: PLC0415
    from rich.markup import escape  # noqa: PLC0415

    table = _policy_table()
    for name in policy_names():
        try:
            cls = policy_class(name)
        except UserError as error:
            typer.echo(f"warning: {error}", err=True)
            continue
        parameters = escape("\n".join(map(_show_parameter, policy_parameters(cls))))
        summary = escape((cls.__doc__ or "").strip().partition("\n")[0])
        table.add_row(name, parameters, f"{summary}\n[dim]{cls.__name__}[/dim]")
    Console().print(table)


def init(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Where; made if missing.")],
) -> None:
    """Write a scenario, a policy to start from, and its test.

    Existing files are never overwritten.
    """
    templates = files("swingshift.executors.app") / "templates"
    existing = [name for name in STARTER_FILES if (directory / name).exists()]
    if existing:
        raise UserError(
            f"{directory} holds {', '.join(existing)} already; nothing was written: "
            "name another directory, or move them away"
        )
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for name in STARTER_FILES:
            text = (templates / f"{name}.template").read_text(encoding="utf-8")
            (directory / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot write {error.filename}: {error.strerror}") from error
    policy = f"{directory}/my_policy.py:MyPolicy"
    typer.echo(
        f"Wrote {', '.join(str(directory / name) for name in STARTER_FILES)}\n\n"
        "Ten minutes from here to a policy of your own:\n"
        f"1. change it:     {policy.partition(':')[0]}\n"
        f"2. prove it:      swingshift check {policy}\n"
        f"3. see its worth: swingshift bench {directory}/scenario.yaml --policy {policy}\n"
        f"4. keep it sound: python -m pytest {directory}"
    )


def _policy_table() -> Table:
    from rich import box  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("name", no_wrap=True, style="bold")
    table.add_column("parameters", no_wrap=True)
    table.add_column("what it does, and its class")
    return table


def _show_parameter(parameter: PolicyParameter) -> str:
    return parameter.name if parameter.required else f"{parameter.name}={parameter.default!r}"

"""The command ``swingshift calibrate``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

_HELP = (
    "Measure what an executor takes here, and write a scenario that the simulator runs.\n\n"
    "Each verb is measured alone; then a short real run shows by how much generating and training "
    "are slower together. Takes a minute or so for a packaged example."
)
_EPILOG = (
    "Example: [bold]swingshift calibrate copy --out my_machine.yaml[/bold], then "
    "[bold]swingshift bench my_machine.yaml[/bold]"
)


def register(app: typer.Typer) -> None:
    """Add ``calibrate`` to the command line."""
    app.command("calibrate", help=_HELP, epilog=_EPILOG)(calibrate)


def calibrate(
    source: Annotated[
        str,
        typer.Argument(
            metavar="[CONFIG_OR_EXAMPLE]",
            help="A path to a YAML file, or a packaged name; else copy.",
        ),
    ] = "copy",
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="Replaces a key of the configuration."),
    ] = None,
    executor: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="The executor to measure; else that of the file."),
    ] = None,
    out: Annotated[Path, typer.Option(metavar="FILE", help="The scenario to write.")] = Path(
        "calibrated.yaml"
    ),
    cycles: Annotated[int, typer.Option(min=3, help="Weight syncs of the trial run.")] = 12,
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it exists.")] = False,
) -> None:
    """Measure, fit, try, write; exit with 2 when something the user wrote cannot be used.

    Raises:
        UserError: Something the user wrote cannot be used.
    """
    # Put off, so that the command line starts without them.
    from swingshift.executors.app.calibration.session import calibrate_to_file  # noqa: PLC0415
    from swingshift.executors.app.train_config import load_plan  # noqa: PLC0415

    chosen = [f"executor.name={executor}"] if executor is not None else []
    plan = load_plan(source, [*chosen, *(overrides or ())])
    calibrate_to_file(plan, out, cycles=cycles, replace=force)

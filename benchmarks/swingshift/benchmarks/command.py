"""The command ``swingshift bench``."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from swingshift.sdk.errors import UserError

_HELP = (
    "Run a scenario over seeds and say what lending GPUs is worth.\n\n"
    "A scenario that runs in full and as it is written is held against its thresholds, and its "
    "parameters are studied where it says so. Exit status 1 when it misses a threshold, or when a "
    "run fails."
)
_LOCAL, _LEARNING = "local", "learning"
_DEFAULT_POLICY = "default"
_PILOT_PAIRS, _MOST_PAIRS = 4, 24
_PAIRS = {False: 10, True: 2}
_TRIAL_CYCLES = {False: 12, True: 4}
_FAILED_STATUS = 1
_INTERRUPTED_STATUS = 130


def register(app: typer.Typer) -> None:
    """Add ``bench`` to the command line."""
    app.command("bench", help=_HELP)(bench)


def bench(
    scenario: Annotated[
        str,
        typer.Argument(
            metavar="SCENARIO",
            help="A packaged name; a path to a YAML file; local: pairs of real runs here; "
            "learning: whether lending changes what is learned.",
        ),
    ],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KEY=VALUE]...",
            help="Replaces a key of the scenario: async_training.staleness_threshold=0.3",
        ),
    ] = None,
    policy: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Policy of the runs that lend GPUs: a name, or file.py:Class."
        ),
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Runs of each kind.")
    ] = None,
    quick: Annotated[
        bool,
        typer.Option("--quick", help="Fewer prompts and seeds: under a minute on the simulator."),
    ] = False,
    json_file: Annotated[
        Path | None,
        typer.Option("--json", metavar="FILE", help="Write the result for programs to read."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write a report: summary, plots, result.")
    ] = None,
    log: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Write a log of every run: each event, and each decision with what it was made "
            "from; in files of 256 MiB at most.",
        ),
    ] = None,
    sensitivity: Annotated[
        bool,
        typer.Option(
            "--sensitivity",
            help="Study the parameters also where something was replaced, and with --quick.",
        ),
    ] = False,
) -> None:
    """Load the scenario, run it, and exit with the status that the help text promises.

    Raises:
        UserError: Something the user wrote cannot be used.
    """
    if scenario in (_LOCAL, _LEARNING):
        unused = {"--out": out, "--log": log, "--sensitivity": sensitivity or None}
        if scenario == _LEARNING:
            unused["--quick"] = quick or None
        _refuse(scenario, [name for name, given in unused.items() if given is not None])
        if seeds == 1:
            raise UserError(f"--seeds: 1 pair has no spread; bench {scenario} needs at least 2")
    if scenario == _LEARNING:
        _bench_learning(overrides or (), policy=policy, pairs=seeds, json_file=json_file)
        return
    if scenario == _LOCAL:
        _bench_local(overrides or (), policy=policy, pairs=seeds, quick=quick, json_file=json_file)
        return
    # Put off, so that the command line starts without them.
    from rich.console import Console  # noqa: PLC0415

    from swingshift.benchmarks.scenario import load_scenario  # noqa: PLC0415
    from swingshift.benchmarks.session import Outputs, Session  # noqa: PLC0415

    loaded = load_scenario(
        scenario,
        overrides or (),
        quick=quick,
        policy=policy,
        seeds=seeds,
        sensitivity=sensitivity,
    )
    outputs = Outputs(json_file=json_file, report=out, logs=log)
    outputs.prepare()
    session = Session(loaded, outputs, screen=Console(), status=Console(stderr=True))
    try:
        is_good = session.run()
    except KeyboardInterrupt:
        typer.echo("interrupted", err=True)
        raise typer.Exit(_INTERRUPTED_STATUS) from None
    if not is_good:
        raise typer.Exit(_FAILED_STATUS)


def _refuse(scenario: str, options: Sequence[str]) -> None:
    if options:
        raise UserError(
            f"bench {scenario} takes no {' or '.join(options)}; it takes KEY=VALUE, --policy, "
            "--seeds (pairs of runs) and --json" + (", --quick" if scenario == _LOCAL else "")
        )
    for engine in ("scipy", "torch"):
        if find_spec(engine) is None:
            raise UserError(
                f"bench {scenario} runs for real and needs {engine}: "
                "pip install 'swingshift[local]'"
            )


def _bench_local(
    overrides: Sequence[str],
    *,
    policy: str | None,
    pairs: int | None,
    quick: bool,
    json_file: Path | None,
) -> None:
    # Put off, so that the command line starts without them.
    from rich.console import Console  # noqa: PLC0415

    from swingshift.benchmarks.measured.session import Plan, run_local  # noqa: PLC0415

    plan = Plan(
        policy=policy or _DEFAULT_POLICY,
        pairs=_PAIRS[quick] if pairs is None else pairs,
        overrides=overrides,
        trial_cycles=_TRIAL_CYCLES[quick],
        is_quick=quick,
    )
    try:
        run_local(
            plan,
            screen=Console(highlight=False),
            status=Console(stderr=True, highlight=False),
            json_file=json_file,
        )
    except KeyboardInterrupt:
        typer.echo("interrupted", err=True)
        raise typer.Exit(_INTERRUPTED_STATUS) from None


def _bench_learning(
    overrides: Sequence[str], *, policy: str | None, pairs: int | None, json_file: Path | None
) -> None:
    # Put off, so that the command line starts without them.
    from rich.console import Console  # noqa: PLC0415

    from swingshift.benchmarks.measured.learning import run_learning  # noqa: PLC0415

    try:
        holds = run_learning(
            overrides,
            policy=policy or _DEFAULT_POLICY,
            pilot=_PILOT_PAIRS if pairs is None else pairs,
            most=_MOST_PAIRS if pairs is None else pairs,
            screen=Console(highlight=False),
            status=Console(stderr=True, highlight=False),
            json_file=json_file,
        )
    except KeyboardInterrupt:
        typer.echo("interrupted", err=True)
        raise typer.Exit(_INTERRUPTED_STATUS) from None
    if not holds:
        raise typer.Exit(_FAILED_STATUS)

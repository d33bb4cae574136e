"""Measure everything and print one table: ``python -m swingshift.benchmarks.perf [--json FILE]``.

A missed target is said, not punished: the exit status is 0.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import attrs
from rich import box
from rich.console import Console
from rich.table import Table

from swingshift.benchmarks.perf.figure import Figure, Measured
from swingshift.benchmarks.perf.parts import balancer_figures, import_figure, question_figures
from swingshift.benchmarks.perf.simulator import dynamic_config, memory_figure, simulator_figures
from swingshift.benchmarks.runner import tune_garbage_collection
from swingshift.sdk.errors import UserError

_VERDICTS = {True: "[green]met[/green]", False: "[red]missed[/red]", None: ""}


@attrs.frozen(kw_only=True)
class Sizes:
    """How much is measured.

    Attributes:
        scenario: A scenario with a run that lends GPUs: a packaged name or a path.
        prompts: Prompts of a timed run.
        memory_prompts: Prompts of the run whose memory is traced, a few times slower. At most 1024,
            so that the one block of lengths that the simulator draws at a time is there from the
            start and does not look like growth.
        pairs: Pairs of one balancer measurement.
        cycles: Cycles of one measurement of the guard.
        imports: Fresh interpreters.
        repetitions: Of everything else.
    """

    scenario: str = "published"
    prompts: int = 3000
    memory_prompts: int = 1024
    pairs: int = 200_000
    cycles: int = 5000
    imports: int = 10
    repetitions: int = 5


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and return the exit status: 0, or 2 for something the user wrote."""
    parser = argparse.ArgumentParser(
        prog="python -m swingshift.benchmarks.perf", description=__doc__
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there, too")
    parser.add_argument("--scenario", default=Sizes().scenario, help="default: published")
    parser.add_argument("--repetitions", type=int, default=Sizes().repetitions, metavar="N")
    options = parser.parse_args(arguments)
    tune_garbage_collection()
    if options.repetitions < 1:
        parser.error(f"--repetitions: {options.repetitions} is not allowed; expected at least 1")
    sizes = Sizes(scenario=options.scenario, repetitions=options.repetitions)
    try:
        found = report(sizes, Console())
    except UserError as error:
        parser.exit(2, "".join(f"error: {line}\n" for line in str(error).splitlines()))
    if options.json is not None:
        write_json(found, options.json)
    return 0


def report(sizes: Sizes, console: Console) -> tuple[Figure, ...]:
    """Measure everything, print it and return it."""
    figures: list[Figure] = []
    with console.status("measuring") as status:
        for figure in measure(sizes):
            figures.append(figure)
            status.update(f"measuring; done: {figure.name}")
    console.print(table_of(figures))
    for number, note in enumerate(_notes(figures), start=1):
        console.print(f"{number:2} {note}.", highlight=False)
    return tuple(figures)


def measure(sizes: Sizes) -> Iterator[Figure]:
    """Yield every figure as it is measured; the quiet ones last."""
    yield from simulator_figures(dynamic_config(sizes.scenario, sizes.prompts), sizes.repetitions)
    yield memory_figure(dynamic_config(sizes.scenario, sizes.memory_prompts))
    yield from balancer_figures(sizes.pairs, sizes.repetitions)
    yield from question_figures(sizes.cycles, sizes.repetitions)
    yield import_figure(sizes.imports)


def table_of(figures: Sequence[Figure]) -> Table:
    """Return the figures as a table; the numbers are those of the notes on how."""
    notes = _notes(figures)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("", justify="right")
    table.add_column("what")
    table.add_column("best", justify="right", no_wrap=True)
    table.add_column("spread", justify="right", no_wrap=True)
    table.add_column("target", justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    for figure in figures:
        table.add_row(
            str(notes.index(_note(figure)) + 1),
            figure.name,
            f"{_show(figure.measured.value)} {figure.unit}",
            _show_spread(figure.measured),
            "" if figure.target is None else str(figure.target),
            _VERDICTS[figure.is_met],
        )
    return table


def write_json(figures: Sequence[Figure], path: Path) -> None:
    """Write the figures for programs to read."""
    content = [
        {
            "name": figure.name,
            "value": figure.measured.value,
            "unit": figure.unit,
            "spread": figure.measured.spread,
            "repetitions": figure.measured.repetitions,
            "target": None if figure.target is None else str(figure.target),
            "is_met": figure.is_met,
            "how": figure.how,
            "detail": figure.detail,
        }
        for figure in figures
    ]
    path.write_text(json.dumps({"figures": content}, indent=2) + "\n", encoding="utf-8")


def _note(figure: Figure) -> str:
    return f"{figure.how}. Here: {figure.detail}" if figure.detail else figure.how


def _notes(figures: Sequence[Figure]) -> list[str]:
    return list(dict.fromkeys(map(_note, figures)))


def _show_spread(measured: Measured) -> str:
    if measured.repetitions == 1:
        return ""
    return f"{100 * measured.spread:.0f} % of {measured.repetitions}"


def _show(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


if __name__ == "__main__":
    sys.exit(main())

"""The tables of a benchmark: made once as text, shown in a terminal or written as Markdown."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import attrs
from rich import box
from rich.table import Table as RichTable
from rich.text import Text

from swingshift.benchmarks.expectations import Verdict
from swingshift.benchmarks.parameters import executor_parameters, source_of
from swingshift.benchmarks.result import BenchmarkResult, RunResult
from swingshift.benchmarks.scenario import Scenario
from swingshift.benchmarks.scenario_section import ComparisonSection
from swingshift.benchmarks.sensitivity import Sensitivity, SensitivityRow, Shift
from swingshift.benchmarks.statistics import median_over_cycles
from swingshift.benchmarks.wording import (
    show_metric,
    show_metric_spread,
    show_number,
    show_spread,
    show_wall_clocks,
)

_HOLDS: Mapping[bool | None, str] = {True: "yes", False: "NO", None: ""}
_STYLES: Mapping[str, str] = {"yes": "green", "NO": "bold red"}

_METRIC_ROWS = (
    ("Time per cycle", "timing_s/step"),
    ("Rollout utilization", "dynamic_resource/rollout_resource_utilization"),
    ("Train utilization", "dynamic_resource/train_resource_utilization"),
    ("Cluster utilization", "dynamic_resource/resource_utilization"),
    ("Wait for samples, GPUs lent", "timing_s/wait_for_enough_samples"),
    ("Wait for samples, GPUs held", "timing_s/gen"),
    ("Weight sync", "timing_s/param_sync"),
)
# Words longer than this are broken where a terminal is narrow.
_WORD_WIDTH = 12

_QUEUE = "dynamic_resource/mq_size"


@attrs.frozen(kw_only=True)
class Table:
    """A table as text.

    Attributes:
        title: What it shows.
        columns: Their headings; the first column is text, the others are figures.
        rows: As many cells each as there are columns.
        note: What a reader has to know about the figures; empty for nothing.
        text_columns: How many columns from the left are text.
        wrapped: Columns whose cells may be broken into lines where a terminal is narrow, as every
            heading may.
        wrapped_rows: Rows whose cells may be, too.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""
    text_columns: int = 1
    wrapped: tuple[int, ...] = ()
    wrapped_rows: tuple[int, ...] = ()


def runs_table(result: BenchmarkResult) -> Table:
    """Return the runs side by side."""
    runs = result.runs

    def row(name: str, show: Callable[[RunResult], str]) -> tuple[str, ...]:
        return (name, *(show(run) for run in runs))

    return Table(
        title="Runs",
        columns=("", *(run.label for run in runs)),
        rows=(
            # The class alone of file.py:Class, since a path may be of any length.
            row("Policy", lambda run: run.run.policy_name.rpartition(":")[2]),
            ("Wall clock", *show_wall_clocks([run.wall_clock_s for run in runs])),
            row("Trained samples", lambda run: show_spread(run.trained_samples, digits=0)),
            row("Unused samples", lambda run: show_spread(run.unused_samples, digits=0)),
            row("Median queue after a fit step", _show_queue),
            *((name, *(_show(run, metric) for run in runs)) for name, metric in _METRIC_ROWS),
        ),
        note=(
            "Means over all cycles, then mean ± standard deviation over "
            f"{_seeds(result.scenario.seeds)}; times are per cycle."
        ),
        wrapped=(0,),
        wrapped_rows=(0,),
    )


def verdicts_table(result: BenchmarkResult) -> Table:
    """Return what came out beside what was published, with a verdict per row."""
    columns = ("Result", "Run", "Published", "Here", "Threshold", "Holds")
    rows = [_verdict_row(verdict) for verdict in result.verdicts]
    is_published = any(verdict.published or verdict.threshold for verdict in result.verdicts)
    # Without anything published, only what came out is left to show.
    kept = range(len(columns)) if is_published else (0, 1, 3)
    return Table(
        title="Against the published results" if is_published else "Comparisons",
        columns=tuple(columns[index] for index in kept),
        rows=tuple(tuple(row[index] for index in kept) for row in rows),
        text_columns=5,
        wrapped=(0, 1, 4),
    )


def sensitivity_table(study: Sensitivity, labels: Mapping[str, str]) -> Table:
    """Return how far the reductions move with each parameter, in percentage points.

    Args:
        study: The study.
        labels: Labels of the runs by name.
    """
    percent = f"{study.section.change * 100.0:g} %"
    moves = f"-{percent} / +{percent}"
    return Table(
        title=f"Points by which the reductions move when a parameter moves by {moves}",
        columns=(
            "Parameter",
            "Value",
            *(_heading(item, study.comparisons, labels) for item in study.comparisons),
        ),
        rows=tuple(_sensitivity_row(row, len(study.comparisons)) for row in study.rows),
        note=_sensitivity_note(study),
        wrapped=(0,),
    )


def parameters_table(scenario: Scenario) -> Table:
    """Return every parameter of the modelled world with its value and where it comes from."""
    section = scenario.section
    parameters = executor_parameters(scenario.runs[0].config)
    return Table(
        title="Parameters of the modelled world, the same for every run",
        columns=("Parameter", "Value", "Source"),
        rows=tuple(
            (
                _short(key),
                show_number(value),
                "fitted to the published results"
                if key in section.fitted
                else source_of(key, section.sources) or "",
            )
            for key, value in parameters.items()
        ),
        text_columns=3,
    )


def scenario_line(scenario: Scenario) -> str:
    """Return in a line how much is run."""
    prompts = sorted({run.config.rollout.total_rollout_steps for run in scenario.runs})
    sizes = " or ".join(f"{count:,}" for count in prompts)
    quick = "; quick: fewer prompts, so the figures are rough" if scenario.is_quick else ""
    runs = "1 run" if len(scenario.runs) == 1 else f"{len(scenario.runs)} runs"
    return f"{runs} x {_seeds(scenario.seeds)}, {sizes} prompts each{quick}."


def to_rich(table: Table) -> RichTable:
    """Return a table for a terminal."""
    shown = RichTable(
        title=Text(table.title, style="bold"),
        caption=Text(table.note) if table.note else None,
        box=box.SIMPLE_HEAD,
        title_justify="left",
        caption_justify="left",
        pad_edge=False,
    )
    for index, heading in enumerate(table.columns):
        shown.add_column(
            Text(heading),
            justify="left" if index < table.text_columns else "right",
            overflow="fold",
            min_width=_least_width(table, index),
        )
    for row in table.rows:
        shown.add_row(*(Text(cell, style=_STYLES.get(cell, "")) for cell in row))
    return shown


def _least_width(table: Table, column: int) -> int:
    """Return how wide a column must be to show each figure in one piece, and text by the word."""
    least = _width_of_words(table.columns[column])
    for index, row in enumerate(table.rows):
        is_text = column in table.wrapped or index in table.wrapped_rows
        least = max(least, _width_of_words(row[column]) if is_text else len(row[column]))
    return least


def _width_of_words(text: str) -> int:
    return min(_WORD_WIDTH, max(map(len, text.split()), default=0))


def to_markdown(table: Table) -> str:
    """Return a table with its title and note as Markdown."""
    marks = ["---" if index < table.text_columns else "---:" for index in range(len(table.columns))]
    lines = [f"## {table.title}", "", _markdown_row(table.columns), _markdown_row(marks)]
    lines += [_markdown_row(row) for row in table.rows]
    if table.note:
        lines += ["", table.note]
    return "\n".join(lines)


def _markdown_row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _seeds(count: int, adjective: str = "") -> str:
    return f"{count} {adjective}seed{'s' if count > 1 else ''}"


def _show(run: RunResult, metric: str) -> str:
    found = run.metrics.get(metric)
    return "" if found is None else show_metric_spread(metric, found)


def _show_queue(run: RunResult) -> str:
    found = median_over_cycles(run.reports, _QUEUE)
    return "" if found is None else show_metric(_QUEUE, found)


def _verdict_row(verdict: Verdict) -> tuple[str, ...]:
    return (
        verdict.result,
        verdict.run,
        verdict.published,
        verdict.measured,
        verdict.threshold,
        _HOLDS[verdict.holds],
    )


def _sensitivity_row(row: SensitivityRow, comparisons: int) -> tuple[str, ...]:
    cells = [
        f"{_show_shift(row.lower, index)} / {_show_shift(row.higher, index)}"
        for index in range(comparisons)
    ]
    name = _short(row.key) + (" (fitted)" if row.is_fitted else "")
    return (name, show_number(row.value), *cells)


def _short(key: str) -> str:
    return key.removeprefix("executor.")


def _heading(
    comparison: ComparisonSection,
    comparisons: Sequence[ComparisonSection],
    labels: Mapping[str, str],
) -> str:
    versus = f"vs {labels[comparison.versus]}"
    if len({item.run for item in comparisons}) == 1:
        return versus
    return f"{labels[comparison.run]} {versus}"


def _show_shift(shift: Shift, comparison: int) -> str:
    if shift.reductions is None:
        return "failed"
    clipped = "*" if shift.is_clipped else ""
    # Adding 0 turns a negative zero into a positive one.
    return f"{round(shift.reductions[comparison] * 100.0, 1) + 0.0:+.1f}{clipped}"


def _sensitivity_note(study: Sensitivity) -> str:
    section = study.section
    seeds = _seeds(section.seeds, "common ")
    sentences = [f"{section.prompts:,} prompts per run, {seeds}."]
    shifts = [(_short(row.key), shift) for row in study.rows for shift in (row.lower, row.higher)]
    clipped = [f"{key} to {show_number(shift.value)}" for key, shift in shifts if shift.is_clipped]
    if clipped:
        sentences.append(f"* only as far as the parameter's limits allow: {', '.join(clipped)}.")
    if study.zeros:
        sentences.append(f"Not moved, because they are 0: {', '.join(map(_short, study.zeros))}.")
    sentences += [
        f"Failed with {key}={show_number(shift.value)}: {shift.problem}."
        for key, shift in shifts
        if shift.problem
    ]
    return " ".join(sentences)

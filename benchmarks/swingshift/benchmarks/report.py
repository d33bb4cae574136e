"""The report of a benchmark: a folder with a summary, its plots and the machine-readable result."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from swingshift.benchmarks.document import report_document, to_json
from swingshift.benchmarks.plots import PLOTS, draw_metric, draw_sensitivity
from swingshift.benchmarks.result import BenchmarkResult
from swingshift.benchmarks.sensitivity import Sensitivity
from swingshift.benchmarks.tables import (
    parameters_table,
    runs_table,
    scenario_line,
    sensitivity_table,
    to_markdown,
    verdicts_table,
)


def write_report(
    result: BenchmarkResult, sensitivity: Sensitivity | None, folder: Path
) -> tuple[Path, ...]:
    """Write ``summary.md``, the plots and ``result.json`` into a folder, and return the files.

    Files of those names are replaced; others are left alone.

    Args:
        result: The benchmark.
        sensitivity: The study of its parameters; None when none was made.
        folder: Made if it is missing.
    """
    folder.mkdir(parents=True, exist_ok=True)
    labels = {run.run.name: run.label for run in result.runs}
    plots = [(plot.title, draw_metric(plot, result, folder)) for plot in PLOTS]
    if sensitivity is not None:
        plots.append(("Sensitivity", draw_sensitivity(sensitivity, labels, folder)))
    drawn = [(title, path) for title, path in plots if path is not None]
    summary = folder / "summary.md"
    summary.write_text(_summary(result, sensitivity, drawn), encoding="utf-8")
    document = folder / "result.json"
    document.write_text(to_json(report_document(result, sensitivity)), encoding="utf-8")
    return (summary, document, *(path for _, path in drawn))


def _summary(
    result: BenchmarkResult, sensitivity: Sensitivity | None, plots: Sequence[tuple[str, Path]]
) -> str:
    scenario = result.scenario
    tables = [runs_table(result)]
    if result.verdicts:
        tables.insert(0, verdicts_table(result))
    if sensitivity is not None:
        labels = {run.run.name: run.label for run in result.runs}
        tables.append(sensitivity_table(sensitivity, labels))
    if scenario.section.sources or scenario.section.fitted:
        tables.append(parameters_table(scenario))
    parts = [f"# {scenario.name}", scenario.section.description, scenario_line(scenario)]
    parts += [to_markdown(table) for table in tables]
    parts += ["## Plots", *(f"![{title}]({path.name})" for title, path in plots)]
    return "\n\n".join(part for part in parts if part) + "\n"

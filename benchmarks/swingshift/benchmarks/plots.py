"""The plots of a benchmark, as PNG files; drawn without a display."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import attrs
import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from swingshift.benchmarks.result import BenchmarkResult, RunResult
from swingshift.benchmarks.sensitivity import Sensitivity
from swingshift.benchmarks.wording import is_share
from swingshift.sdk.metrics import METRICS

Series = npt.NDArray[np.float64]

# Okabe and Ito's palette: told apart by colour-blind readers too.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
_CYCLES_PER_SMOOTHED_POINT = 50
_DPI = 120
_UNITS = {"s": "seconds"}


@attrs.frozen(kw_only=True)
class Plot:
    """A metric that gets a plot of its own.

    Attributes:
        file: Name of the file, without its ending.
        title: What it shows.
        metric: Name of the metric.
    """

    file: str
    title: str
    metric: str


PLOTS = (
    Plot(file="step_time", title="Step time per cycle", metric="timing_s/step"),
    Plot(file="mq_size", title="Queue after a fit step", metric="dynamic_resource/mq_size"),
    Plot(
        file="resource_utilization",
        title="Utilization of all GPUs",
        metric="dynamic_resource/resource_utilization",
    ),
    Plot(
        file="rollout_utilization",
        title="Utilization of the rollout side",
        metric="dynamic_resource/rollout_resource_utilization",
    ),
    Plot(
        file="train_utilization",
        title="Utilization of the training side",
        metric="dynamic_resource/train_resource_utilization",
    ),
)
"""The plots of the specification's section 5, in its order."""


def draw_metric(plot: Plot, result: BenchmarkResult, folder: Path) -> Path | None:
    """Draw a metric over the cycles, one line per run, and return the file.

    Returns:
        None when no run has the metric.
    """
    lines = [(run, _by_cycle(run, plot.metric)) for run in result.runs]
    drawn = [(run, values) for run, values in lines if values.size]
    if not drawn:
        return None
    window = max(1, max(values.shape[1] for _, values in drawn) // _CYCLES_PER_SMOOTHED_POINT)
    figure, axes = _figure(8.0, 4.0)
    for colour, (run, values) in zip(_colours(), drawn, strict=False):
        _draw_line(axes, run.label, _smooth(values, window), window, colour)
    axes.set_title(_title(plot.title, result.scenario.seeds, window), fontsize=10, loc="left")
    axes.set_xlabel("sync cycle")
    axes.set_ylabel(_unit(plot.metric))
    axes.set_ylim(bottom=0.0, top=1.02 if is_share(plot.metric) else None)
    axes.legend(frameon=False, ncols=3, loc="upper center", bbox_to_anchor=(0.5, -0.16))
    return _save(figure, folder / f"{plot.file}.png")


def draw_sensitivity(study: Sensitivity, labels: Mapping[str, str], folder: Path) -> Path | None:
    """Draw how far the reductions move with each parameter, and return the file.

    Args:
        study: The study.
        labels: Labels of the runs by name.
        folder: Where to put it.

    Returns:
        None when no parameter was moved.
    """
    if not study.rows:
        return None
    rows = study.rows[::-1]
    names = [row.key.removeprefix("executor.") + (" *" if row.is_fitted else "") for row in rows]
    count = len(study.comparisons)
    figure = Figure(figsize=(3.0 + 3.5 * count, 1.4 + 0.24 * len(rows)), layout="constrained")
    panels = figure.subplots(1, count, sharey=True, sharex=True, squeeze=False)[0]
    percent = f"{study.section.change * 100.0:g} %"
    for index, (comparison, axes) in enumerate(zip(study.comparisons, panels, strict=True)):
        for sign, colour, height in (("-", _COLOURS[0], -0.2), ("+", _COLOURS[1], 0.2)):
            shifts = [row.lower if sign == "-" else row.higher for row in rows]
            moved = [
                100.0 * shift.reductions[index] if shift.reductions else 0.0 for shift in shifts
            ]
            places = np.arange(len(rows)) + height
            axes.barh(places, moved, height=0.4, color=colour, label=f"parameter {sign}{percent}")
        run, versus = labels[comparison.run], labels[comparison.versus]
        axes.set_title(f"{run} vs {versus}", fontsize=10, loc="left")
        axes.set_xlabel("change of the reduction (percentage points)")
        axes.axvline(0.0, color="black", linewidth=0.8)
        _strip(axes)
    panels[0].set_yticks(range(len(rows)), names, fontsize=8)
    panels[0].set_ylim(-0.7, len(rows) - 0.3)
    figure.legend(
        *panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False
    )
    if any(row.is_fitted for row in rows):
        figure.suptitle("Sensitivity (* fitted parameter)", fontsize=11)
    return _save(figure, folder / "sensitivity.png")


def _by_cycle(run: RunResult, metric: str) -> Series:
    """Return a metric as an array of seeds x cycles, cut to the shortest run."""
    series = [
        [cycle[metric] for cycle in report.cycles if metric in cycle] for report in run.reports
    ]
    cycles = min(map(len, series))
    return np.array([values[:cycles] for values in series], dtype=np.float64)


def _smooth(values: Series, window: int) -> Series:
    """Return the moving mean of each row, at the cycles whose window is whole."""
    window = min(window, values.shape[1])
    kernel = np.full(window, 1.0 / window)
    return np.array([np.convolve(row, kernel, mode="valid") for row in values])


def _draw_line(axes: Axes, label: str, values: Series, window: int, colour: str) -> None:
    cycles = np.arange(values.shape[1]) + 1 + 0.5 * (window - 1)
    axes.plot(cycles, values.mean(axis=0), color=colour, label=label, linewidth=1.6)
    if len(values) > 1:
        low, high = values.min(axis=0), values.max(axis=0)
        axes.fill_between(cycles, low, high, color=colour, alpha=0.2, linewidth=0.0)


def _title(title: str, seeds: int, window: int) -> str:
    lines = f"mean and range over {seeds} seeds" if seeds > 1 else "1 seed"
    smoothing = f"moving mean over {window} cycles" if window > 1 else "no smoothing"
    return f"{title} ({lines}; {smoothing})"


def _unit(metric: str) -> str:
    return "share" if is_share(metric) else _UNITS.get(METRICS[metric].unit, METRICS[metric].unit)


def _colours() -> Iterator[str]:
    while True:
        yield from _COLOURS


def _figure(width: float, height: float) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots()
    _strip(axes)
    return figure, axes


def _strip(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="both", color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)


def _save(figure: Figure, path: Path) -> Path:
    FigureCanvasAgg(figure)
    figure.savefig(path, dpi=_DPI)
    return path

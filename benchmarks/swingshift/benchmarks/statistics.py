"""From cycles to one number per run, and from runs over seeds to a mean with its spread.

A metric of a run is its mean over all cycles of the run, the first included. Over seeds it has a
mean and a standard deviation.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

import attrs

from swingshift.executors.runtime.run import RunReport


@attrs.frozen
class Spread:
    """A figure over seeds.

    Attributes:
        mean: Its mean.
        std: Its standard deviation as a sample of all seeds (divided by one less than their
            number); 0 for a single seed.
    """

    mean: float
    std: float


def spread(values: Sequence[float]) -> Spread:
    """Return mean and standard deviation of one value per seed.

    Args:
        values: At least one.
    """
    mean = math.fsum(values) / len(values)
    return Spread(mean, statistics.stdev(values) if len(values) > 1 else 0.0)


def mean_over_cycles(report: RunReport) -> dict[str, float]:
    """Return each metric's mean over the cycles of a run; empty where it had none.

    A metric that some cycles lack is averaged over those that have it.
    """
    values: dict[str, list[float]] = {}
    for cycle in report.cycles:
        for name, value in cycle.items():
            values.setdefault(name, []).append(value)
    return {name: math.fsum(series) / len(series) for name, series in sorted(values.items())}


def metrics_over_seeds(reports: Sequence[RunReport]) -> Mapping[str, Spread]:
    """Return each metric's spread over runs that differ in nothing but the seed."""
    means = [mean_over_cycles(report) for report in reports]
    names = sorted({name for run in means for name in run})
    return {name: spread([run[name] for run in means if name in run]) for name in names}


def median_over_cycles(reports: Sequence[RunReport], metric: str) -> float | None:
    """Return a metric's median over the cycles of all runs together; None where there is none."""
    values = [cycle[metric] for run in reports for cycle in run.cycles if metric in cycle]
    return statistics.median(values) if values else None


def reductions(reports: Sequence[RunReport], versus: Sequence[RunReport]) -> tuple[float, ...]:
    """Return by what share of its wall clock a run is shorter than another, for each seed.

    Args:
        reports: Runs in the order of their seeds.
        versus: As many, with the same seeds.
    """
    pairs = zip(reports, versus, strict=True)
    return tuple(1.0 - run.wall_clock_s / other.wall_clock_s for run, other in pairs)

"""What was expected of a benchmark, held against what came out: a row with a verdict for each."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence

import attrs

from swingshift.benchmarks.scenario_section import (
    BoundSection,
    ComparisonSection,
    ExpectationSection,
)
from swingshift.benchmarks.statistics import (
    Spread,
    mean_over_cycles,
    median_over_cycles,
    spread,
)
from swingshift.benchmarks.wording import (
    is_share,
    show_change,
    show_metric,
    show_points,
    show_spread,
)
from swingshift.executors.runtime.run import RunReport

_SIGNS: Mapping[str, tuple[str, Callable[[float, float], bool]]] = {
    "at_least": (">=", operator.ge),
    "at_most": ("<=", operator.le),
    "above": (">", operator.gt),
    "below": ("<", operator.lt),
}


@attrs.frozen(kw_only=True)
class Verdict:
    """One row: what was published, what came out, and whether that is near enough.

    Attributes:
        result: What is looked at.
        run: Label of the run.
        published: What was published, in words or figures; empty when nothing was.
        measured: What came out.
        threshold: What would be near enough; empty when there is no such limit.
        holds: Whether it is; None without a limit.
    """

    result: str
    run: str
    published: str
    measured: str
    threshold: str
    holds: bool | None


def judge_comparison(
    section: ComparisonSection, reduction: Spread, labels: Mapping[str, str]
) -> Verdict:
    """Return the row of a comparison.

    Args:
        section: The comparison.
        reduction: By what share the run's wall clock is shorter.
        labels: Labels of the runs by name.
    """
    published, tolerance = section.published, section.tolerance
    holds = None
    if published is not None and tolerance is not None:
        holds = abs(reduction.mean - published) <= tolerance
    return Verdict(
        result=f"Wall clock vs {labels[section.versus]}",
        run=labels[section.run],
        published="" if published is None else show_change(published),
        measured=f"{show_spread(Spread(-reduction.mean, reduction.std), 100.0)} %",
        threshold="" if tolerance is None else f"within {show_points(tolerance)}",
        holds=holds,
    )


def judge_expectation(
    section: ExpectationSection,
    reports: Mapping[str, Sequence[RunReport]],
    labels: Mapping[str, str],
) -> Verdict:
    """Return the row of an expectation.

    Args:
        section: The expectation.
        reports: Of each run, one per seed, by the run's name.
        labels: Labels of the runs by name.
    """
    measured = _statistic(section, reports[section.run])
    held: list[bool] = []
    for key, bound in section.bounds.items():
        other = 0.0 if bound.run is None else _statistic(section, reports[bound.run])
        if measured is None or other is None:
            held.append(False)
        else:
            held.append(_SIGNS[key][1](measured, other + bound.value))
    return Verdict(
        result=section.result,
        run=labels[section.run],
        published=section.published,
        measured="no cycles" if measured is None else show_metric(section.metric, measured),
        threshold=", ".join(
            f"{_SIGNS[key][0]} {_limit(section.metric, bound, labels)}"
            for key, bound in section.bounds.items()
        ),
        holds=all(held),
    )


def _statistic(section: ExpectationSection, reports: Sequence[RunReport]) -> float | None:
    if section.statistic == "median":
        return median_over_cycles(reports, section.metric)
    means = [mean_over_cycles(report) for report in reports]
    values = [run[section.metric] for run in means if section.metric in run]
    return spread(values).mean if values else None


def _limit(metric: str, bound: BoundSection, labels: Mapping[str, str]) -> str:
    if bound.run is None:
        return show_metric(metric, bound.value)
    if not bound.value:
        return labels[bound.run]
    word = "less" if bound.value < 0.0 else "plus"
    distance = abs(bound.value)
    shown = show_points(distance) if is_share(metric) else show_metric(metric, distance)
    return f"{labels[bound.run]} {word} {shown}"

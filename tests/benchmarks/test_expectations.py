"""Verdicts: thresholds, absolute and relative to another run, and what they read like."""

from __future__ import annotations

import pytest
from tests.benchmarks.small_world import report

from swingshift.benchmarks.expectations import Verdict, judge_comparison, judge_expectation
from swingshift.benchmarks.scenario_section import (
    BoundSection,
    ComparisonSection,
    ExpectationSection,
)
from swingshift.benchmarks.statistics import Spread

LABELS = {"a": "Run A", "b": "Run B"}
QUEUE = "dynamic_resource/mq_size"
SHARE = "dynamic_resource/train_resource_utilization"
REPORTS = {
    "a": [report(cycles=[{QUEUE: 2.0, SHARE: 0.5}]), report(cycles=[{QUEUE: 4.0, SHARE: 0.7}])],
    "b": [report(cycles=[{QUEUE: 8.0, SHARE: 0.9}])],
}


def judged(metric: str, statistic: str = "mean", **bounds: BoundSection) -> Verdict:
    """Return the verdict on run ``a``, whose queue is 3 and whose utilization is 60 %."""
    section = ExpectationSection(
        result="It", run="a", metric=metric, statistic=statistic, published="so", **bounds
    )
    return judge_expectation(section, REPORTS, LABELS)


@pytest.mark.parametrize(
    ("key", "value", "holds"),
    [
        ("at_least", 3.0, True),
        ("at_least", 3.1, False),
        ("at_most", 3.0, True),
        ("at_most", 2.9, False),
        ("above", 3.0, False),
        ("above", 2.9, True),
        ("below", 3.0, False),
        ("below", 3.1, True),
    ],
)
def test_absolute_limits(key: str, value: float, holds: bool) -> None:
    """A limit holds at the limit itself, unless it is one to be above or below."""
    assert judged(QUEUE, "median", **{key: BoundSection(value=value)}).holds is holds


def test_limits_relative_to_another_run() -> None:
    """60 % is within 30 points below the 90 % of run B, and not within 20."""
    near = judged(SHARE, at_least=BoundSection(run="b", value=-0.3001))
    far = judged(SHARE, at_least=BoundSection(run="b", value=-0.2))
    assert (near.holds, far.holds) == (True, False)
    assert far.threshold == ">= Run B less 20 points"
    assert (far.measured, far.published, far.run) == ("60.0 %", "so", "Run A")


def test_every_limit_has_to_hold() -> None:
    """In between means above one run and below another; one that fails decides."""
    both = judged(QUEUE, above=BoundSection(value=1.0), below=BoundSection(run="b"))
    one = judged(QUEUE, above=BoundSection(value=1.0), below=BoundSection(value=2.0))
    assert (both.holds, one.holds) == (True, False)
    assert both.threshold == "> 1 samples, < Run B"


def test_plus_is_in_the_metric_s_unit() -> None:
    """A distance of a metric that is no share keeps its unit."""
    assert judged(QUEUE, at_most=BoundSection(run="b", value=2.0)).threshold == (
        "<= Run B plus 2 samples"
    )


def test_a_metric_without_cycles_misses() -> None:
    """What was not measured does not hold, on either side of a comparison."""
    assert judged("timing_s/gen", at_least=BoundSection()).holds is False
    assert judged("timing_s/gen", "median", at_least=BoundSection()).measured == "no cycles"


@pytest.mark.parametrize(("reduction", "holds"), [(0.134, True), (0.172, True), (0.132, False)])
def test_comparisons_are_held_within_a_tolerance(reduction: float, holds: bool) -> None:
    """Two points either side of 15.3 % are near enough."""
    section = ComparisonSection(run="a", versus="b", published=0.153, tolerance=0.02)
    verdict = judge_comparison(section, Spread(reduction, 0.001), LABELS)
    assert verdict.holds is holds
    assert (verdict.result, verdict.published) == ("Wall clock vs Run B", "-15.3 %")
    assert verdict.threshold == "within 2 points"
    assert verdict.measured == f"-{reduction * 100:.1f} ± 0.1 %"


def test_a_comparison_with_nothing_published_has_no_verdict() -> None:
    """There is a figure, and nothing to hold it against."""
    section = ComparisonSection(run="a", versus="b")
    verdict = judge_comparison(section, Spread(-0.05, 0.0), LABELS)
    assert (verdict.holds, verdict.threshold, verdict.measured) == (None, "", "5.0 %")

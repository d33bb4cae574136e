"""From cycles to figures over seeds, by hand."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.benchmarks.small_world import report

from swingshift.benchmarks.statistics import (
    Spread,
    mean_over_cycles,
    median_over_cycles,
    metrics_over_seeds,
    reductions,
    spread,
)


def test_spread_is_mean_and_sample_deviation() -> None:
    """Of 1, 2 and 6 the mean is 3 and the variance (4 + 1 + 9) / 2 = 7."""
    found = spread([1.0, 2.0, 6.0])
    assert found.mean == 3.0
    assert found.std == pytest.approx(math.sqrt(7.0))


def test_one_seed_has_no_spread() -> None:
    """A single value deviates by 0, not by an undefined amount."""
    assert spread([5.0]) == Spread(5.0, 0.0)


@given(st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=20))
def test_spread_is_within_the_values(values: list[float]) -> None:
    """The mean lies among the values, and the deviation is a finite number of at least 0."""
    found = spread(values)
    assert min(values) - 1e-3 <= found.mean <= max(values) + 1e-3
    assert 0.0 <= found.std < math.inf


def test_every_cycle_counts_and_missing_ones_do_not() -> None:
    """The first cycle is not left out; a metric is averaged over the cycles that have it."""
    run = report(cycles=[{"a": 1.0}, {"a": 3.0, "b": 7.0}, {"a": 8.0}])
    assert mean_over_cycles(run) == {"a": 4.0, "b": 7.0}


def test_metrics_are_means_over_cycles_then_over_seeds() -> None:
    """A run with more cycles weighs no more: means 2 and 5 give 3.5, not the mean of all cycles."""
    runs = [report(cycles=[{"a": 1.0}, {"a": 2.0}, {"a": 3.0}]), report(cycles=[{"a": 5.0}])]
    found = metrics_over_seeds(runs)
    assert found.keys() == {"a"}
    assert found["a"].mean == 3.5
    assert found["a"].std == pytest.approx(math.sqrt(4.5))


def test_median_pools_the_cycles_of_all_seeds() -> None:
    """The median of 1, 2, 9 and 10, 11 together is 9."""
    runs = [report(cycles=[{"q": 1.0}, {"q": 2.0}, {"q": 9.0}]), report(cycles=[{"q": 10.0}] * 2)]
    assert median_over_cycles(runs, "q") == 9.0
    assert median_over_cycles(runs, "other") is None


def test_reductions_are_per_seed() -> None:
    """80 s against 100 s and 45 s against 50 s: 20 % and 10 %."""
    found = reductions([report(80.0), report(45.0)], [report(100.0), report(50.0)])
    assert list(found) == pytest.approx([0.2, 0.1])


def test_a_run_without_cycles_has_no_metrics() -> None:
    """Too little data for a single cycle leaves figures out instead of making them up."""
    assert metrics_over_seeds([report()]) == {}

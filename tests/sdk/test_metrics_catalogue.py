"""The catalogue of metrics, their aggregation over a cycle, and percentiles."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swingshift.sdk.errors import UnknownNameError
from swingshift.sdk.metrics import (
    METRICS,
    TRAIN_COMPUTE_KEYS,
    Aggregation,
    aggregate,
    percentile,
)
from swingshift.sdk.validators import InvalidValueError

VALUES = st.lists(st.floats(-1e6, 1e6, allow_subnormal=False), min_size=1, max_size=50)

EXPECTED_NAMES = {
    "dynamic_resource": "train_resource_utilization train_compute_time_s train_allocated_time_s "
    "rollout_resource_utilization resource_utilization mq_size",
    "fully_async/rollouter": "active_time version_time idle_ratio step_generated_samples",
    "fully_async/trainer": "idle_ratio",
    "fully_async": "total_wait_time",
    "fully_async/count": "total_generated_samples staleness_samples stale_samples_processed "
    "stale_trajectory_processed current_param_version dropped_stale_samples",
    "fully_async/partial": "total_partial_num partial_ratio max_partial_span",
    "fully_async/processing_time": "avg max min tp50 tp95 tp99",
    "timing_s": "step gen wait_for_enough_samples param_sync reward old_log_prob ref values adv "
    "update_critic update_actor",
    "perf": "throughput total_num_tokens time_per_step",
    "training": "global_step epoch",
}


def test_catalogue_holds_exactly_the_public_names() -> None:
    """Dashboards rely on the names: none is missing, none is added unnoticed."""
    expected = {
        f"{prefix}/{name}" for prefix, names in EXPECTED_NAMES.items() for name in names.split()
    }
    assert set(METRICS) == expected


def test_every_spec_is_filed_under_its_name_and_says_something() -> None:
    """A spec knows its own name, has a unit and describes itself."""
    for name, spec in METRICS.items():
        assert spec.name == name
        assert spec.unit
        assert spec.description


def test_every_train_compute_key_has_its_timing_metric() -> None:
    """What counts as training compute is also reported key by key."""
    assert {f"timing_s/{key}" for key in TRAIN_COMPUTE_KEYS} <= set(METRICS)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("dynamic_resource/train_resource_utilization", Aggregation.RATIO_OF_SUMS),
        ("dynamic_resource/train_compute_time_s", Aggregation.SUM),
        ("dynamic_resource/train_allocated_time_s", Aggregation.SUM),
        ("dynamic_resource/resource_utilization", Aggregation.DERIVED),
        ("dynamic_resource/mq_size", Aggregation.LAST),
        ("fully_async/processing_time/max", Aggregation.DERIVED),
        ("timing_s/wait_for_enough_samples", Aggregation.SUM),
        ("timing_s/step", Aggregation.SUM),
    ],
)
def test_kinds_that_the_specification_fixes(name: str, kind: Aggregation) -> None:
    """Section 4 says how these aggregate, and the catalogue says the same."""
    assert METRICS[name].aggregation is kind


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("timing_s/step", 9.0),  # 4 + 0.5 + 4.5
        ("fully_async/partial/max_partial_span", 4.5),
        ("dynamic_resource/mq_size", 4.5),
    ],
)
def test_aggregate_golden(name: str, expected: float) -> None:
    """4, 0.5 and 4.5 in this order, aggregated by each kind that needs no more than its values."""
    assert aggregate(name, [4, 0.5, 4.5]) == expected


@given(VALUES)
def test_aggregates_stay_within_the_values(values: list[float]) -> None:
    """Last and maximum are values; a sum is at most as many times the maximum as there are."""
    most = aggregate("fully_async/partial/max_partial_span", values)
    assert most == max(values)
    assert aggregate("dynamic_resource/mq_size", values) == values[-1]
    assert aggregate("timing_s/gen", values) <= most * len(values) + 1e-6


@given(VALUES, st.integers(0, 50))
def test_sums_add_over_any_split(values: list[float], cut: int) -> None:
    """Two parts of a cycle sum to the cycle."""
    parts = [aggregate("timing_s/gen", part) for part in (values[:cut], values[cut:]) if part]
    assert math.fsum(parts) == pytest.approx(aggregate("timing_s/gen", values), abs=1e-6)


def test_unknown_metric_suggests_the_nearest() -> None:
    """A misspelt name is an error with the nearest known name."""
    with pytest.raises(UnknownNameError, match="did you mean 'dynamic_resource/mq_size'"):
        aggregate("dynamic_resource/mq_sise", [1.0])


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("dynamic_resource/train_resource_utilization", "train_allocated_time_s"),
        ("fully_async/processing_time/tp95", "percentile 95"),
        ("fully_async/processing_time/avg", "over all samples queued in the cycle together"),
    ],
)
def test_ratios_and_derived_metrics_say_how_to_compute_them(name: str, hint: str) -> None:
    """What does not aggregate from its own values is an error that says how to compute it."""
    with pytest.raises(InvalidValueError, match=hint):
        aggregate(name, [0.5, 0.5])


@pytest.mark.parametrize("values", [[], [1.0, float("nan")], [float("inf")], [True]])
def test_aggregate_refuses_what_is_no_series(values: list[float]) -> None:
    """No values, NaN, infinity or a bool is an error that names the metric."""
    with pytest.raises(InvalidValueError, match="timing_s/gen"):
        aggregate("timing_s/gen", values)


def test_percentile_golden() -> None:
    """Of 10, 20, 40, 80: position 3 x 0.95 = 2.85 lies 0.85 of the way from 40 to 80, at 74."""
    values = [40.0, 10.0, 80.0, 20.0]
    assert percentile(values, 95) == pytest.approx(74.0)
    assert percentile(values, 50) == 30.0
    assert percentile(values, 0) == 10.0
    assert percentile(values, 100) == 80.0
    assert percentile([7.0], 99) == 7.0


@given(VALUES, st.floats(0.0, 100.0))
def test_percentile_agrees_with_numpy(values: list[float], q: float) -> None:
    """The standard-library form interpolates as numpy's default method does."""
    assert percentile(values, q) == pytest.approx(float(np.percentile(values, q)), abs=1e-6)


@given(VALUES, st.floats(0.0, 100.0), st.floats(0.0, 100.0))
def test_percentile_is_bounded_and_monotone(values: list[float], p: float, q: float) -> None:
    """Percentiles lie within the values and grow with their rank, up to rounding."""
    low, high = percentile(values, min(p, q)), percentile(values, max(p, q))
    assert min(values) <= low <= high + 1e-9
    assert high <= max(values)


@pytest.mark.parametrize("q", [-1.0, 100.5, float("nan")])
def test_percentile_refuses_ranks_outside_its_range(q: float) -> None:
    """A rank is from 0 to 100, not from 0 to 1 or beyond."""
    with pytest.raises(InvalidValueError, match="q must be"):
        percentile([1.0], q)


@pytest.mark.parametrize("values", [[], [float("nan")]])
def test_percentile_refuses_what_is_no_series(values: list[float]) -> None:
    """There is no percentile of nothing."""
    with pytest.raises(InvalidValueError, match="values"):
        percentile(values, 50)

"""Rollout utilization, as a pure function and as a running window."""

from __future__ import annotations

from itertools import accumulate

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swingshift.sdk.metrics import (
    Ratio,
    RolloutPoint,
    RolloutWindow,
    concurrency_capacity,
    rollout_utilization,
    with_known_capacity,
)
from swingshift.sdk.validators import InvalidValueError

SPANS = st.just(0.0) | st.floats(1e-3, 1e4)
COUNTS = st.integers(0, 512)
# Powers of two scale floats without rounding, so that laws of scale hold exactly.
SCALES = st.integers(-20, 20).map(lambda exponent: 2.0**exponent)
NAN = float("nan")
INFINITY = float("inf")


def point(t_s: float, active: int, capacity: int) -> RolloutPoint:
    """Build a point from positions, to keep tables of them readable."""
    return RolloutPoint(t_s=t_s, active=active, capacity=capacity)


@st.composite
def histories(draw: st.DrawFn) -> tuple[tuple[RolloutPoint, ...], float]:
    """Draw points in time order, some at one time, and the end of their window."""
    steps = draw(st.lists(st.tuples(SPANS, COUNTS, COUNTS), min_size=1, max_size=30))
    times_s = list(accumulate((span_s for span_s, _, _ in steps), initial=draw(SPANS)))
    points = tuple(
        point(t_s, active, capacity)
        for t_s, (_, active, capacity) in zip(times_s, steps, strict=False)
    )
    return points, times_s[-1]


def test_concurrency_capacity_golden() -> None:
    """Four replicas of 16 hold 64 samples; a budget of 96 allows that, one of 48 does not."""
    assert concurrency_capacity(4, 16, 96) == 64
    assert concurrency_capacity(4, 16, 48) == 48
    assert concurrency_capacity(0, 16, 96) == 0


@pytest.mark.parametrize(
    ("servers", "per_replica", "max_required", "name"),
    [
        (-1, 16, 96, "servers"),
        (1, True, 96, "concurrent_samples_per_replica"),
        (1, 16, -96, "max_required_samples"),
    ],
)
def test_concurrency_capacity_refuses_what_is_no_count(
    servers: int, per_replica: int, max_required: int, name: str
) -> None:
    """A negative or bool count is an error that names the argument."""
    with pytest.raises(InvalidValueError, match=name):
        concurrency_capacity(servers, per_replica, max_required)


@pytest.mark.parametrize(
    ("t_s", "active", "capacity", "name"),
    [(NAN, 0, 0, "t_s"), (0.0, -1, 0, "active"), (0.0, 0, True, "capacity")],
)
def test_point_refuses_what_cannot_be(t_s: float, active: int, capacity: int, name: str) -> None:
    """NaN times, negative counts and bools are refused, and the error names the attribute."""
    with pytest.raises(InvalidValueError, match=name):
        point(t_s, active, capacity)


def test_rollout_utilization_golden() -> None:
    """Every interval counts with its own capacity.

    [0, 10): 24 of 32     ->  10 x 24 = 240 of  10 x 32 = 320
    [10, 15): 80 of 64    ->   5 x 64 = 320 of   5 x 64 = 320 (16 wait for a place)
    [15, 18): 8 of 0      ->  no weight
    [18, 20]: 0 of 32     ->   2 x  0 =   0 of   2 x 32 =  64
    560 / 704 = 0.795; the last capacity for the whole window would give 424 / 640 = 0.663.
    """
    points = [point(0.0, 24, 32), point(10.0, 80, 64), point(15.0, 8, 0), point(18.0, 0, 32)]
    ratio = rollout_utilization(points, 20.0)
    assert ratio == Ratio(numerator=560.0, denominator=704.0)
    assert ratio.value == pytest.approx(560 / 704)


def test_rollout_utilization_of_nothing_is_zero() -> None:
    """No points, no time or no capacity: nothing to use."""
    assert rollout_utilization([], 5.0).value == 0.0
    assert rollout_utilization([point(5.0, 8, 8)], 5.0).value == 0.0
    assert rollout_utilization([point(0.0, 8, 0)], 5.0).value == 0.0


def test_rollout_utilization_takes_the_last_of_one_time() -> None:
    """Of several changes at one time, the last one holds; the others last no time."""
    points = [point(0.0, 9, 9), point(0.0, 1, 4)]
    assert rollout_utilization(points, 2.0) == Ratio(numerator=2.0, denominator=8.0)


@pytest.mark.parametrize("end_s", [0.5, NAN, INFINITY])
def test_rollout_utilization_refuses_time_that_runs_backwards(end_s: float) -> None:
    """An end before the last point, or at no time, is an error that gives both times."""
    with pytest.raises(InvalidValueError, match=r"at least 1\.0 s"):
        rollout_utilization([point(0.0, 1, 1), point(1.0, 1, 1)], end_s)


@given(histories())
def test_rollout_utilization_is_a_share(history: tuple[tuple[RolloutPoint, ...], float]) -> None:
    """It lies within 0..1, exactly."""
    points, end_s = history
    assert 0.0 <= rollout_utilization(points, end_s).value <= 1.0


@given(histories(), st.data())
def test_splitting_an_interval_changes_nothing(
    history: tuple[tuple[RolloutPoint, ...], float], data: st.DataObject
) -> None:
    """A point that repeats the counts in force, anywhere, leaves both totals as they were."""
    points, end_s = history
    index = data.draw(st.integers(0, len(points) - 1))
    until_s = points[index + 1].t_s if index + 1 < len(points) else end_s
    t_s = data.draw(st.floats(points[index].t_s, until_s))
    split = (*points[: index + 1], attrs.evolve(points[index], t_s=t_s), *points[index + 1 :])
    whole = rollout_utilization(points, end_s)
    parts = rollout_utilization(split, end_s)
    assert parts.numerator == pytest.approx(whole.numerator, abs=1e-6)
    assert parts.denominator == pytest.approx(whole.denominator, abs=1e-6)


@given(histories(), SCALES)
def test_rollout_utilization_does_not_depend_on_the_unit_of_time(
    history: tuple[tuple[RolloutPoint, ...], float], scale: float
) -> None:
    """Seconds or minutes: the share is the same."""
    points, end_s = history
    scaled = [attrs.evolve(old, t_s=old.t_s * scale) for old in points]
    assert (
        rollout_utilization(scaled, end_s * scale).value == rollout_utilization(points, end_s).value
    )


def test_known_capacity_replaces_the_placeholder_only() -> None:
    """Points before the first known capacity get it; a later capacity of 0 is real and stays."""
    points = [point(0.0, 0, 0), point(1.0, 5, 0), point(2.0, 5, 16), point(3.0, 5, 0)]
    assert with_known_capacity(points, 32) == (
        point(0.0, 0, 32),
        point(1.0, 5, 32),
        point(2.0, 5, 16),
        point(3.0, 5, 0),
    )
    assert with_known_capacity([], 32) == ()


def test_known_capacity_gives_the_seed_interval_its_weight() -> None:
    """The first window of a run counts from its seed.

    Seed 4 active for 10 s at 8: 40 of 80; then 8 of 8 for 10 s: 80 of 80; 120 / 160 = 0.75,
    where the placeholder would have given 80 / 80 = 1.
    """
    points = [point(0.0, 4, 0), point(10.0, 8, 8)]
    assert rollout_utilization(with_known_capacity(points, 8), 20.0).value == 0.75


@given(histories(), st.lists(st.integers(0, 29), max_size=4))
def test_window_equals_the_pure_function(
    history: tuple[tuple[RolloutPoint, ...], float], closings: list[int]
) -> None:
    """Window after window, `RolloutWindow` gives to the last bit what the pure function gives."""
    points, end_s = history
    seed = points[0]
    window = RolloutWindow(seed.t_s, seed.active, seed.capacity)
    seen = [seed]
    for index, new in enumerate(points[1:]):
        if index in closings:
            assert window.close(new.t_s) == rollout_utilization(seen, new.t_s)
            seen = [attrs.evolve(seen[-1], t_s=new.t_s)]
        window.record(new.t_s, new.active, new.capacity)
        seen.append(new)
    assert window.close(end_s) == rollout_utilization(seen, end_s)


def test_window_starts_the_next_with_the_counts_in_force() -> None:
    """A window that sees no change reports the counts that the one before left."""
    window = RolloutWindow(0.0)
    window.record(2.0, 3, 4)
    assert window.close(4.0) == Ratio(numerator=6.0, denominator=8.0)
    assert window.close(14.0) == Ratio(numerator=30.0, denominator=40.0)
    assert window.close(14.0) == Ratio(numerator=0.0, denominator=0.0)


@pytest.mark.parametrize(
    ("t_s", "active", "capacity", "name"),
    [
        (0.5, 1, 1, "time"),
        (NAN, 1, 1, "time"),
        (INFINITY, 1, 1, "time"),
        (2.0, -1, 1, "active"),
        (2.0, 1, -1, "capacity"),
    ],
)
def test_window_refuses_bad_records_and_stays_as_it_was(
    t_s: float, active: int, capacity: int, name: str
) -> None:
    """A refused record names what is wrong and leaves no trace in the window."""
    window = RolloutWindow(1.0, 1, 2)
    with pytest.raises(InvalidValueError, match=name):
        window.record(t_s, active, capacity)
    assert window.close(3.0) == Ratio(numerator=2.0, denominator=4.0)


def test_window_refuses_a_close_in_the_past() -> None:
    """A close before the latest record is an error, and the window stays open."""
    window = RolloutWindow(0.0, 1, 2)
    window.record(1.0, 2, 2)
    with pytest.raises(InvalidValueError, match="time"):
        window.close(0.5)
    assert window.close(2.0) == Ratio(numerator=3.0, denominator=4.0)


@pytest.mark.parametrize(
    ("start_s", "active", "capacity", "name"),
    [(NAN, 0, 0, "start_s"), (0.0, -1, 0, "active"), (0.0, 0, -1, "capacity")],
)
def test_window_refuses_a_bad_start(start_s: float, active: int, capacity: int, name: str) -> None:
    """The opening counts and time are checked like those of a point."""
    with pytest.raises(InvalidValueError, match=name):
        RolloutWindow(start_s, active, capacity)

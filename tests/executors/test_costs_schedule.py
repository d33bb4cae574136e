"""Schedules of factors: drift, oscillation, regimes and their product."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swingshift.executors.simulated.costs.schedule import Drift, Oscillation, Regime, Schedule
from swingshift.sdk.errors import ConfigError
from swingshift.sdk.validators import InvalidValueError


def test_linear_and_geometric_drift_by_hand() -> None:
    """Half-way from 1 to 4 is 2.5 by differences and 2 by ratios; outside the range it stays."""
    linear = Drift(start=10, end=30, to_factor=4.0)
    ratio = Drift(start=10, end=30, to_factor=4.0, geometric=True)
    assert [linear.factor(position) for position in (0, 10, 20, 30, 99)] == [1, 1, 2.5, 4, 4]
    assert [ratio.factor(position) for position in (0, 20, 99)] == pytest.approx([1, 2, 4])


def test_oscillation_by_hand() -> None:
    """A quarter period in it is at its peak, three quarters in at its trough."""
    wave = Oscillation(period=100.0, amplitude=0.5)
    assert [wave.factor(position) for position in (0, 25, 50, 75)] == pytest.approx(
        [1, 1.5, 1, 0.5]
    )


def test_regimes_by_hand() -> None:
    """Before the first regime the factor is 1, then that of the last one begun."""
    schedule = Schedule(regimes=(Regime(start=5, factor=2.0), Regime(start=8, factor=0.5)))
    assert [schedule.factor(position) for position in (0, 5, 7, 8, 100)] == [1, 2, 2, 0.5, 0.5]


@given(st.integers(0, 10_000))
def test_parts_multiply(position: int) -> None:
    """A schedule of all parts is the product of schedules of one each; an empty one is 1."""
    drift, wave = Drift(end=500, to_factor=3.0), Oscillation(period=33.0, amplitude=0.2)
    regimes = (Regime(start=700, factor=0.3),)
    alone = [Schedule(drift=drift), Schedule(oscillation=wave), Schedule(regimes=regimes)]
    product = 1.0
    for schedule in alone:
        assert not schedule.is_constant
        product *= schedule.factor(position)
    together = Schedule(drift=drift, oscillation=wave, regimes=regimes)
    assert together.factor(position) == pytest.approx(product)
    assert Schedule().is_constant
    assert Schedule().factor(position) == 1.0


def test_schedules_that_cannot_be_are_refused() -> None:
    """A range that ends before it starts, equal starts and a swing to 0 are refused by name."""
    with pytest.raises(ConfigError, match=r"Drift\.end=5 must be after Drift\.start=5"):
        Drift(start=5, end=5, to_factor=2.0)
    with pytest.raises(ConfigError, match=r"rising starts, got \[3, 3\]"):
        Schedule(regimes=(Regime(start=3, factor=1.0), Regime(start=3, factor=2.0)))
    with pytest.raises(InvalidValueError, match=r"amplitude must be .* <= 0\.99"):
        Oscillation(period=1.0, amplitude=1.0)

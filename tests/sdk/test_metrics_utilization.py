"""Train and cluster utilization, the hybrid fraction, the idle ratio and ratios themselves."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swingshift.sdk.metrics import (
    TRAIN_COMPUTE_KEYS,
    MicroStep,
    Ratio,
    cluster_utilization,
    hybrid_rollout_fraction,
    idle_ratio,
    train_compute_s,
    train_utilization,
)
from swingshift.sdk.validators import InvalidValueError

SECONDS = st.just(0.0) | st.floats(1e-3, 1e6)
SHARES = st.floats(0.0, 1.0, allow_subnormal=False)
GPUS = st.integers(0, 10_000)
# Powers of two scale floats without rounding, so that laws of scale hold exactly.
SCALES = st.integers(-20, 20).map(lambda exponent: 2.0**exponent)


@st.composite
def micro_steps(draw: st.DrawFn) -> MicroStep:
    """Draw a fit step that computes no longer than it is allocated."""
    compute_s, rest_s = draw(SECONDS), draw(SECONDS)
    return MicroStep(compute_s=compute_s, allocated_s=compute_s + rest_s)


def test_ratio_adds_totals_and_not_quotients() -> None:
    """1/2 and 9/10 make 10/12, not the mean 0.7 of the quotients."""
    total = Ratio(numerator=1, denominator=2) + Ratio(numerator=9, denominator=10)
    assert total == Ratio(numerator=10.0, denominator=12.0)
    assert total.value == pytest.approx(10 / 12)


def test_ratio_of_nothing_is_zero() -> None:
    """A ratio without a denominator is worth 0.0, whatever the numerator."""
    assert Ratio(numerator=0.0, denominator=0.0).value == 0.0
    assert Ratio(numerator=3.0, denominator=0.0).value == 0.0


def test_ratio_shows_inconsistent_totals() -> None:
    """A quotient above 1 is shown as it was measured instead of being clipped away."""
    assert Ratio(numerator=3.0, denominator=2.0).value == 1.5


@pytest.mark.parametrize("bad", [-1.0, float("nan"), float("inf"), True])
def test_ratio_and_micro_step_refuse_what_is_no_amount(bad: float) -> None:
    """Negative, NaN, infinite and bool totals are refused, and the error names the attribute."""
    with pytest.raises(InvalidValueError, match="numerator"):
        Ratio(numerator=bad, denominator=1.0)
    with pytest.raises(InvalidValueError, match="denominator"):
        Ratio(numerator=1.0, denominator=bad)
    with pytest.raises(InvalidValueError, match="compute_s"):
        MicroStep(compute_s=bad, allocated_s=1.0)
    with pytest.raises(InvalidValueError, match="allocated_s"):
        MicroStep(compute_s=1.0, allocated_s=bad)


def test_train_compute_golden() -> None:
    """Compute sums the seven training keys and nothing else.

    1 + 2 + 4 + 8 + 16 + 32 + 64 = 127; gen, step and param_sync do not count.
    """
    timing_s = {key: 2.0**power for power, key in enumerate(TRAIN_COMPUTE_KEYS)}
    other_s = {"gen": 1000.0, "step": 2000.0, "param_sync": 3000.0}
    assert train_compute_s({**timing_s, **other_s}) == 127.0


def test_train_compute_counts_missing_keys_as_zero() -> None:
    """A run without critic and reference model has fewer keys, and that is no error."""
    assert train_compute_s({"adv": 0.5, "update_actor": 60.0}) == 60.5
    assert train_compute_s({}) == 0.0


def test_train_utilization_golden() -> None:
    """Sums first, one division afterwards.

    (30 + 60 + 30) / (100 + 60 + 80) = 120 / 240 = 0.5, where the mean of 0.3, 1.0 and 0.375
    would be 0.558.
    """
    ratio = train_utilization(
        [
            MicroStep(compute_s=30.0, allocated_s=100.0),
            MicroStep(compute_s=60.0, allocated_s=60.0),
            MicroStep(compute_s=30.0, allocated_s=80.0),
        ]
    )
    assert ratio == Ratio(numerator=120.0, denominator=240.0)
    assert ratio.value == 0.5


def test_train_utilization_of_nothing_is_zero() -> None:
    """No steps, or steps that took no time, use nothing."""
    assert train_utilization([]).value == 0.0
    assert train_utilization([MicroStep(compute_s=0.0, allocated_s=0.0)]).value == 0.0


@given(st.lists(micro_steps(), max_size=20))
def test_train_utilization_is_a_share(steps: list[MicroStep]) -> None:
    """It lies within 0..1, exactly, when no step computes longer than it is allocated."""
    assert 0.0 <= train_utilization(steps).value <= 1.0


@given(st.lists(micro_steps(), max_size=20), st.integers(0, 20))
def test_train_utilization_adds_over_any_split(steps: list[MicroStep], cut: int) -> None:
    """Aggregating two parts of a cycle equals aggregating the cycle."""
    parts = train_utilization(steps[:cut]) + train_utilization(steps[cut:])
    whole = train_utilization(steps)
    assert parts.numerator == pytest.approx(whole.numerator)
    assert parts.denominator == pytest.approx(whole.denominator)


@given(st.lists(micro_steps(), max_size=20), SCALES)
def test_train_utilization_does_not_depend_on_the_unit_of_time(
    steps: list[MicroStep], scale: float
) -> None:
    """Seconds or minutes: the share is the same."""
    scaled = [
        MicroStep(compute_s=step.compute_s * scale, allocated_s=step.allocated_s * scale)
        for step in steps
    ]
    assert train_utilization(scaled).value == train_utilization(steps).value


def test_hybrid_rollout_fraction_golden() -> None:
    """30 s of lent wait in 120 s of steps: x = 30 / 120 = 0.25."""
    assert hybrid_rollout_fraction(30.0, 120.0) == 0.25


def test_hybrid_rollout_fraction_is_clipped() -> None:
    """The estimate stays within 0..1, and a cycle without time or lending trains only."""
    assert hybrid_rollout_fraction(130.0, 120.0) == 1.0
    assert hybrid_rollout_fraction(-1.0, 120.0) == 0.0
    assert hybrid_rollout_fraction(0.0, 120.0) == 0.0
    assert hybrid_rollout_fraction(5.0, 0.0) == 0.0


@pytest.mark.parametrize(
    ("wait_s", "step_s", "name"),
    [(float("nan"), 1.0, "wait_s"), (1.0, -1.0, "step_s"), (1.0, float("inf"), "step_s")],
)
def test_hybrid_rollout_fraction_refuses_what_is_no_time(
    wait_s: float, step_s: float, name: str
) -> None:
    """NaN, infinity and a negative step time are errors that name the argument."""
    with pytest.raises(InvalidValueError, match=name):
        hybrid_rollout_fraction(wait_s, step_s)


def test_cluster_utilization_golden() -> None:
    """Each utilization is weighted by the GPU time it covers.

    a = 16, b = 16, x = 0.25: ((1 - 0.25) x 16 x 0.5 + (0.25 x 16 + 16) x 0.9) / 32
    = (12 x 0.5 + 20 x 0.9) / 32 = (6 + 18) / 32 = 0.75.
    """
    value = cluster_utilization(
        hybrid_gpus=16, standalone_gpus=16, train=0.5, rollout=0.9, hybrid_fraction=0.25
    )
    assert value == pytest.approx(0.75)


def test_cluster_utilization_without_gpus_is_zero() -> None:
    """An empty inventory uses nothing."""
    value = cluster_utilization(
        hybrid_gpus=0, standalone_gpus=0, train=1.0, rollout=1.0, hybrid_fraction=0.0
    )
    assert value == 0.0


@given(GPUS, GPUS, SHARES, SHARES, SHARES)
def test_cluster_utilization_lies_between_its_parts(
    hybrid_gpus: int, standalone_gpus: int, train: float, rollout: float, hybrid_fraction: float
) -> None:
    """A weighted mean of two shares is within them, hence within 0..1, exactly."""
    value = cluster_utilization(
        hybrid_gpus=hybrid_gpus,
        standalone_gpus=standalone_gpus,
        train=train,
        rollout=rollout,
        hybrid_fraction=hybrid_fraction,
    )
    low = min(train, rollout) if hybrid_gpus + standalone_gpus else 0.0
    assert low <= value <= max(train, rollout)


@given(st.integers(1, 10_000), SHARES, SHARES)
def test_cluster_utilization_meets_its_edges(gpus: int, train: float, rollout: float) -> None:
    """Standalone alone, or always lent, is rollout; hybrid alone and never lent is train."""

    def value(hybrid_gpus: int, standalone_gpus: int, hybrid_fraction: float) -> float:
        return cluster_utilization(
            hybrid_gpus=hybrid_gpus,
            standalone_gpus=standalone_gpus,
            train=train,
            rollout=rollout,
            hybrid_fraction=hybrid_fraction,
        )

    assert value(0, gpus, 0.5) == pytest.approx(rollout)
    assert value(gpus, gpus, 1.0) == pytest.approx(rollout)
    assert value(gpus, 0, 0.0) == pytest.approx(train)


@pytest.mark.parametrize(
    ("hybrid_gpus", "standalone_gpus", "train", "rollout", "hybrid_fraction", "name"),
    [
        (-1, 8, 0.5, 0.5, 0.5, "hybrid_gpus"),
        (8, -1, 0.5, 0.5, 0.5, "standalone_gpus"),
        (8, 8, float("nan"), 0.5, 0.5, "train"),
        (8, 8, 0.5, -0.1, 0.5, "rollout"),
        (8, 8, 0.5, 0.5, 1.1, "hybrid_fraction"),
    ],
)
def test_cluster_utilization_names_a_bad_argument(
    hybrid_gpus: int,
    standalone_gpus: int,
    train: float,
    rollout: float,
    hybrid_fraction: float,
    name: str,
) -> None:
    """Each argument outside its range is an error with its name."""
    with pytest.raises(InvalidValueError, match=name):
        cluster_utilization(
            hybrid_gpus=hybrid_gpus,
            standalone_gpus=standalone_gpus,
            train=train,
            rollout=rollout,
            hybrid_fraction=hybrid_fraction,
        )


def test_idle_ratio_golden() -> None:
    """75 s active in a version of 100 s: 1 - 75 / 100 = 0.25."""
    assert idle_ratio(75.0, 100.0) == 0.25


@given(SECONDS, SECONDS)
def test_idle_ratio_is_a_share(active_s: float, version_s: float) -> None:
    """It lies within 0..1 also when the active time is measured a little too long."""
    assert 0.0 <= idle_ratio(active_s, version_s) <= 1.0


def test_idle_ratio_of_no_time_is_zero() -> None:
    """A version without time was not idle."""
    assert idle_ratio(0.0, 0.0) == 0.0


@pytest.mark.parametrize(
    ("active_s", "version_s", "name"),
    [(-1.0, 1.0, "active_time_s"), (1.0, float("nan"), "version_time_s")],
)
def test_idle_ratio_refuses_what_is_no_time(active_s: float, version_s: float, name: str) -> None:
    """A negative or NaN time is an error that names the argument."""
    with pytest.raises(InvalidValueError, match=name):
        idle_ratio(active_s, version_s)

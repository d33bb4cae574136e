"""Variation of durations: noise, outliers, schedule, and streams that do not shift each other."""

from __future__ import annotations

import numpy as np
import pytest

from swingshift.executors.simulated.costs.schedule import Regime, Schedule
from swingshift.executors.simulated.costs.variation import Variation, VariationSource
from swingshift.sdk.validators import InvalidValueError

NOISY = Variation(noise_sigma=0.3, outlier_probability=0.1, outlier_factor=5.0)


def draw(variation: Variation, stream: str, calls: int, *, seed: int = 0) -> list[float]:
    """Return the first factors of one stream of a fresh source."""
    source = VariationSource(variation, seed=seed)
    return [source.factor(stream) for _ in range(calls)]


def test_default_leaves_durations_as_they_are() -> None:
    """Without noise, outliers and schedule every factor is exactly 1."""
    assert draw(Variation(), "fit_step", 100) == [1.0] * 100


def test_noise_keeps_the_mean_and_has_the_spread_asked_for() -> None:
    """Log-normal noise multiplies by 1 on average; its logarithm has the given spread."""
    factors = np.array(draw(Variation(noise_sigma=0.3), "fit_step", 20_000))
    assert factors.mean() == pytest.approx(1.0, abs=0.01)
    assert np.log(factors).std() == pytest.approx(0.3, abs=0.01)


def test_outliers_are_as_frequent_and_as_large_as_asked_for() -> None:
    """A tenth of the calls is multiplied by 5, the others by 1."""
    factors = draw(Variation(outlier_probability=0.1, outlier_factor=5.0), "sync", 20_000)
    assert set(factors) == {1.0, 5.0}
    assert factors.count(5.0) / 20_000 == pytest.approx(0.1, abs=0.01)
    certain = Variation(outlier_probability=1.0, outlier_factor=5.0)
    assert draw(certain, "sync", 50) == [5.0] * 50


def test_schedule_counts_the_calls_of_each_stream() -> None:
    """The factor changes after two calls of a stream, whatever other streams do."""
    schedule = Schedule(regimes=(Regime(start=2, factor=3.0),))
    source = VariationSource(Variation(schedule=schedule), seed=0)
    assert [source.factor("a") for _ in range(3)] == [1.0, 1.0, 3.0]
    assert source.factor("b") == 1.0


def test_streams_do_not_shift_each_other() -> None:
    """The factors of a stream are the same alone and interleaved with another's."""
    source = VariationSource(NOISY, seed=4)
    mixed = []
    for _ in range(50):
        mixed.append(source.factor("a"))
        source.factor("b")
    assert mixed == draw(NOISY, "a", 50, seed=4)
    assert mixed != draw(NOISY, "b", 50, seed=4)
    assert mixed != draw(NOISY, "a", 50, seed=5)


def test_switching_outliers_on_does_not_shift_the_noise() -> None:
    """With outliers each factor is the noise alone, or five times that."""
    noise = draw(Variation(noise_sigma=0.3), "a", 200)
    ratios = [both / alone for both, alone in zip(draw(NOISY, "a", 200), noise, strict=True)]
    assert {round(ratio, 9) for ratio in ratios} == {1.0, 5.0}


def test_a_probability_above_one_is_refused() -> None:
    """The message names the field and its range."""
    with pytest.raises(InvalidValueError, match=r"outlier_probability must be .* >= 0 and <="):
        Variation(outlier_probability=1.7)


def test_a_negative_seed_is_refused() -> None:
    """Seeds start at 0."""
    with pytest.raises(ValueError, match="seed must be an integer >= 0"):
        VariationSource(NOISY, seed=-1)

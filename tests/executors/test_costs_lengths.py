"""Length distributions, their mean after the cut, and the seeded source."""

from __future__ import annotations

import math

import cattrs
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swingshift.executors.simulated.costs.lengths import (
    BLOCK_PROMPTS,
    LengthModel,
    LengthSource,
    PromptLengths,
    clipped_log_normal_mean,
    solve_log_mean,
)
from swingshift.executors.simulated.costs.schedule import Drift, Regime, Schedule
from swingshift.sdk.errors import ConfigError
from swingshift.sdk.validators import InvalidValueError

GOLDEN_LENGTHS = (10575, 14095, 11663, 7403, 13410, 6434, 9253, 8076)
GOLDEN_PROMPT = 144


def source(model: LengthModel | None = None, *, seed: int = 0, responses: int = 8) -> LengthSource:
    """Return a source of the default or the given lengths."""
    return LengthSource(model or LengthModel(), seed=seed, responses_per_prompt=responses)


def draw(lengths: LengthSource, prompts: int) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
    """Return the lengths of the first prompts, one row each."""
    return np.array([lengths.lengths(index) for index in range(prompts)])


def test_defaults_match_the_public_runs() -> None:
    """Mean 13,000; the longest of 8 is 1.42 to 1.45 times the mean; the tail reaches the cap."""
    lengths = draw(source(), 40 * BLOCK_PROMPTS)
    mean = lengths.mean()
    assert mean == pytest.approx(13_000, rel=0.01)
    assert 1.42 <= lengths.max(axis=1).mean() / mean <= 1.45
    assert np.median(lengths) == pytest.approx(9_600, rel=0.02)
    assert (lengths == 64_000).mean() == pytest.approx(0.009, abs=0.002)


def test_responses_to_one_prompt_are_alike() -> None:
    """The log-lengths of two responses to one prompt correlate as the two spreads say."""
    model = LengthModel(max_tokens=10_000_000, difficulty_sigma=0.6, response_sigma=0.3)
    logs = np.log(draw(source(model, responses=2), 20 * BLOCK_PROMPTS))
    assert model.prompt_correlation == pytest.approx(0.8)
    assert np.corrcoef(logs.T)[0, 1] == pytest.approx(0.8, abs=0.02)


def test_clipped_mean_by_hand() -> None:
    """No limits give exp(mu + sigma^2 / 2), equal limits that value, no spread exp(mu)."""
    assert clipped_log_normal_mean(2.0, 0.5, 1e-9, 1e9) == pytest.approx(math.exp(2.125))
    assert clipped_log_normal_mean(2.0, 0.5, 7.0, 7.0) == pytest.approx(7.0)
    assert clipped_log_normal_mean(math.log(5), 0.0, 1.0, 9.0) == pytest.approx(5.0)
    # Cut at its median, a variable keeps half: exp(1/2) x Phi(-1) + 1 x 1/2.
    half = math.exp(0.5) * 0.15865525393145707 + 0.5
    assert clipped_log_normal_mean(0.0, 1.0, 1e-9, 1.0) == pytest.approx(half)


@given(st.floats(0.0, 1.5), st.floats(0.01, 0.9))
def test_solved_mean_is_the_mean_after_the_cut(sigma: float, share: float) -> None:
    """Any mean between the limits can be had, whatever the spread."""
    mean = 10 + share * (64_000 - 10)
    log_mean = solve_log_mean(mean, sigma, 10, 64_000)
    assert clipped_log_normal_mean(log_mean, sigma, 10, 64_000) == pytest.approx(mean)


@given(st.floats(0.1, 0.85), st.floats(0.0, 1.0), st.floats(0.05, 1.0))
@settings(max_examples=20)
def test_drawn_mean_is_the_mean_asked_for(share: float, difficulty: float, response: float) -> None:
    """The mean of many drawn lengths is ``mean_tokens`` within its standard error."""
    model = LengthModel(
        mean_tokens=share * 10_000,
        difficulty_sigma=difficulty,
        response_sigma=response,
        max_tokens=10_000,
    )
    lengths = draw(source(model), 2 * BLOCK_PROMPTS)
    per_prompt = lengths.mean(axis=1)
    error = per_prompt.std() / math.sqrt(len(per_prompt)) + 0.5
    assert abs(per_prompt.mean() - model.mean_tokens) < 5 * error
    assert model.min_tokens <= lengths.min()
    assert lengths.max() <= model.max_tokens


def test_lengths_do_not_depend_on_the_questions() -> None:
    """Asked backwards, twice or for fewer responses, a prompt has the same lengths."""
    indices = range(0, 20 * BLOCK_PROMPTS, 97)
    forwards = source()
    expected = {index: forwards.lengths(index) for index in indices}
    backwards, narrow = source(), source(responses=3)
    for index in reversed(indices):
        assert backwards.lengths(index) == expected[index]
        assert narrow.lengths(index) == expected[index][:3]
        assert narrow.prompt_tokens(index) == forwards.prompt_tokens(index)


def test_seeds_and_blocks_differ() -> None:
    """Neither another seed nor another block repeats the lengths."""
    first = source()
    assert first.lengths(0) != source(seed=1).lengths(0)
    assert first.lengths(0) != first.lengths(BLOCK_PROMPTS)


def test_one_seed_gives_these_lengths() -> None:
    """The lengths of a prompt are the same in every process."""
    assert source(seed=7).lengths(0) == GOLDEN_LENGTHS
    assert source(seed=7).prompt_tokens(0) == GOLDEN_PROMPT


def test_prompt_lengths_keep_their_mean_and_limits() -> None:
    """Prompts are log-normal with a mean of their own, and independent of the responses."""
    lengths = source()
    prompts = np.array([lengths.prompt_tokens(index) for index in range(10 * BLOCK_PROMPTS)])
    assert prompts.mean() == pytest.approx(150, rel=0.02)
    assert prompts.min() >= 16
    assert prompts.max() <= 2048


def test_schedule_moves_lengths_by_prompt_index() -> None:
    """Where a regime doubles the lengths, each is twice what it was before rounding and the cut."""
    regimes = Schedule(regimes=(Regime(start=100, factor=2.0),))
    plain, doubled = source(), source(LengthModel(schedule=regimes))
    assert doubled.lengths(99) == plain.lengths(99)
    for before, after in zip(plain.lengths(100), doubled.lengths(100), strict=True):
        assert after == pytest.approx(min(2 * before, 64_000), abs=1)


def test_a_mean_outside_the_limits_is_refused() -> None:
    """The message names the mean and both limits."""
    with pytest.raises(ConfigError, match="mean_tokens=70000 must lie between min_tokens=16 and"):
        LengthModel(mean_tokens=70_000.0)
    with pytest.raises(ConfigError, match="mean_tokens=4 must lie between"):
        PromptLengths(mean_tokens=4.0)


@pytest.mark.parametrize("limit", [0, -1, True])
def test_a_limit_that_is_no_count_is_refused(limit: int) -> None:
    """Limits are validated before the distribution is solved."""
    with pytest.raises(InvalidValueError, match="min_tokens must be an integer >="):
        LengthModel(min_tokens=limit)


def test_correlation_without_spread_is_zero() -> None:
    """Lengths that do not vary are all the mean."""
    model = LengthModel(mean_tokens=500.0, difficulty_sigma=0.0, response_sigma=0.0)
    assert model.prompt_correlation == 0.0
    assert source(model).lengths(3) == (500,) * 8


@pytest.mark.parametrize(("seed", "responses"), [(-1, 8), (0, 0)])
def test_a_source_needs_a_seed_and_responses(seed: int, responses: int) -> None:
    """A negative seed and an empty group are refused."""
    with pytest.raises(ValueError, match="must be an integer >="):
        source(seed=seed, responses=responses)


def test_a_configuration_file_can_describe_lengths() -> None:
    """Nested sections become nested values, and an unknown kind of change is refused."""
    converter = cattrs.Converter(forbid_extra_keys=True, detailed_validation=False)
    section = {"mean_tokens": 4000, "schedule": {"drift": {"end": 10, "to_factor": 2.0}}}
    model = converter.structure(section, LengthModel)
    expected = Schedule(drift=Drift(end=10, to_factor=2.0))
    assert model == LengthModel(mean_tokens=4000.0, schedule=expected)
    with pytest.raises(cattrs.errors.ForbiddenExtraKeysError, match="drfit"):
        converter.structure({"schedule": {"drfit": {}}}, LengthModel)

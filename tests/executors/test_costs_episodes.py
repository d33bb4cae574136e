"""The course of modelled episodes: how many turns, which pauses, how much tools return."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swingshift.executors.simulated.costs.episodes import (
    EpisodeModel,
    EpisodeSource,
    ObservationLengths,
    ToolPauses,
)
from swingshift.sdk.errors import SwingshiftError

MANY = range(4_000)


def source(model: EpisodeModel, seed: int = 0) -> EpisodeSource:
    return EpisodeSource(model, seed=seed)


def test_the_default_is_a_single_turn() -> None:
    """A scenario that says nothing of episodes has none."""
    model = EpisodeModel()

    assert model.is_single_turn
    assert {source(model).turns(prompt, 0) for prompt in range(100)} == {1}


def test_the_number_of_turns_is_fixed_where_its_mean_is_its_least() -> None:
    """Nothing is left to chance."""
    fixed = source(EpisodeModel(min_turns=4, mean_turns=4.0))

    assert {fixed.turns(prompt, 1) for prompt in range(100)} == {4}
    assert not fixed.is_single_turn


def test_further_turns_are_geometric() -> None:
    """With a mean of two more, each is followed by another with a chance of two thirds."""
    turns = [source(EpisodeModel(mean_turns=3.0, max_turns=1_000)).turns(p, 0) for p in MANY]

    assert statistics.fmean(turns) == pytest.approx(3.0, rel=0.05)
    for least in (1, 2, 4):
        share = sum(turn > least for turn in turns) / len(turns)
        assert share == pytest.approx((2 / 3) ** least, abs=0.03)


def test_turns_are_cut() -> None:
    """No episode has more than the most or fewer than the least."""
    turns = [
        source(EpisodeModel(min_turns=2, mean_turns=6.0, max_turns=7)).turns(p, 0) for p in MANY
    ]

    assert (min(turns), max(turns)) == (2, 7)


def test_pauses_are_log_normal_with_their_mean() -> None:
    """The median is lower than the mean by the spread, and a mean of 0 is no pause."""
    slow = source(EpisodeModel(mean_turns=2.0, pause=ToolPauses(mean_s=8.0, sigma=1.0)))
    pauses = [slow.pause_s(prompt, 0, 1) for prompt in MANY]

    assert statistics.fmean(pauses) == pytest.approx(8.0, rel=0.1)
    assert statistics.median(pauses) == pytest.approx(8.0 * math.exp(-0.5), rel=0.1)
    assert source(EpisodeModel(pause=ToolPauses(mean_s=0.0))).pause_s(0, 0, 1) == 0.0


def test_observations_keep_their_mean_within_their_limits() -> None:
    """The cut is part of the mean that is asked for."""
    lengths = ObservationLengths(mean_tokens=120.0, sigma=1.2, min_tokens=10, max_tokens=400)
    long = source(EpisodeModel(observation=lengths))
    tokens = [long.observation_tokens(prompt, 0, 1) for prompt in MANY]

    assert statistics.fmean(tokens) == pytest.approx(120.0, rel=0.05)
    assert (min(tokens), max(tokens)) == (10, 400)


KEYS = st.tuples(st.integers(0, 10**6), st.integers(0, 64), st.integers(1, 64))
MODEL = EpisodeModel(mean_turns=4.0)


@given(seed=st.integers(0, 2**32), keys=st.lists(KEYS, min_size=2, max_size=8))
def test_answers_depend_on_seed_prompt_response_and_turn_alone(
    seed: int, keys: list[tuple[int, int, int]]
) -> None:
    """The order of the questions does not matter, nor what was asked before."""

    def ask(made: EpisodeSource, key: tuple[int, int, int]) -> tuple[int, float, int]:
        prompt, response, turn = key
        return (
            made.turns(prompt, response),
            made.pause_s(prompt, response, turn),
            made.observation_tokens(prompt, response, turn),
        )

    one = source(MODEL, seed)
    forward = {key: ask(one, key) for key in keys}

    assert {key: ask(source(MODEL, seed), key) for key in reversed(keys)} == forward


def test_seeds_prompts_responses_and_turns_differ() -> None:
    """None of them is left out of what an answer depends on."""
    pauses = {
        source(MODEL, seed).pause_s(prompt, response, turn)
        for seed in range(3)
        for prompt in range(3)
        for response in range(3)
        for turn in range(1, 4)
    }

    assert len(pauses) == 81


@given(tokens=st.integers(1, 100_000), prompt=st.integers(0, 1_000))
def test_turns_share_what_a_response_generates(tokens: int, prompt: int) -> None:
    """The last one ends where a response of one turn would, whatever their number."""
    made = source(MODEL)
    turns = made.turns(prompt, 0)
    ends = [made.turn_end(tokens, prompt, 0, turn) for turn in range(turns)]
    shares = [end - begin for begin, end in zip([0, *ends], ends, strict=False)]

    assert ends[-1] == tokens
    assert max(shares) - min(shares) <= 1


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: EpisodeModel(min_turns=3, mean_turns=2.0), "mean_turns=2 must lie between min_tu"),
        (lambda: EpisodeModel(mean_turns=9.0, max_turns=8), "and max_turns=8"),
        (lambda: ObservationLengths(mean_tokens=600.0), "mean_tokens=600 must lie between min_tok"),
        (lambda: EpisodeModel(mean_turns=0.5), "mean_turns"),
        (lambda: ToolPauses(mean_s=-1.0), "mean_s"),
    ],
)
def test_impossible_models_are_refused(build: Callable[[], object], message: str) -> None:
    """The error names the parameter and what it is held against."""
    with pytest.raises(SwingshiftError, match=message):
        build()

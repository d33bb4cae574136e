"""Advantages: what each response, or each of its tokens, was worth beyond what was expected."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swingshift.executors.rl.advantages import generalized_advantages, group_advantages

REWARDS = st.floats(-10.0, 10.0)


def test_a_response_is_compared_with_the_mean_of_its_group() -> None:
    """By hand: the means are 0.5 and 2; the members of a group need not be neighbours."""
    advantages = group_advantages(
        [1.0, 3.0, 0.0, 0.0, 1.0, 1.0], [0, 7, 0, 0, 0, 7], normalize_by_std=False
    )

    assert advantages.tolist() == [0.5, 1.0, -0.5, -0.5, 0.5, -1.0]


def test_the_difference_is_divided_by_the_spread_of_the_group() -> None:
    """By hand: the standard deviations of the two samples are sqrt(1/3) and sqrt(2)."""
    advantages = group_advantages(
        [1.0, 3.0, 0.0, 0.0, 1.0, 1.0], [0, 7, 0, 0, 0, 7], normalize_by_std=True
    )

    assert advantages == pytest.approx(
        [0.866025, 0.707107, -0.866025, -0.866025, 0.866025, -0.707107], abs=1e-5
    )


@pytest.mark.parametrize("normalize_by_std", [True, False])
@pytest.mark.parametrize("rewards", [[0.7, 0.7, 0.7], [0.1 + 0.2, 0.3], [1.0], []])
def test_a_group_without_a_difference_teaches_nothing(
    rewards: Sequence[float], normalize_by_std: bool
) -> None:
    """Also one of a single response, and one whose rewards differ by rounding alone."""
    advantages = group_advantages(rewards, [2] * len(rewards), normalize_by_std=normalize_by_std)

    assert advantages == pytest.approx([0.0] * len(rewards), abs=1e-9)


@given(
    st.lists(st.tuples(REWARDS, st.integers(0, 3)), min_size=1, max_size=20),
    st.booleans(),
    REWARDS,
)
def test_advantages_of_a_group_add_up_to_nothing_and_ignore_what_all_rewards_share(
    drawn: list[tuple[float, int]], normalize_by_std: bool, shift: float
) -> None:
    """For any rewards and groups."""
    rewards, groups = zip(*drawn, strict=True)
    advantages = group_advantages(rewards, groups, normalize_by_std=normalize_by_std)
    moved = group_advantages(
        [reward + shift for reward in rewards], groups, normalize_by_std=normalize_by_std
    )

    for group in set(groups):
        assert advantages[np.array(groups) == group].sum() == pytest.approx(0.0, abs=1e-6)
    assert moved == pytest.approx(advantages, abs=1e-6)


def test_generalized_advantages_weigh_later_surprises_less() -> None:
    """By hand, with gamma 0.9 and lambda 0.8.

    Surprises from the last token on: 1 - 0.75, 0.9 x 0.75 - 0.25, 0.9 x 0.25 - 0.5. Each
    advantage is its surprise and 0.72 of the advantage after it; a return adds the value again.
    """
    advantages, returns = generalized_advantages(
        1.0, [0.5, 0.25, 0.75], [True] * 3, gamma=0.9, gae_lambda=0.8
    )

    assert advantages == pytest.approx([0.1606, 0.605, 0.25])
    assert returns == pytest.approx([0.6606, 0.855, 1.0])


def test_observed_tokens_are_no_action() -> None:
    """The drawn tokens get what they would get if nothing had come between, observed ones 0."""
    trainable = [True, False, False, True, True, False]
    advantages, returns = generalized_advantages(
        1.0, [0.5, 8.0, 9.0, 0.25, 0.75, 7.0], trainable, gamma=0.9, gae_lambda=0.8
    )

    assert advantages == pytest.approx([0.1606, 0.0, 0.0, 0.605, 0.25, 0.0])
    assert returns == pytest.approx([0.6606, 0.0, 0.0, 0.855, 1.0, 0.0])


@pytest.mark.parametrize("tokens", [0, 2])
def test_a_response_without_a_drawn_token_has_no_advantage(tokens: int) -> None:
    """Its reward is given to nobody."""
    advantages, returns = generalized_advantages(
        1.0, [0.5] * tokens, [False] * tokens, gamma=1.0, gae_lambda=1.0
    )

    assert advantages.tolist() == returns.tolist() == [0.0] * tokens


@given(st.lists(REWARDS, min_size=1, max_size=12), REWARDS)
def test_without_discounts_every_token_is_held_to_the_reward(
    values: list[float], reward: float
) -> None:
    """The advantage is the reward less what was expected, the return is the reward."""
    advantages, returns = generalized_advantages(
        reward, values, [True] * len(values), gamma=1.0, gae_lambda=1.0
    )

    assert advantages == pytest.approx(reward - np.array(values), abs=1e-9)
    assert returns == pytest.approx([reward] * len(values), abs=1e-9)


@given(st.lists(REWARDS, min_size=1, max_size=12), REWARDS)
def test_with_lambda_zero_only_the_next_expectation_counts(
    values: list[float], reward: float
) -> None:
    """The return is the discounted value of the next token, the reward for the last one."""
    _, returns = generalized_advantages(
        reward, values, [True] * len(values), gamma=0.5, gae_lambda=0.0
    )

    following = [0.5 * value for value in values[1:]]
    assert returns == pytest.approx([*following, reward], abs=1e-9)

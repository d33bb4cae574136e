"""What each response, or each of its tokens, was worth beyond what was expected."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

# Keeps a group whose rewards are all but equal from being blown up.
_EPSILON = 1e-6


def group_advantages(
    rewards: Sequence[float], groups: Sequence[int], *, normalize_by_std: bool
) -> Floats:
    """Return how much better each response is than the mean of its group.

    Args:
        rewards: One per response.
        groups: For each response, which others it is compared with.
        normalize_by_std: Divide by the standard deviation of the group. A group of equal rewards
            has advantages of 0 either way.

    Returns:
        One number per response.

    Source: Z. Shao et al., "DeepSeekMath", 2024, section 4.1.2; without the division: Z. Liu et
    al., "Understanding R1-Zero-like training", 2025, section 3.
    """
    worth = np.asarray(rewards, dtype=np.float64)
    _, index = np.unique(np.asarray(groups), return_inverse=True)
    sizes = np.bincount(index)
    above_mean: Floats = worth - (np.bincount(index, weights=worth) / sizes)[index]
    if not normalize_by_std:
        return above_mean
    # of the sample, as a group of n responses estimates it
    variance = np.bincount(index, weights=above_mean**2) / np.maximum(sizes - 1, 1)
    scaled: Floats = above_mean / (np.sqrt(variance) + _EPSILON)[index]
    return scaled


def generalized_advantages(
    reward: float, values: Sequence[float], *, gamma: float, gae_lambda: float
) -> tuple[Floats, Floats]:
    """Return the advantage of each token of one response, and the returns a critic learns.

    Args:
        reward: Of the whole response, given with its last token.
        values: What the critic expects before each token; at least one.
        gamma: Discount per token.
        gae_lambda: Weight of longer returns.

    Returns:
        Advantages and returns, one of each per token.

    Source: J. Schulman et al., "High-dimensional continuous control using generalized advantage
    estimation", 2016, equation 16.
    """
    expected = np.asarray(values, dtype=np.float64)
    following = np.append(expected[1:], 0.0)
    rewards = np.zeros_like(expected)
    rewards[-1] = reward
    surprise = rewards + gamma * following - expected
    advantages = np.empty_like(expected)
    later = 0.0
    for token in range(len(expected) - 1, -1, -1):
        later = float(surprise[token]) + gamma * gae_lambda * later
        advantages[token] = later
    return advantages, advantages + expected

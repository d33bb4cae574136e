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
    reward: float,
    values: Sequence[float],
    trainable: Sequence[bool],
    *,
    gamma: float,
    gae_lambda: float,
) -> tuple[Floats, Floats]:
    """Return the advantage of each token of one response, and the returns a critic learns.

    Observed tokens are no action: each drawn token is followed by the next drawn one.

    Args:
        reward: Of the whole response, given with the last token that was drawn.
        values: What the critic expects before each token.
        trainable: For each token, whether the model drew it.
        gamma: Discount per drawn token.
        gae_lambda: Weight of longer returns.

    Returns:
        Advantages and returns, one of each per token; 0 for observed tokens.

    Source: J. Schulman et al., "High-dimensional continuous control using generalized advantage
    estimation", 2016, equation 16.
    """
    drawn = np.flatnonzero(trainable)
    expected = np.asarray(values, dtype=np.float64)[drawn]
    advantages, returns = np.zeros(len(values)), np.zeros(len(values))
    # what is given with a token, and what is expected after it
    ahead, later = reward, 0.0
    for token, value in zip(drawn[::-1], expected[::-1], strict=True):
        later = ahead - value + gamma * gae_lambda * later
        advantages[token], returns[token] = later, later + value
        ahead = gamma * value
    return advantages, returns

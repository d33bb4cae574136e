"""Losses over tokens, for every trainer that computes with torch.

Tensors are batch x tokens unless said otherwise; a mask is 1.0 where a token is trained on.
"""

from __future__ import annotations

import attrs
import torch
from torch import Tensor

# Log-ratios beyond this are cut before they are exponentiated.
_LOG_RATIO_LIMIT = 20.0


def token_log_probs(logits: Tensor, tokens: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Return the log-probability of each token, and the entropy where it was drawn.

    Args:
        logits: Before each token, batch x tokens x vocabulary.
        tokens: Token ids.
        temperature: With which they were sampled, above 0.

    Returns:
        Log-probabilities with a gradient, and entropies in nats without one.
    """
    log_probs = (logits.float() / temperature).log_softmax(-1)
    with torch.no_grad():
        # without a gradient, because nothing of the size of the logits is kept for it then
        entropy = torch.special.entr(log_probs.exp()).sum(-1)
    return log_probs.gather(-1, tokens[..., None])[..., 0], entropy


@attrs.frozen(kw_only=True)
class PolicyLoss:
    """Sums over tokens, to be divided by the tokens of the whole mini-batch.

    Attributes:
        loss: What is minimised.
        clipped: Tokens whose ratio was clipped, so that they have no gradient.
        divergence: Estimated divergence of the policy that generated from the one in training.
    """

    loss: Tensor
    clipped: Tensor
    divergence: Tensor


def clipped_policy_loss(
    log_probs: Tensor,
    behaviour: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    clip_low: float,
    clip_high: float,
) -> PolicyLoss:
    """Return the clipped surrogate, with the ratio to the policy that generated the tokens.

    Args:
        log_probs: Under the weights in training.
        behaviour: As the rollout engine reported them, under the weights of that time.
        advantages: Of each token.
        mask: Which tokens count.
        clip_low: How far below 1 the ratio counts.
        clip_high: How far above 1 it counts.

    Source: J. Schulman et al., "Proximal policy optimization algorithms", 2017, equation 7; two
    limits: Q. Yu et al., "DAPO", 2025, section 3.1.
    """
    log_ratio = _limited(log_probs - behaviour)
    ratio = log_ratio.exp()
    limited = ratio.clamp(1.0 - clip_low, 1.0 + clip_high)
    gain = torch.minimum(ratio * advantages, limited * advantages)
    with torch.no_grad():
        is_clipped = (limited * advantages < ratio * advantages) & (mask > 0)
        # the tokens were drawn from the policy that generated, so it comes first
        divergence = (k3_divergence(behaviour, log_probs) * mask).sum()
    return PolicyLoss(loss=-(gain * mask).sum(), clipped=is_clipped.sum(), divergence=divergence)


def k3_divergence(log_probs: Tensor, reference: Tensor) -> Tensor:
    """Return an estimate of a policy's divergence from a reference, per token, never below 0.

    Args:
        log_probs: Under the policy, which the tokens were drawn from.
        reference: Under the reference.

    Source: J. Schulman, "Approximating KL divergence", 2020, estimator k3.
    """
    log_ratio = _limited(reference - log_probs)
    # exact where the policies all but agree, as they mostly do
    return log_ratio.expm1() - log_ratio


def value_loss(values: Tensor, returns: Tensor, mask: Tensor) -> Tensor:
    """Return half the squared error of a critic, summed over tokens."""
    return 0.5 * ((values - returns).square() * mask).sum()


def _limited(log_ratio: Tensor) -> Tensor:
    # not a clamp: that has no gradient at NaN, and a step on NaN would pass for a good one
    is_beyond = log_ratio.abs() > _LOG_RATIO_LIMIT
    return torch.where(is_beyond, _LOG_RATIO_LIMIT * log_ratio.sign(), log_ratio)

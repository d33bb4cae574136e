"""Losses over tokens, each against numbers worked out by hand."""

from __future__ import annotations

from math import log, nan

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from swingshift.executors.rl.losses import (
    PolicyLoss,
    clipped_policy_loss,
    k3_divergence,
    token_log_probs,
    value_loss,
)

LOG_PROBS = st.lists(
    st.tuples(st.floats(-60.0, 0.0), st.floats(-60.0, 0.0)), min_size=1, max_size=8
)


def test_log_probabilities_and_entropy_of_tokens() -> None:
    """Odds of 1 : 2 : 1; with temperature 0.5 of 1 : 4 : 1."""
    logits = torch.tensor([[[0.0, log(2.0), 0.0]] * 2])
    tokens = torch.tensor([[1, 2]])

    found, entropy = token_log_probs(logits, tokens, 1.0)
    colder, _ = token_log_probs(logits, tokens, 0.5)

    assert found[0].tolist() == pytest.approx([log(0.5), log(0.25)])
    assert entropy[0].tolist() == pytest.approx([1.5 * log(2.0)] * 2)
    assert colder[0].tolist() == pytest.approx([log(4 / 6), log(1 / 6)])


def test_entropy_is_for_looking_at_and_knows_impossible_tokens() -> None:
    """It carries no gradient, the log-probability does; a token that cannot come adds nothing."""
    logits = torch.tensor([[[0.0, 0.0, float("-inf")]]], requires_grad=True)

    found, entropy = token_log_probs(logits, torch.tensor([[0]]), 1.0)

    assert found.requires_grad
    assert not entropy.requires_grad
    assert entropy.item() == pytest.approx(log(2.0))


def test_low_precision_is_left_behind() -> None:
    """Log-probabilities of bfloat16 logits are worked out in float32."""
    found, _ = token_log_probs(torch.zeros(1, 1, 3, dtype=torch.bfloat16), torch.tensor([[0]]), 1.0)

    assert found.dtype is torch.float32
    assert found.item() == pytest.approx(-log(3.0))


def _loss(
    log_ratios: Tensor, advantages: list[float], *, clip_high: float = 0.2, mask: float = 1.0
) -> PolicyLoss:
    """Return the loss of four tokens and one that does not count."""
    behaviour = torch.full((1, 5), -3.0)
    return clipped_policy_loss(
        behaviour + log_ratios,
        behaviour,
        torch.tensor([[*advantages, 100.0]]),
        torch.tensor([[mask] * 4 + [0.0]]),
        clip_low=0.2,
        clip_high=clip_high,
    )


def test_the_surrogate_is_clipped_where_the_policy_has_gone_far_enough() -> None:
    """By hand: gains 1.2 (clipped), -1.5, 0.5 and -0.8 (clipped); the fifth does not count."""
    log_ratios = torch.tensor([[log(1.5), log(1.5), log(0.5), log(0.5), 2.0]], requires_grad=True)

    found = _loss(log_ratios, [1.0, -1.0, 1.0, -1.0])
    found.loss.backward()  # type: ignore[no-untyped-call]

    assert found.loss.item() == pytest.approx(-(1.2 - 1.5 + 0.5 - 0.8))
    assert found.clipped.item() == 2
    # of ratio x advantage, where it is not clipped
    assert log_ratios.grad is not None
    assert log_ratios.grad[0].tolist() == pytest.approx([0.0, 1.5, -0.5, 0.0, 0.0])
    assert found.divergence.item() == pytest.approx(2 * (0.5 - log(1.5)) + 2 * (-0.5 - log(0.5)))


def test_the_upper_limit_is_its_own() -> None:
    """With 0.28 a ratio of 1.25 is free, with 0.2 it is not."""
    log_ratios = torch.tensor([[log(1.25)] * 4 + [0.0]])

    assert _loss(log_ratios, [1.0] * 4, clip_high=0.28).clipped.item() == 0
    assert _loss(log_ratios, [1.0] * 4, clip_high=0.28).loss.item() == pytest.approx(-5.0)
    assert _loss(log_ratios, [1.0] * 4, clip_high=0.2).clipped.item() == 4
    assert _loss(log_ratios, [1.0] * 4, clip_high=0.2).loss.item() == pytest.approx(-4.8)


def test_tokens_that_do_not_count_do_not_count_anywhere() -> None:
    """Neither in the loss nor in what is told of it."""
    found = _loss(torch.full((1, 5), 5.0), [1.0] * 4, mask=0.0)

    assert (found.loss.item(), found.clipped.item(), found.divergence.item()) == (0.0, 0, 0.0)


@pytest.mark.parametrize("log_ratio", [-1e4, 1e4])
def test_the_most_different_policies_have_a_finite_loss(log_ratio: float) -> None:
    """What was all but impossible in one is certain in the other."""
    log_ratios = torch.full((1, 5), log_ratio, requires_grad=True)

    found = _loss(log_ratios, [1.0, -1.0, 1.0, -1.0])
    found.loss.backward()  # type: ignore[no-untyped-call]

    assert found.loss.isfinite()
    assert found.divergence.isfinite()
    assert log_ratios.grad is not None
    assert log_ratios.grad.isfinite().all()


def test_what_is_no_number_is_not_hidden() -> None:
    """Loss and gradient tell of it, so that the step can be skipped."""
    log_ratios = torch.tensor([[nan, 0.0, 0.0, 0.0, 0.0]], requires_grad=True)

    found = _loss(log_ratios, [1.0] * 4)
    found.loss.backward()  # type: ignore[no-untyped-call]

    assert found.loss.isnan()
    assert log_ratios.grad is not None
    assert log_ratios.grad[0, 0].isnan()


def test_k3_of_two_tokens() -> None:
    """By hand: r - log r - 1 with r = 2 and r = 0.5."""
    found = k3_divergence(torch.tensor([log(0.2), log(0.2)]), torch.tensor([log(0.4), log(0.1)]))

    assert found.tolist() == pytest.approx([1.0 - log(2.0), log(2.0) - 0.5])


def test_k3_is_the_divergence_on_average() -> None:
    """Over the tokens that the policy draws it comes to the sum of p log (p / q)."""
    policy, reference = torch.tensor([0.5, 0.3, 0.2]), torch.tensor([0.2, 0.5, 0.3])

    average = (policy * k3_divergence(policy.log(), reference.log())).sum()

    exact = (policy * (policy / reference).log()).sum()
    assert average.item() == pytest.approx(exact.item(), rel=1e-5)


@given(LOG_PROBS)
def test_k3_is_finite_and_never_below_zero(drawn: list[tuple[float, float]]) -> None:
    """For any two policies, up to rounding; 0 where they agree."""
    policy, reference = torch.tensor(drawn, dtype=torch.float64).T

    assert k3_divergence(policy, reference).isfinite().all()
    assert (k3_divergence(policy, reference) >= -1e-12).all()
    assert (k3_divergence(policy, policy) == 0.0).all()


def test_k3_is_exact_where_the_policies_all_but_agree() -> None:
    """Half the square of a small difference, in single precision."""
    found = k3_divergence(torch.tensor([0.0, 0.0]), torch.tensor([1e-3, -1e-3]))

    assert found.tolist() == pytest.approx([5e-7, 5e-7], rel=1e-3)


def test_the_gradient_of_k3_pulls_back() -> None:
    """By hand: 1 - r, positive where the policy is the likelier one."""
    policy = torch.tensor([log(0.4), log(0.1)], requires_grad=True)

    k3_divergence(policy, torch.tensor([log(0.2), log(0.2)])).sum().backward()  # type: ignore[no-untyped-call]

    assert policy.grad is not None
    assert policy.grad.tolist() == pytest.approx([0.5, -1.0])


def test_the_value_loss_is_half_the_squared_error() -> None:
    """By hand: (2^2 + 1^2) / 2; the last token does not count."""
    found = value_loss(
        torch.tensor([[1.0, 2.0, 9.0]]),
        torch.tensor([[3.0, 1.0, 0.0]]),
        torch.tensor([[1.0, 1.0, 0.0]]),
    )

    assert found.item() == pytest.approx(2.5)

"""The critic: what is still to come, before each token."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.executors.local_training import CPU, PAD, build_small, sequence

from swingshift.executors.local.critic import Critic
from swingshift.executors.local.micro_batches import MicroBatch, micro_batches
from swingshift.executors.rl.options import LearningOptions

LEARNING = LearningOptions(critic=True, critic_learning_rate=1e-2)
SEQUENCES = [sequence([1, 2], [3, 4, 5]), sequence([6], [7, 8], observed=(0,))]
RETURNS = {0: np.array([0.5, 1.0, 2.0]), 1: np.array([7.0, 1.0])}


def micro_batch() -> MicroBatch:
    """Return both sequences in one pass."""
    (batch,) = micro_batches(SEQUENCES, [0, 1], max_tokens=100, pad_token_id=PAD, device=CPU)
    return batch


def test_it_begins_by_expecting_nothing() -> None:
    """So the first advantages are those without a critic."""
    values = Critic(build_small(), LEARNING).values(micro_batch())

    assert values.shape == (2, 4)
    assert values.dtype is torch.float32
    assert not values.any()


def test_its_loss_is_half_the_squared_error_of_the_trained_tokens() -> None:
    """By hand, from values of 0: (0.25 + 1 + 4) / 2 and 1 / 2; the observed token does not count.

    The gradient of the head's bias is the sum of what is missing, divided by all tokens.
    """
    critic, batch = Critic(build_small(), LEARNING), micro_batch()

    assert critic.accumulate(batch, batch.spread(RETURNS), 4) == pytest.approx(3.125)
    assert critic._head.bias.grad is not None
    assert critic._head.bias.grad.item() == pytest.approx(-(0.5 + 1.0 + 2.0 + 1.0) / 4)


def test_it_learns_to_tell_tokens_apart() -> None:
    """Steps with its own learning rate bring the loss down to a fraction."""
    critic, batch = Critic(build_small(), LEARNING), micro_batch()
    losses = []
    for _ in range(60):
        losses.append(critic.accumulate(batch, batch.spread(RETURNS), 4))
        critic.optimizer.step(1)

    assert losses[-1] < 0.05 * losses[0]


def test_its_weights_are_those_of_the_body_and_of_the_head() -> None:
    """Of the language model's own head it has none."""
    critic = Critic(build_small(), LEARNING)

    names = critic.weights().keys()
    assert {"head.weight", "head.bias", "embed_tokens.weight"} <= names
    assert not any("lm_head" in name for name in names)
    assert len(critic.optimizer.state()) == 2 * len(names)

"""What a training engine gets: responses as tokens, with what is known of each token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class TrainingSequence(NamedTuple):
    """One response to train on.

    Attributes:
        prompt: Token ids of the prompt.
        response: All token ids after the prompt, generated and observed ones in the order they
            came.
        log_probs: For each token of the response, the log-probability with which the rollout engine
            drew it; 0.0 for an observed token.
        trainable: For each token of the response, whether the model drew it and learns from it.
        reward: What the response as a whole is worth.
        group: Index of its sample in the batch; the responses of one sample are compared with one
            another.
    """

    prompt: Sequence[int]
    response: Sequence[int]
    log_probs: Sequence[float]
    trainable: Sequence[bool]
    reward: float
    group: int

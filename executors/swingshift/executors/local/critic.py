"""A critic: what is still to come, before each token of a response."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import PreTrainedModel

from swingshift.executors.local.micro_batches import MicroBatch
from swingshift.executors.local.optimizer import Optimizer
from swingshift.executors.local.weights import without_ties
from swingshift.executors.rl.losses import value_loss
from swingshift.executors.rl.options import LearningOptions


class Critic:
    """A model like the actor whose last hidden state gives one number per token.

    Attributes:
        optimizer: Its own.
    """

    def __init__(self, model: PreTrainedModel, learning: LearningOptions) -> None:
        """Put a head on a model; it begins by expecting nothing.

        Args:
            model: Nobody else's.
            learning: Its learning rate and clipping.
        """
        self._body = model.base_model
        hidden: int = model.config.get_text_config().hidden_size
        self._head = torch.nn.Linear(hidden, 1, device=model.device, dtype=model.dtype)
        torch.nn.init.zeros_(self._head.weight)
        torch.nn.init.zeros_(self._head.bias)
        self.optimizer = Optimizer(
            [*self._body.parameters(), *self._head.parameters()],
            learning,
            learning.critic_learning_rate,
        )

    def weights(self) -> dict[str, Tensor]:
        """Return its weights by name, tied ones once; called while they have memory."""
        head = {f"head.{name}": tensor for name, tensor in self._head.state_dict().items()}
        return without_ties({**self._body.state_dict(), **head}.items())

    def values(self, batch: MicroBatch) -> Tensor:
        """Return what it expects before each token but the first; rows x (columns - 1)."""
        hidden = self._body(
            input_ids=batch.ids, attention_mask=batch.attention, use_cache=False
        ).last_hidden_state
        values: Tensor = self._head(hidden)[:, :-1, 0].float()
        return values

    def accumulate(self, batch: MicroBatch, returns: Tensor, tokens: int) -> float:
        """Add the gradient of one micro-batch and return its loss, summed over tokens.

        Args:
            batch: The micro-batch.
            returns: What came, before each token.
            tokens: Trained tokens of the whole mini-batch.
        """
        loss = value_loss(self.values(batch), returns, batch.mask)
        (loss / tokens).backward()  # type: ignore[no-untyped-call]
        return loss.item()

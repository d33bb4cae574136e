"""A batch cut into the mini-batches of optimizer steps, and these into the shares of ranks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import attrs
import numpy as np
import torch

from swingshift.executors.local.micro_batches import MicroBatch, micro_batches, total_tokens
from swingshift.executors.rl.batches import TrainingSequence


@attrs.frozen(kw_only=True)
class MiniBatch:
    """What one optimizer step of one rank trains on.

    Attributes:
        tokens: Tokens trained on over all ranks; at least 1, to divide by.
        share: What of it is this rank's; can be gone through once.
    """

    tokens: int
    share: Iterator[MicroBatch]


@attrs.frozen(kw_only=True)
class BatchCutter:
    """Cuts every batch the same way for one rank.

    Attributes:
        steps: Mini-batches of a batch; fewer if it has fewer groups.
        max_tokens: Most tokens of a micro-batch, padding included.
        pad_token_id: Fills up rows.
        device: Where the tensors go.
        rank: This one's place among ``world``.
        world: Ranks.
    """

    steps: int
    max_tokens: int
    pad_token_id: int
    device: torch.device
    rank: int
    world: int

    def cut(self, sequences: Sequence[TrainingSequence]) -> Iterator[MiniBatch]:
        """Cut a batch into mini-batches of whole groups.

        A rank gets the same sequences each time.
        """
        groups = sorted({sequence.group for sequence in sequences})
        for part in np.array_split(np.array(groups), min(self.steps, len(groups))):
            members = set(part.tolist())
            chosen = [index for index, item in enumerate(sequences) if item.group in members]
            yield MiniBatch(
                tokens=max(1, trained_tokens([sequences[index] for index in chosen])),
                share=self._share(sequences, chosen),
            )

    def _share(
        self, sequences: Sequence[TrainingSequence], chosen: Sequence[int]
    ) -> Iterator[MicroBatch]:
        # dealt out by length: all shares have about as many tokens
        by_length = sorted(chosen, key=lambda index: total_tokens(sequences[index]))
        return micro_batches(
            sequences,
            by_length[self.rank :: self.world],
            max_tokens=self.max_tokens,
            pad_token_id=self.pad_token_id,
            device=self.device,
        )


def trained_tokens(sequences: Sequence[TrainingSequence]) -> int:
    """Return how many tokens are trained on."""
    return sum(sum(sequence.trainable) for sequence in sequences)

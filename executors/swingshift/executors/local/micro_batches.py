"""Sequences of different lengths as tensors: padded, sorted by length, no pass too large."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import attrs
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from swingshift.executors.rl.batches import TrainingSequence


@attrs.frozen(kw_only=True)
class MicroBatch:
    """Sequences of one forward pass, padded on the right.

    Attributes:
        indices: Which of the sequences given these are, in the order of the rows.
        ids: Token ids, rows x columns.
        attention: 1 where there is a token.
        mask: For each token but the first, 1.0 if it is trained on; rows x (columns - 1).
        behaviour: For each token but the first, the log-probability with which it was drawn.
    """

    indices: tuple[int, ...]
    ids: Tensor
    attention: Tensor
    mask: Tensor
    behaviour: Tensor

    def spread(self, by_token: Sequence[npt.NDArray[np.float64]]) -> Tensor:
        """Return numbers per response token as a tensor like ``mask``, 0 elsewhere.

        Args:
            by_token: For each sequence that was given, a number per token of its response.
        """
        spread = np.zeros(self.mask.shape, dtype=np.float32)
        for row, index in enumerate(self.indices):
            numbers = by_token[index]
            end = int(self.attention[row].sum()) - 1
            spread[row, end - len(numbers) : end] = numbers
        return torch.from_numpy(spread).to(self.mask.device)


def micro_batches(
    sequences: Sequence[TrainingSequence],
    chosen: Sequence[int],
    *,
    max_tokens: int,
    pad_token_id: int,
    device: torch.device,
) -> Iterator[MicroBatch]:
    """Cut sequences into micro-batches, the shortest first.

    Args:
        sequences: All sequences of a batch.
        chosen: Which of them to cut.
        max_tokens: Most tokens of one, padding included; a longer sequence is one by itself.
        pad_token_id: Fills up rows.
        device: Where the tensors go.
    """
    rows: list[int] = []
    for index in sorted(chosen, key=lambda i: _length(sequences[i])):
        if rows and _length(sequences[index]) * (len(rows) + 1) > max_tokens:
            yield _padded(sequences, rows, pad_token_id, device)
            rows = []
        rows.append(index)
    if rows:
        yield _padded(sequences, rows, pad_token_id, device)


def _length(sequence: TrainingSequence) -> int:
    return len(sequence.prompt) + len(sequence.response)


def _padded(
    sequences: Sequence[TrainingSequence], rows: list[int], pad: int, device: torch.device
) -> MicroBatch:
    width = _length(sequences[rows[-1]])
    shape = (len(rows), width)
    ids = np.full(shape, pad, dtype=np.int64)
    attention = np.zeros(shape, dtype=np.int64)
    mask = np.zeros(shape, dtype=np.float32)
    behaviour = np.zeros(shape, dtype=np.float32)
    for row, index in enumerate(rows):
        sequence = sequences[index]
        begin, end = len(sequence.prompt), _length(sequence)
        ids[row, :begin] = sequence.prompt
        ids[row, begin:end] = sequence.response
        attention[row, :end] = 1
        mask[row, begin:end] = sequence.trainable
        behaviour[row, begin:end] = sequence.log_probs
    return MicroBatch(
        indices=tuple(rows),
        ids=torch.from_numpy(ids).to(device),
        attention=torch.from_numpy(attention).to(device),
        mask=torch.from_numpy(mask[:, 1:]).to(device),
        behaviour=torch.from_numpy(behaviour[:, 1:]).to(device),
    )

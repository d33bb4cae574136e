"""Sequences of different lengths as tensors: padded, sorted by length, no pass too large."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

import attrs
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from swingshift.executors.rl.batches import TrainingSequence

ByToken: TypeAlias = npt.NDArray[np.float64]
"""A number per token of one response."""


@attrs.frozen(kw_only=True)
class MicroBatch:
    """Sequences of one forward pass, padded on the right.

    Attributes:
        indices: Which of the sequences given these are, in the order of the rows.
        responses: For each row, the columns of the response's tokens in tensors like ``mask``.
        ids: Token ids, rows x columns.
        attention: 1 where there is a token.
        mask: For each token but the first, 1.0 if it is trained on; rows x (columns - 1).
        behaviour: For each token but the first, the log-probability with which it was drawn.
    """

    indices: tuple[int, ...]
    responses: tuple[slice, ...]
    ids: Tensor
    attention: Tensor
    mask: Tensor
    behaviour: Tensor

    def spread(self, by_sequence: Mapping[int, ByToken]) -> Tensor:
        """Return numbers per response token as a tensor like ``mask``, 0 elsewhere.

        Args:
            by_sequence: For each of ``indices``, a number per token of its response.
        """
        spread = np.zeros(self.mask.shape, dtype=np.float32)
        for row, (index, response) in enumerate(zip(self.indices, self.responses, strict=True)):
            spread[row, response] = by_sequence[index]
        return torch.from_numpy(spread).to(self.mask.device)

    def gather(self, numbers: Tensor) -> dict[int, ByToken]:
        """Return what a tensor like ``mask`` has for each token of each response; undoes `spread`.

        Args:
            numbers: Without a gradient.
        """
        rows = numbers.double().cpu().numpy()
        return {
            index: rows[row, response]
            for row, (index, response) in enumerate(zip(self.indices, self.responses, strict=True))
        }


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
        sequences: All sequences of a batch; each has a prompt.
        chosen: Which of them to cut.
        max_tokens: Most tokens of one, padding included; a longer sequence is one by itself.
        pad_token_id: Fills up rows.
        device: Where the tensors go.
    """
    rows: list[int] = []
    for index in sorted(chosen, key=lambda index: total_tokens(sequences[index])):
        if rows and total_tokens(sequences[index]) * (len(rows) + 1) > max_tokens:
            yield _padded(sequences, rows, pad_token_id, device)
            rows = []
        rows.append(index)
    if rows:
        yield _padded(sequences, rows, pad_token_id, device)


def total_tokens(sequence: TrainingSequence) -> int:
    """Return the tokens of prompt and response."""
    return len(sequence.prompt) + len(sequence.response)


def _padded(
    sequences: Sequence[TrainingSequence], rows: Sequence[int], pad: int, device: torch.device
) -> MicroBatch:
    shape = (len(rows), total_tokens(sequences[rows[-1]]))
    ids = np.full(shape, pad, dtype=np.int64)
    attention = np.zeros(shape, dtype=np.int64)
    mask = np.zeros(shape, dtype=np.float32)
    behaviour = np.zeros(shape, dtype=np.float32)
    responses = []
    for row, index in enumerate(rows):
        sequence = sequences[index]
        begin, end = len(sequence.prompt), total_tokens(sequence)
        ids[row, :begin] = sequence.prompt
        ids[row, begin:end] = sequence.response
        attention[row, :end] = 1
        mask[row, begin:end] = sequence.trainable
        behaviour[row, begin:end] = sequence.log_probs
        responses.append(slice(begin - 1, end - 1))
    return MicroBatch(
        indices=tuple(rows),
        responses=tuple(responses),
        ids=torch.from_numpy(ids).to(device),
        attention=torch.from_numpy(attention).to(device),
        mask=torch.from_numpy(mask[:, 1:]).to(device),
        behaviour=torch.from_numpy(behaviour[:, 1:]).to(device),
    )

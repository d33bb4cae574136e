"""Micro-batches: sequences of different lengths as padded tensors."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.executors.local_training import CPU, PAD, sequence

from swingshift.executors.local.micro_batches import (
    ByToken,
    MicroBatch,
    micro_batches,
    total_tokens,
)
from swingshift.executors.rl.batches import TrainingSequence

SEQUENCES = st.lists(
    st.builds(
        sequence,
        st.lists(st.integers(1, 9), min_size=1, max_size=5),
        st.lists(st.integers(1, 9), max_size=8),
    ),
    min_size=1,
    max_size=12,
)


def cut(sequences: list[TrainingSequence], max_tokens: int = 100) -> list[MicroBatch]:
    """Return all sequences in micro-batches."""
    chosen = range(len(sequences))
    return list(
        micro_batches(sequences, chosen, max_tokens=max_tokens, pad_token_id=PAD, device=CPU)
    )


def test_rows_are_padded_on_the_right_and_every_token_has_its_numbers() -> None:
    """Tensors of what is predicted begin with the second token: nothing comes before the first."""
    longer = sequence([1, 2], [3, 4, 5], observed=(1,), log_probs=[-0.5, 0.0, -1.5])
    (batch,) = cut([longer, sequence([6], [7, 8], log_probs=[-2.0, -3.0])])

    assert batch.indices == (1, 0)
    assert batch.ids.tolist() == [[6, 7, 8, PAD, PAD], [1, 2, 3, 4, 5]]
    assert batch.attention.tolist() == [[1, 1, 1, 0, 0], [1] * 5]
    assert batch.mask.tolist() == [[1, 1, 0, 0], [0, 1, 0, 1]]
    assert batch.behaviour.tolist() == [[-2.0, -3.0, 0, 0], [0, -0.5, 0, -1.5]]


def test_numbers_by_token_are_spread_over_the_rows() -> None:
    """Those of sequences that are in no row are not asked for."""
    (batch,) = micro_batches(
        [sequence([9], [9]), sequence([1, 2], [3, 4]), sequence([6], [7])],
        [1, 2],
        max_tokens=100,
        pad_token_id=PAD,
        device=CPU,
    )

    spread = batch.spread({1: np.array([0.5, 0.25]), 2: np.array([4.0])})

    assert spread.tolist() == [[4.0, 0.0, 0.0], [0.0, 0.5, 0.25]]


def test_no_micro_batch_has_more_tokens_than_allowed_padding_included() -> None:
    """By hand: 3 rows of up to 3 tokens, then rows of 5, 5 and 6 that do not go together."""
    sequences = [sequence([1], [1] * (length - 1)) for length in (5, 2, 3, 6, 3, 5)]

    assert [batch.indices for batch in cut(sequences, 10)] == [(1, 2, 4), (0, 5), (3,)]


def test_a_sequence_that_is_too_long_is_a_pass_of_its_own() -> None:
    """It is trained on, not dropped."""
    sequences = [sequence([1], [1] * 9), sequence([1], [1])]

    assert [batch.indices for batch in cut(sequences, 4)] == [(1,), (0,)]


def test_nothing_makes_no_micro_batch() -> None:
    """As a rank has it whose share is empty."""
    assert cut([]) == []


@given(SEQUENCES, st.integers(1, 40))
def test_every_sequence_is_in_one_row(sequences: list[TrainingSequence], max_tokens: int) -> None:
    """Whatever the lengths, within the limit, and what is spread can be gathered again."""
    by_token = {
        index: np.arange(len(item.response), dtype=np.float64) + index
        for index, item in enumerate(sequences)
    }
    found: dict[int, ByToken] = {}
    for batch in cut(sequences, max_tokens):
        rows, columns = batch.ids.shape
        assert rows == 1 or rows * columns <= max_tokens
        assert batch.attention.sum() == sum(total_tokens(sequences[i]) for i in batch.indices)
        assert not found.keys() & set(batch.indices)
        found |= batch.gather(batch.spread(by_token))

    assert found.keys() == by_token.keys()
    for index, numbers in by_token.items():
        assert found[index].tolist() == numbers.tolist()


def test_what_is_gathered_is_in_double_precision() -> None:
    """Sums over long responses are made of it."""
    (batch,) = cut([sequence([1], [2])])

    gathered = batch.gather(torch.tensor([[0.5]]))

    assert gathered[0].dtype == np.float64
    assert gathered[0] == pytest.approx([0.5])

"""Mini-batches: what each optimizer step of each rank trains on."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from tests.executors.local_training import CPU, PAD, batch, sequence

from swingshift.executors.local.mini_batches import BatchCutter, trained_tokens
from swingshift.executors.rl.batches import TrainingSequence

SEQUENCES = st.lists(
    st.builds(
        sequence,
        st.just([1]),
        st.lists(st.integers(1, 9), max_size=6),
        group=st.integers(0, 5),
    ),
    min_size=1,
    max_size=16,
)


def cut(
    sequences: list[TrainingSequence], *, steps: int = 1, rank: int = 0, world: int = 1
) -> list[tuple[int, set[int]]]:
    """Return for each mini-batch its tokens, and which sequences are this rank's."""
    cutter = BatchCutter(
        steps=steps, max_tokens=16, pad_token_id=PAD, device=CPU, rank=rank, world=world
    )
    return [
        (mini_batch.tokens, {index for part in mini_batch.share for index in part.indices})
        for mini_batch in cutter.cut(sequences)
    ]


def test_a_batch_is_cut_between_groups() -> None:
    """By hand: groups 0 and 1 have 4 and 5 tokens that are trained on, group 4 has 6."""
    assert cut(batch(), steps=2) == [(9, {0, 1, 2, 3}), (6, {4, 5})]
    assert cut(batch()) == [(15, set(range(6)))]


def test_there_are_no_more_mini_batches_than_groups() -> None:
    """A step on nothing is no step."""
    assert len(cut(batch(), steps=8)) == 3


def test_ranks_take_turns_by_length() -> None:
    """By hand: lengths 5, 3, 6, 3, 8, 10; all ranks divide by the tokens of all."""
    assert cut(batch(), rank=0, world=2) == [(15, {1, 0, 4})]
    assert cut(batch(), rank=1, world=2) == [(15, {3, 2, 5})]


def test_a_rank_may_have_nothing_to_do() -> None:
    """It takes part in the step all the same."""
    assert cut([sequence([1], [2, 3])], rank=1, world=2) == [(2, set())]


def test_a_mini_batch_without_a_drawn_token_can_be_divided_by() -> None:
    """Its tokens count as 1."""
    assert cut([sequence([1], [2], observed=(0,))]) == [(1, {0})]
    assert trained_tokens(batch()) == 15


@given(SEQUENCES, st.integers(1, 4), st.integers(1, 4))
def test_ranks_share_each_mini_batch_without_overlap(
    sequences: list[TrainingSequence], steps: int, world: int
) -> None:
    """For any lengths and groups; each sequence is in one mini-batch, with all of its group."""
    by_rank = [cut(sequences, steps=steps, rank=rank, world=world) for rank in range(world)]
    seen: list[int] = []
    for shares in zip(*by_rank, strict=True):
        assert len({tokens for tokens, _ in shares}) == 1
        members = [index for _, share in shares for index in share]
        groups = {sequences[index].group for index in members}
        assert {index for index, it in enumerate(sequences) if it.group in groups} == set(members)
        seen += members

    assert sorted(seen) == list(range(len(sequences)))

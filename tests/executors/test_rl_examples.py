"""The packaged examples: their questions, their answers, and what an answer is worth."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swingshift.executors.rl.examples import example_alphabet, example_rows, position_reward
from swingshift.executors.rl.options import EXAMPLES, TaskOptions
from swingshift.executors.rl.prompts import PromptRow
from swingshift.sdk.validators import InvalidValueError

TASKS = st.builds(
    TaskOptions,
    example=st.sampled_from(EXAMPLES),
    digits=st.integers(2, 32),
    base=st.integers(2, 36),
    validation_prompts=st.integers(0, 2),
)


def worth(solution: str, truth: str) -> float:
    """Score an answer."""
    return position_reward(
        data_source="copy", solution_str=solution, ground_truth=truth, extra_info={}
    )


def answered(row: PromptRow) -> tuple[str, str]:
    """Return a prompt and its answer, both text."""
    assert isinstance(row.prompt, str)
    assert isinstance(row.ground_truth, str)
    return row.prompt, row.ground_truth


def test_copying_asks_for_the_same_digits() -> None:
    """As many as the options say, leading zeros included."""
    rows, _ = example_rows(TaskOptions(example="copy", digits=2, base=3), prompts=200, seed=0)

    assert {answered(row) for row in rows} == {
        (f"{a}{b}=", f"{a}{b}") for a in "012" for b in "012"
    }


def test_addition_is_right_in_its_base() -> None:
    """Answers have one digit more than the numbers, always."""
    task = TaskOptions(example="addition", digits=2, base=7)
    rows, _ = example_rows(task, prompts=200, seed=0)

    for prompt, answer in map(answered, rows):
        first, second = prompt.removesuffix("=").split("+")
        assert len(first) == len(second) == 2
        assert len(answer) == 3
        assert int(first, 7) + int(second, 7) == int(answer, 7)


@given(TASKS, st.integers(0, 3))
def test_validation_is_never_trained_on(task: TaskOptions, seed: int) -> None:
    """Its questions are different from one another and from all others, at any size."""
    rows, validation = example_rows(task, prompts=30, seed=seed)
    asked = {row.prompt for row in validation}

    assert len(rows) == 30
    assert len(asked) == len(validation) == task.validation_prompts
    assert not asked & {row.prompt for row in rows}
    assert {*"".join("".join(answered(row)) for row in rows)} <= {*example_alphabet(task)}


@given(TASKS, st.integers(0, 3))
def test_one_seed_gives_the_same_questions(task: TaskOptions, seed: int) -> None:
    """And a longer run begins like a shorter one."""
    short, validation = example_rows(task, prompts=5, seed=seed)
    long, same = example_rows(task, prompts=9, seed=seed)

    assert long[:5] == short
    assert same == validation


def test_another_seed_gives_other_questions() -> None:
    """Seeds of a comparison are different runs."""
    task = TaskOptions(example="copy")

    assert example_rows(task, prompts=9, seed=0) != example_rows(task, prompts=9, seed=1)


def test_validation_leaves_something_to_train_on() -> None:
    """Half of all questions at most."""
    task = TaskOptions(example="copy", digits=1, base=4, validation_prompts=3)

    with pytest.raises(InvalidValueError, match="at most half of the 4 different questions"):
        example_rows(task, prompts=1, seed=0)


@pytest.mark.parametrize(
    ("solution", "expected"),
    [
        ("472", 1.0),
        ("4721", 0.75),
        ("47", 0.5),
        ("372", 0.75),
        ("999", 0.25),
        ("9999", 0.0),
        ("", 0.0),
        ("72", 0.0),
    ],
)
def test_every_position_counts_and_so_does_the_end(solution: str, expected: float) -> None:
    """By hand, for the answer 472: three digits and the end, a quarter each."""
    assert worth(solution, "472") == expected


@given(st.text("01", max_size=5), st.text("01", min_size=1, max_size=4))
def test_only_the_right_answer_is_worth_everything(solution: str, truth: str) -> None:
    """And no answer is worth more, or less than nothing."""
    reward = worth(solution, truth)

    assert 0.0 <= reward <= 1.0
    assert (reward == 1.0) is (solution == truth)

"""Packaged examples: small questions about digits, with rewards that can be verified.

They need no download, and a tiny model with random weights learns them within minutes.
"""

from __future__ import annotations

import random
import string

from swingshift.executors.rl.options import TaskOptions
from swingshift.executors.rl.prompts import PromptRow
from swingshift.sdk.validators import InvalidValueError

_DIGITS = string.digits + string.ascii_lowercase


def example_alphabet(task: TaskOptions) -> str:
    """Return every character that occurs in an example, once."""
    return _DIGITS[: task.base] + ("+=" if task.example == "addition" else "=")


def example_rows(
    task: TaskOptions, *, prompts: int, seed: int
) -> tuple[tuple[PromptRow, ...], tuple[PromptRow, ...]]:
    """Draw the prompts of an example.

    Args:
        task: Names the example and its size.
        prompts: How many to train on; where there are fewer questions, some come again.
        seed: The same one gives the same prompts.

    Returns:
        The prompts to train on, and those of the validation set, none of which is among the others.

    Raises:
        InvalidValueError: The validation set would be more than half of all questions.
    """
    operands = 2 if task.example == "addition" else 1
    questions: int = task.base ** (operands * task.digits)
    if task.validation_prompts > questions // 2:
        raise InvalidValueError(
            "validation_prompts",
            task.validation_prompts,
            f"at most half of the {questions} different questions; more digits make more",
        )
    generator = random.Random(seed)
    # By rejection, because there can be more questions than a sample is drawn from at once; a
    # dictionary keeps their order.
    validation: dict[int, None] = {}
    while len(validation) < task.validation_prompts:
        validation[generator.randrange(questions)] = None
    training: list[int] = []
    while len(training) < prompts:
        question = generator.randrange(questions)
        if question not in validation:
            training.append(question)
    return _rows(task, training, "prompt"), _rows(task, list(validation), "validation prompt")


def position_reward(
    *, data_source: str, solution_str: str, ground_truth: object, extra_info: dict[str, object]
) -> float:
    """Return the share of positions that are right, the end of the answer counted as one.

    Each position counts by itself, so that a model whose answers are mere chance already sees
    which of them are better. The end is right when the answer is as long as it should be: text that
    follows a right answer costs that position alone.

    Args:
        data_source: Not looked at.
        solution_str: The answer.
        ground_truth: The right answer.
        extra_info: Not looked at.
    """
    truth = str(ground_truth)
    right = sum(given == wanted for given, wanted in zip(solution_str, truth, strict=False))
    return (right + (len(solution_str) == len(truth))) / (len(truth) + 1)


def _rows(task: TaskOptions, questions: list[int], what: str) -> tuple[PromptRow, ...]:
    return tuple(_row(task, question, f"{what} {i}") for i, question in enumerate(questions))


def _row(task: TaskOptions, question: int, name: str) -> PromptRow:
    if task.example == "addition":
        first, second = divmod(question, task.base**task.digits)
        prompt = f"{_written(task, first)}+{_written(task, second)}="
        answer = _written(task, first + second, task.digits + 1)
    else:
        answer = _written(task, question)
        prompt = f"{answer}="
    place = f"{name} of the example {task.example}, {prompt!r}"
    return PromptRow(prompt=prompt, ground_truth=answer, data_source=str(task.example), place=place)


def _written(task: TaskOptions, number: int, width: int | None = None) -> str:
    """Return a number in the example's base, with leading zeros."""
    digits = []
    for _ in range(width or task.digits):
        number, digit = divmod(number, task.base)
        digits.append(_DIGITS[digit])
    return "".join(reversed(digits))

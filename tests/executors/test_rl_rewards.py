"""Reward functions: how they are found, called, and told apart from their faults."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest

from swingshift.executors.rl.examples import position_reward
from swingshift.executors.rl.prompts import PromptRow
from swingshift.executors.rl.rewards import (
    Reward,
    RewardError,
    RewardFunction,
    load_reward,
    score_response,
)
from swingshift.sdk.errors import UserError

ROW = PromptRow(
    prompt="2+2=", ground_truth="4", data_source="sums", extra_info={"index": 7}, place="sums 7"
)
CODE = """
from dataclasses import dataclass
from a_file_beside import VALUE

@dataclass
class Score:
    value: float

def score(*, data_source, solution_str, ground_truth, extra_info):
    return Score(VALUE).value

def positional(solution, truth):
    return 0.0
"""


@pytest.fixture
def code_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Write a file with reward functions, and one beside it; leave the interpreter as it was."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "a_file_beside.py").write_text("VALUE = 0.5", encoding="utf-8")
    file = tmp_path / "rewards.py"
    file.write_text(CODE, encoding="utf-8")
    with patch.dict(sys.modules):
        yield file


def returning(value: object) -> RewardFunction:
    """Return a reward function with one answer."""

    def function(**_: object) -> Reward:
        return value  # type: ignore[return-value]  # whatever a user's function may return

    return function


def score(function: RewardFunction) -> float:
    """Score one response to the row."""
    return asyncio.run(score_response(function, ROW, "4"))


def refusal(reference: str) -> str:
    """Return what the user is told."""
    with pytest.raises(UserError) as caught:
        load_reward(reference)
    return str(caught.value)


def test_a_function_gets_what_verl_gives() -> None:
    """By name; the extra information is a copy of its own."""
    seen: dict[str, object] = {}

    def function(*, extra_info: dict[str, object], **others: object) -> float:
        seen.update(others, extra_info=dict(extra_info))
        extra_info.clear()
        return 1.0

    assert score(function) == 1.0
    assert seen == {
        "data_source": "sums",
        "solution_str": "4",
        "ground_truth": "4",
        "extra_info": {"index": 7},
    }
    assert ROW.extra_info == {"index": 7}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0.25, 0.25),
        (1, 1.0),
        (True, 1.0),
        (np.float32(0.5), 0.5),
        ({"score": -1.0, "acc": False}, -1.0),
    ],
)
def test_a_number_or_a_mapping_with_a_score_is_a_reward(value: object, expected: float) -> None:
    """Always a plain float in the end."""
    result = score(returning(value))

    assert type(result) is float
    assert result == expected


def test_a_function_may_wait() -> None:
    """As for a service; the run goes on meanwhile."""

    async def function(**_: object) -> float:
        await asyncio.sleep(0)
        return 0.75

    assert score(function) == 0.75


@pytest.mark.parametrize(
    "value",
    [None, "1.0", float("nan"), float("inf"), 10**400, {"acc": 1.0}, {"score": None}, [1.0]],
)
def test_what_is_no_reward_is_refused_with_its_prompt(value: object) -> None:
    """The function, the response, the prompt and what came are named."""
    with pytest.raises(RewardError) as caught:
        score(returning(value))

    assert "test_rl_rewards:returning.<locals>.function" in str(caught.value)
    assert "for the response '4' to sums 7, returned" in str(caught.value)


def test_a_function_that_raises_is_named_with_its_prompt() -> None:
    """The cause is kept."""

    def function(**_: object) -> float:
        raise ZeroDivisionError("no digits")

    with pytest.raises(
        RewardError, match="to sums 7, raised ZeroDivisionError: no digits"
    ) as error:
        score(function)
    assert isinstance(error.value.__cause__, ZeroDivisionError)


def test_functions_are_found_in_modules_and_files(code_file: Path) -> None:
    """A file may define classes that look their module up, and import what lies beside it."""
    assert load_reward("swingshift.executors.rl.examples:position_reward") is position_reward
    assert score(load_reward(f"{code_file}:score")) == 0.5


@pytest.mark.parametrize(
    ("reference", "told"),
    [
        ("math_rewards", "'math_rewards' names no reward function; expected module:function"),
        (":score", "names no reward function"),
        ("no_such_module:score", "no module 'no_such_module' to import"),
        ("nowhere.py:score", "no file 'nowhere.py'"),
        (
            "swingshift.executors.rl.examples:position_rewards",
            "no function 'position_rewards'; did you mean 'position_reward'?",
        ),
    ],
)
def test_a_function_that_is_not_there_is_told(reference: str, told: str) -> None:
    """With what to write instead."""
    assert told in refusal(reference)


@pytest.mark.parametrize("name", ["{}:positional", "builtins:max"])
def test_a_function_that_takes_other_arguments_is_refused_before_the_run(
    code_file: Path, name: str
) -> None:
    """Not after the first response."""
    told = refusal(name.format(code_file))

    assert "it is given data_source, solution_str, ground_truth, extra_info by name" in told


@pytest.mark.parametrize("code", ["1 / 0", "raise SystemExit(3)", "def broken(:"])
def test_a_file_that_does_not_import_is_told(tmp_path: Path, code: str) -> None:
    """With the error that it raised."""
    file = tmp_path / "rewards.py"
    file.write_text(code, encoding="utf-8")

    assert f"{file} does not import: " in refusal(f"{file}:score")

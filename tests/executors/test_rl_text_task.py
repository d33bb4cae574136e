"""The task of a real run: order of the prompts, their tokens, scores, and faults of its data."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import attrs
import pytest
from tests.executors.tokenizer_files import write_tokenizer

from swingshift.executors.rl.examples import position_reward
from swingshift.executors.rl.options import ModelOptions, TaskOptions
from swingshift.executors.rl.prompts import PromptRow
from swingshift.executors.rl.rewards import RewardError
from swingshift.executors.rl.text_task import TextTask, build_text_task
from swingshift.executors.rl.tokenizers import Tokenizer, character_tokenizer, load_tokenizer
from swingshift.sdk.config import DataConfig, RunConfig, StandaloneConfig
from swingshift.sdk.errors import ConfigError
from swingshift.sdk.executor import Episode, VersionSpan

COPY = TaskOptions(example="copy", validation_prompts=3)
NEW_MODEL = ModelOptions()


@attrs.frozen
class Responses:
    """What an adapter holds: tokens by handle."""

    tokens: Mapping[str, Sequence[int]] = attrs.field(factory=dict)

    def response_tokens(self, handle: str) -> Sequence[int]:
        """Return the tokens of a response."""
        return self.tokens[handle]


def config(prompts: int = 10, seed: int = 0, longest: int = 8) -> RunConfig:
    """Return the configuration of a run."""
    return RunConfig(
        data=DataConfig(max_prompt_length=longest),
        rollout=StandaloneConfig(total_rollout_steps=prompts),
        seed=seed,
    )


def letters(count: int, *, prompts: int, seed: int = 0) -> TextTask:
    """Return a task with one row per letter."""
    alphabet = "abcdefghij"[:count]
    rows = [PromptRow(prompt=letter, ground_truth="", place=letter) for letter in alphabet]
    return TextTask(
        rows,
        character_tokenizer(alphabet),
        position_reward,
        Responses(),
        prompts=prompts,
        max_prompt_tokens=1,
        seed=seed,
    )


def asked(task: TextTask) -> str:
    """Return every prompt of a task, decoded, in order."""
    handles = [task.prompt(index).handle for index in range(len(task))]
    return "".join(task.tokenizer.decode(task.prompt_tokens(handle)) for handle in handles)


def write_rows(path: Path, *prompts: str) -> str:
    """Write prompts to a JSON lines file and return its path."""
    rows = [{"prompt": prompt, "reward_model": {"ground_truth": "x"}} for prompt in prompts]
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return str(path)


def refusal(task: TaskOptions, run: RunConfig | None = None) -> str:
    """Return what the user is told."""
    with pytest.raises(ConfigError) as caught:
        build_text_task(run or config(), task, NEW_MODEL, Responses())
    return str(caught.value)


def test_a_prompt_has_its_position_length_and_handle() -> None:
    """The adapter finds the tokens by the handle; validation comes after the others."""
    task = build_text_task(config(prompts=10), COPY, NEW_MODEL, Responses())
    prompts = (*map(task.prompt, range(10)), *task.validation_prompts())

    assert [prompt.position for prompt in prompts] == list(range(13))
    assert len({prompt.handle for prompt in prompts}) == 13
    for prompt in prompts:
        text = task.tokenizer.decode(task.prompt_tokens(prompt.handle))
        assert prompt.tokens == len(text) == 4
        assert text.endswith("=")


def test_every_pass_over_the_rows_has_an_order_of_its_own() -> None:
    """Each row once per pass, whatever was asked for before."""
    order = asked(letters(10, prompts=25))

    assert set(Counter(order[:10]).values()) == set(Counter(order[10:20]).values()) == {1}
    assert order[:10] != order[10:20]
    assert order[20:] in asked(letters(10, prompts=30))


def test_the_order_is_the_seeds() -> None:
    """One seed, one order; another seed, another."""
    assert asked(letters(10, prompts=20, seed=3)) == asked(letters(10, prompts=20, seed=3))
    assert asked(letters(10, prompts=20, seed=3)) != asked(letters(10, prompts=20, seed=4))


def test_prompts_of_passes_long_gone_are_still_found() -> None:
    """A resumed run may ask in any order."""
    task = letters(10, prompts=100)
    order = asked(task)

    again = [task.prompt_tokens(f"prompt/{index}") for index in (0, 99, 45, 7)]

    assert "".join(map(task.tokenizer.decode, again)) == "".join(order[i] for i in (0, 99, 45, 7))


def test_responses_are_decoded_and_scored_in_order() -> None:
    """The end-of-text token is no part of the answer."""
    held: dict[str, Sequence[int]] = {}
    task = build_text_task(config(), COPY, NEW_MODEL, Responses(held))
    prompt = task.validation_prompts()[1]
    answer = list(task.prompt_tokens(prompt.handle))[:-1]
    eos = task.tokenizer.eos_token_id
    held.update(right=[*answer, eos], longer=[*answer, *answer], nothing=[eos])
    episodes = [
        Episode(handle=name, tokens=1, spans=(VersionSpan(0, 1),), attempts=1) for name in held
    ]

    assert asyncio.run(task.score(prompt, episodes)) == (1.0, 0.75, 0.0)


def test_a_reward_function_that_fails_names_the_prompt(tmp_path: Path) -> None:
    """The run ends with a reason, not with a fault of ours."""
    (tmp_path / "rewards.py").write_text("def bad(**_): return None", encoding="utf-8")
    options = attrs.evolve(COPY, reward=f"{tmp_path / 'rewards.py'}:bad")
    task = build_text_task(config(), options, NEW_MODEL, Responses({"r": [1]}))
    episode = Episode(handle="r", tokens=1, spans=(VersionSpan(0, 1),), attempts=1)

    with pytest.raises(RewardError, match=r"to validation prompt 0 of the example copy, '\d{3}=',"):
        asyncio.run(task.score(task.validation_prompts()[0], [episode]))


def test_rows_of_all_files_are_read(tmp_path: Path) -> None:
    """With the tokenizer of the model's directory where the task names none."""
    options = TaskOptions(
        train_files=(
            write_rows(tmp_path / "a.jsonl", "one", "two"),
            write_rows(tmp_path / "b.jsonl", "one two"),
        ),
        val_files=(write_rows(tmp_path / "v.jsonl", "two two"),),
        reward="swingshift.executors.rl.examples:position_reward",
    )
    model = ModelOptions(path=write_tokenizer(tmp_path / "model"))

    task = build_text_task(config(prompts=3), options, model, Responses())

    tokens = [list(task.prompt_tokens(task.prompt(i).handle)) for i in range(3)]
    assert sorted(tokens) == [[4], [4, 5], [5]]
    assert [prompt.tokens for prompt in task.validation_prompts()] == [2]


def test_messages_go_through_the_chat_template(tmp_path: Path) -> None:
    """And are refused by their place where there is none."""
    rows = [PromptRow(prompt=({"role": "user", "content": "one"},), ground_truth="", place="row 0")]
    template = "{{ messages[0]['role'] + ' ' + messages[0]['content'] }}"

    def build(tokenizer: Tokenizer) -> TextTask:
        return TextTask(
            rows, tokenizer, position_reward, Responses(), prompts=1, max_prompt_tokens=4, seed=0
        )

    task = build(load_tokenizer(write_tokenizer(tmp_path, template)))

    assert list(task.prompt_tokens("prompt/0")) == [1, 4]
    with pytest.raises(ConfigError, match=r"^row 0: .* has no chat template"):
        build(character_tokenizer("ab"))


def test_a_prompt_that_is_too_long_is_named() -> None:
    """Before the run, with the key that allows more."""
    assert refusal(COPY, config(longest=3)).startswith("prompt 0 of the example copy, ")
    assert "has 4 tokens; data.max_prompt_length allows 3" in refusal(COPY, config(longest=3))


def test_a_prompt_that_the_tokenizer_refuses_is_named() -> None:
    """By its place in the file."""
    rows = [
        PromptRow(prompt=prompt, ground_truth="x", place="rows, line 3") for prompt in ("", "z")
    ]
    for row, told in zip(rows, ("has no tokens", "without a token: 'z'"), strict=True):
        with pytest.raises(ConfigError, match=f"^rows, line 3: .*{told}"):
            TextTask(
                [row],
                character_tokenizer("ab"),
                position_reward,
                Responses(),
                prompts=1,
                max_prompt_tokens=4,
                seed=0,
            )


def test_what_a_configuration_names_wrongly_is_told_with_its_key(tmp_path: Path) -> None:
    """Files, reward, tokenizer and the size of the validation set."""
    files = TaskOptions(
        train_files=("nowhere.jsonl",),
        reward="swingshift.executors.rl.examples:position_reward",
        tokenizer=str(tmp_path / "none"),
    )
    prefix = "executor.task"

    assert refusal(files).startswith(f"{prefix}.tokenizer: no directory")
    assert refusal(attrs.evolve(files, tokenizer=None)).startswith(f"{prefix}.tokenizer: null is")
    assert refusal(attrs.evolve(COPY, reward="x")).startswith(f"{prefix}.reward: 'x' names no")
    assert refusal(attrs.evolve(COPY, digits=1, validation_prompts=6)).startswith(
        f"{prefix}.validation_prompts: 6 is not allowed; expected at most half of the 10"
    )


def test_a_file_that_cannot_be_read_is_told_with_its_key(tmp_path: Path) -> None:
    """With its place in the list."""
    options = TaskOptions(
        train_files=(write_rows(tmp_path / "a.jsonl", "one"), "nowhere.jsonl"),
        reward="swingshift.executors.rl.examples:position_reward",
        tokenizer=write_tokenizer(tmp_path / "tokenizer"),
    )

    assert refusal(options).startswith("executor.task.train_files[1]: no file nowhere.jsonl")

"""The task of a run that really trains: prompts as text, responses decoded and scored."""

from __future__ import annotations

import functools
import random
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from swingshift.executors.rl.examples import example_alphabet, example_rows, position_reward
from swingshift.executors.rl.options import ModelOptions, TaskOptions
from swingshift.executors.rl.payloads import PayloadReader
from swingshift.executors.rl.prompts import PromptRow, read_prompts
from swingshift.executors.rl.rewards import RewardFunction, load_reward, score_response
from swingshift.executors.rl.task import SingleTurn
from swingshift.executors.rl.tokenizers import Tokenizer, character_tokenizer, load_tokenizer
from swingshift.sdk.config import RunConfig
from swingshift.sdk.errors import ConfigError, UserError
from swingshift.sdk.executor import Episode, Prompt
from swingshift.sdk.validators import InvalidValueError

_SECTION = "executor.task"
_VALIDATION = "validation"
# Prompts of the epoch before are still in flight when the next one has begun.
_KEPT_ORDERS = 2


class _Entry(NamedTuple):
    """A row with its tokens; an array holds them in a fraction of a list's memory."""

    row: PromptRow
    tokens: array[int]


class TextTask(SingleTurn):
    """Prompts in a shuffled order, new in every pass over the rows; one turn; a reward function."""

    def __init__(
        self,
        rows: Sequence[PromptRow],
        tokenizer: Tokenizer,
        reward: RewardFunction,
        payloads: PayloadReader,
        *,
        prompts: int,
        max_prompt_tokens: int,
        seed: int,
        validation_rows: Sequence[PromptRow] = (),
    ) -> None:
        """Turn all prompts into tokens, so that one that does not fit is found before the run.

        Args:
            rows: What to train on, at least one; they come again when ``prompts`` is more.
            tokenizer: That of the model.
            reward: Scores responses.
            payloads: Gives their tokens.
            prompts: Prompts of the whole run.
            max_prompt_tokens: Longest prompt.
            seed: Of the order.
            validation_rows: The validation set.

        Raises:
            ConfigError: A prompt is empty or too long; it is named.
        """
        self.tokenizer = tokenizer
        self._reward = reward
        self._payloads = payloads
        self._prompts = prompts
        self._rows = _encode(rows, tokenizer, max_prompt_tokens)
        self._validation_rows = _encode(validation_rows, tokenizer, max_prompt_tokens)
        order = functools.partial(_shuffled, len(rows), seed)
        self._order = functools.lru_cache(_KEPT_ORDERS)(order)

    def __len__(self) -> int:
        """Return the number of prompts."""
        return self._prompts

    def prompt(self, index: int) -> Prompt:
        """Return a prompt; its handle is ``prompt/INDEX``."""
        handle = f"prompt/{index}"
        return Prompt(index, len(self._entry(handle).tokens), handle)

    def validation_prompts(self) -> Sequence[Prompt]:
        """Return the prompts of the validation set; their positions follow after the others."""
        return tuple(
            Prompt(self._prompts + i, len(entry.tokens), f"{_VALIDATION}/{i}")
            for i, entry in enumerate(self._validation_rows)
        )

    def prompt_tokens(self, handle: str) -> Sequence[int]:
        """Return the tokens of a prompt.

        Called by the adapter when it generates from the prompt, and when it trains on it.

        Args:
            handle: Of a prompt that this task gave.
        """
        return self._entry(handle).tokens

    async def score(self, prompt: Prompt, episodes: Sequence[Episode]) -> tuple[float, ...]:
        """Decode each response and ask the reward function.

        Raises:
            RewardError: It raised, or returned no finite number.
        """
        row = self._entry(prompt.handle).row
        rewards = []
        for episode in episodes:
            solution = self.tokenizer.decode(self._payloads.response_tokens(episode.handle))
            rewards.append(await score_response(self._reward, row, solution))
        return tuple(rewards)

    def _entry(self, handle: str) -> _Entry:
        kind, _, number = handle.partition("/")
        if kind == _VALIDATION:
            return self._validation_rows[int(number)]
        epoch, place = divmod(int(number), len(self._rows))
        return self._rows[self._order(epoch)[place]]


def build_text_task(
    config: RunConfig, task: TaskOptions, model: ModelOptions, payloads: PayloadReader
) -> TextTask:
    """Return the task that a configuration describes.

    Called once, when an adapter builds its executor.

    Args:
        config: Gives the number of prompts, their longest length and the seed.
        task: The section ``executor.task``.
        model: The section ``executor.model``; its directory is where a tokenizer is looked for.
        payloads: Gives the tokens of responses.

    Raises:
        ConfigError: A file, the tokenizer or the reward function cannot be used, or a prompt does
            not fit; the key is named.
    """
    tokenizer = _tokenizer(task, model)
    prompts = config.rollout.total_rollout_steps
    reward: RewardFunction = position_reward
    if task.reward is not None:
        with _naming("reward"):
            reward = load_reward(task.reward)
    if task.example is None:
        rows, validation_rows = _read(task, "train_files"), _read(task, "val_files")
    else:
        with _naming("validation_prompts"):
            rows, validation_rows = example_rows(task, prompts=prompts, seed=config.seed)
    return TextTask(
        rows,
        tokenizer,
        reward,
        payloads,
        prompts=prompts,
        max_prompt_tokens=config.data.max_prompt_length,
        seed=config.seed,
        validation_rows=validation_rows,
    )


def _tokenizer(task: TaskOptions, model: ModelOptions) -> Tokenizer:
    # an example's own also for a model from a directory: it learned the example with it
    own = None if task.example is None else character_tokenizer(example_alphabet(task))
    directory = task.tokenizer or (model.path if own is None else None)
    if directory is not None:
        with _naming("tokenizer"):
            return load_tokenizer(directory)
    if own is not None:
        return own
    raise ConfigError(
        f"{_SECTION}.tokenizer: null is not allowed with train_files and a new model; expected a "
        "directory with a tokenizer, or executor.model.path to take the model's"
    )


def _read(task: TaskOptions, key: str) -> tuple[PromptRow, ...]:
    rows: list[PromptRow] = []
    files: tuple[str, ...] = getattr(task, key)
    for index, path in enumerate(files):
        with _naming(f"{key}[{index}]"):
            rows += read_prompts(path, task.prompt_key)
    return tuple(rows)


@contextmanager
def _naming(key: str) -> Iterator[None]:
    """Put the key of the configuration before the error of what it names."""
    try:
        yield
    except UserError as error:
        raise ConfigError(f"{_SECTION}.{key}: {error}") from error
    except InvalidValueError as error:
        refused = f"{error.given!r} is not allowed; expected {error.allowed}"
        raise ConfigError(f"{_SECTION}.{key}: {refused}") from error


def _encode(rows: Sequence[PromptRow], tokenizer: Tokenizer, max_tokens: int) -> tuple[_Entry, ...]:
    return tuple(_Entry(row, _tokens(row, tokenizer, max_tokens)) for row in rows)


def _tokens(row: PromptRow, tokenizer: Tokenizer, max_tokens: int) -> array[int]:
    prompt = row.prompt
    try:
        if isinstance(prompt, str):
            ids = tokenizer.encode(prompt)
        else:
            ids = tokenizer.encode_messages(prompt)
    except UserError as error:
        raise ConfigError(f"{row.place}: {error}") from error
    if not ids:
        raise ConfigError(f"{row.place}: the prompt has no tokens; expected at least one")
    if len(ids) > max_tokens:
        raise ConfigError(
            f"{row.place}: the prompt has {len(ids)} tokens; data.max_prompt_length allows "
            f"{max_tokens}; raise it, or leave the prompt out"
        )
    return array("i", ids)


def _shuffled(rows: int, seed: int, epoch: int) -> array[int]:
    order = array("q", range(rows))
    # A string, because neighbouring seeds and epochs must not give the same order.
    random.Random(f"{seed}/{epoch}").shuffle(order)
    return order

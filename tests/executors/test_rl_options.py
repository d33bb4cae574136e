"""Options of learning: what a configuration may say, and what it is told when it may not."""

from __future__ import annotations

from collections.abc import Mapping

import attrs
import pytest

from swingshift.executors.app.structuring import dump_section, structure_section
from swingshift.executors.rl.options import (
    EXAMPLES,
    LearningOptions,
    ModelOptions,
    TaskOptions,
)
from swingshift.sdk.errors import ConfigError

COPY = {"example": "copy"}
FILES = {"train_files": ["train.parquet"], "reward": "math_rewards:score"}


@attrs.frozen(kw_only=True)
class Options:
    """An adapter's options with all three sections."""

    task: TaskOptions
    model: ModelOptions = attrs.field(factory=ModelOptions)
    learning: LearningOptions = attrs.field(factory=LearningOptions)


def read(**sections: Mapping[str, object]) -> Options:
    """Return the options of a configuration that has these sections below ``executor:``."""
    return structure_section(Options, {"task": COPY, **sections}, "executor")


def refusal(**sections: Mapping[str, object]) -> str:
    """Return what the user is told."""
    with pytest.raises(ConfigError) as caught:
        read(**sections)
    return str(caught.value)


def test_sections_are_read_with_their_nested_values() -> None:
    """Lists become tuples, whole numbers floats, and the model's configuration stays as it is."""
    options = read(
        task={**FILES, "val_files": ["val.jsonl"], "prompt_key": "question"},
        model={"type": "llama", "config": {"hidden_size": 64, "rope": {"theta": 1e4}}},
        learning={"learning_rate": 1, "critic": True},
    )

    assert options.task.train_files == ("train.parquet",)
    assert options.task.val_files == ("val.jsonl",)
    assert options.model.config == {"hidden_size": 64, "rope": {"theta": 1e4}}
    assert isinstance(options.learning.learning_rate, float)
    assert options.learning.critic


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_needs_its_name_alone(name: str) -> None:
    """Everything else has a default."""
    options = read(task={"example": name})

    assert options == Options(task=TaskOptions(example=name))


@pytest.mark.parametrize("task", [COPY, FILES])
def test_options_come_back_from_their_dump(task: Mapping[str, object]) -> None:
    """What a run writes down of its configuration gives the same run again."""
    options = read(task=task, model={"config": {"num_hidden_layers": 2}})

    assert structure_section(Options, dump_section(options), "executor") == options


def test_the_configuration_of_a_model_is_a_copy() -> None:
    """Nobody changes it under a run."""
    config: dict[str, object] = {"hidden_size": 64}
    options = ModelOptions(config=config)
    config["hidden_size"] = 1

    assert options.config == {"hidden_size": 64}


@pytest.mark.parametrize(
    ("task", "told"),
    [
        ({}, "executor.task.example: null is not allowed; expected one of copy, addition, or null"),
        ({"example": "sorting"}, "executor.task.example: 'sorting' is not allowed"),
        ({"example": "copy", "digits": 0}, "executor.task.digits: 0 is not allowed"),
        ({"example": "copy", "digits": True}, "executor.task.digits: true is not allowed"),
        ({"example": "copy", "base": 37}, "executor.task.base: 37 is not allowed"),
        (
            {**FILES, "train_files": ["a.parquet", 3]},
            "executor.task.train_files[1]: 3 is not allowed; expected a string",
        ),
        ({**FILES, "train_files": "a.parquet"}, "executor.task.train_files: 'a.parquet' is not"),
        ({**FILES, "example": "copy"}, "executor.task.train_files: ['train.parquet'] is not"),
        (
            {"example": "copy", "val_files": ["v.jsonl"]},
            "executor.task.val_files: ['v.jsonl'] is not allowed; expected no files beside",
        ),
        ({"train_files": ["a.jsonl"]}, "executor.task.reward: null is not allowed"),
        ({**FILES, "validation_prompts": 8}, "executor.task.validation_prompts: 8 is not allowed"),
        ({**FILES, "prompt_keys": "q"}, "executor.task.prompt_keys: unknown key"),
    ],
)
def test_a_task_that_cannot_be_is_told_with_its_key(task: Mapping[str, object], told: str) -> None:
    """The full key, what was given, and what would do."""
    assert told in refusal(task=task)


@pytest.mark.parametrize(
    ("model", "told"),
    [
        (
            {"path": "models/small", "config": {"hidden_size": 64}},
            "executor.model.config: {'hidden_size': 64} is not allowed; expected an empty section",
        ),
        ({"config": [1]}, "executor.model.config: [1] is not allowed; expected a section of keys"),
        ({"type": ""}, "executor.model.type: '' is not allowed"),
    ],
)
def test_a_model_that_cannot_be_is_told_with_its_key(
    model: Mapping[str, object], told: str
) -> None:
    """The full key, what was given, and what would do."""
    assert told in refusal(model=model)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("learning_rate", 0.0),
        ("weight_decay", -0.1),
        ("beta2", 1.0),
        ("max_grad_norm", float("inf")),
        ("clip_low", 1.5),
        ("clip_high", -0.1),
        ("temperature", 0.0),
        ("kl_coefficient", float("nan")),
        ("gamma", 1.1),
        ("gae_lambda", -0.1),
        ("epochs", 0),
        ("micro_batch_tokens", 0),
        ("critic", 1),
        ("old_log_prob", 0),
        ("normalize_by_std", "yes"),
    ],
)
def test_arithmetic_outside_its_limits_is_told_with_its_key(key: str, value: object) -> None:
    """Nothing is coerced and nothing impossible gets to the trainer."""
    assert refusal(learning={key: value}).startswith(f"executor.learning.{key}: ")

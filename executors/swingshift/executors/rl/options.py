"""What a configuration says about learning: the model, the data, the arithmetic.

Shared by the adapters that really train; each puts these sections below ``executor:``.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping

import attrs

from swingshift.sdk.validators import (
    InvalidValueError,
    Validator,
    boolean,
    finite,
    integer,
    optional,
    text,
    to_float,
    to_tuple,
    tuple_of,
)

EXAMPLES = ("copy", "addition")
"""Names of the packaged examples."""

_EXAMPLE: Validator[str] = Validator(
    f"one of {', '.join(EXAMPLES)}", lambda value: isinstance(value, str) and value in EXAMPLES
)
_CONFIG: Validator[Mapping[str, object]] = Validator(
    "a section of keys", lambda value: isinstance(value, Mapping)
)
_POSITIVE = finite(gt=0.0)
_NOT_NEGATIVE = finite(ge=0.0)
_SHARE = finite(ge=0.0, le=1.0)
_DECAY = finite(ge=0.0, le=0.999999)


def _own_config(value: Mapping[str, object]) -> Mapping[str, object]:
    return copy.deepcopy(value)


def _to_strings(value: tuple[str, ...] | list[str]) -> tuple[str, ...]:
    return to_tuple(value)


def _number(default: float, limits: Validator[float]) -> float:
    return attrs.field(default=default, converter=to_float, validator=limits)


def _name() -> str | None:
    return attrs.field(default=None, validator=optional(text()))


def _files() -> tuple[str, ...]:
    return attrs.field(default=(), converter=_to_strings, validator=tuple_of(text()))


@attrs.frozen(kw_only=True)
class ModelOptions:
    """The causal language model: one from a directory, or a new one with random weights.

    Attributes:
        path: Directory of a model in the Hugging Face format; null makes a new model.
        type: Architecture of a new model, as transformers names it.
        config: Keys of the architecture's configuration for a new model, such as ``hidden_size``;
            the vocabulary comes from the tokenizer.

    Raises:
        InvalidValueError: A value is outside its limits, or keys are given for a model that comes
            from a directory.
    """

    path: str | None = _name()
    type: str = attrs.field(default="qwen2", validator=text())
    config: Mapping[str, object] = attrs.field(
        factory=dict, converter=_own_config, validator=_CONFIG
    )

    def __attrs_post_init__(self) -> None:
        if self.path is not None and self.config:
            allowed = "an empty section beside path: the directory has the model's configuration"
            raise InvalidValueError("config", self.config, allowed)


@attrs.frozen(kw_only=True)
class TaskOptions:
    """What is learned: a packaged example, or prompts from files with a reward function.

    Attributes:
        example: ``copy`` (repeat the digits) or ``addition``; null where files are given.
        digits: Digits of each number of an example.
        base: How many different digits an example uses.
        validation_prompts: Prompts of an example that are kept for validation, never trained on.
        train_files: Files with prompts, ``.parquet`` or ``.jsonl``.
        val_files: Files with the prompts of the validation set.
        prompt_key: Column of the prompt in these files.
        reward: The reward function, ``module:function`` or ``path/to/file.py:function``; null takes
            the example's own.
        tokenizer: Directory of a tokenizer in the Hugging Face format; null takes the model's, or
            for an example with a new model one token per character.

    Raises:
        InvalidValueError: A value is outside its limits, or values do not go together.
    """

    example: str | None = attrs.field(default=None, validator=optional(_EXAMPLE))
    digits: int = attrs.field(default=3, validator=integer(ge=1, le=32))
    base: int = attrs.field(default=10, validator=integer(ge=2, le=36))
    validation_prompts: int = attrs.field(default=0, validator=integer(ge=0))
    train_files: tuple[str, ...] = _files()
    val_files: tuple[str, ...] = _files()
    prompt_key: str = attrs.field(default="prompt", validator=text())
    reward: str | None = _name()
    tokenizer: str | None = _name()

    def __attrs_post_init__(self) -> None:
        if self.example is None:
            self._check_files()
        elif self.train_files or self.val_files:
            name = "train_files" if self.train_files else "val_files"
            allowed = f"no files beside example={self.example}"
            raise InvalidValueError(name, list(getattr(self, name)), allowed)

    def _check_files(self) -> None:
        if not self.train_files:
            allowed = f"{_EXAMPLE.allowed}, or null with files in train_files"
            raise InvalidValueError("example", None, allowed)
        if self.reward is None:
            allowed = "module:function or path/to/file.py:function: files bring no reward"
            raise InvalidValueError("reward", None, allowed)
        if self.validation_prompts:
            allowed = "0 beside train_files: prompts for validation come from val_files"
            raise InvalidValueError("validation_prompts", self.validation_prompts, allowed)


@attrs.frozen(kw_only=True)
class LearningOptions:
    """GRPO, its optimizer, and what can be added to it.

    Attributes:
        learning_rate: Step size of AdamW, constant over the run.
        weight_decay: Decoupled weight decay of AdamW.
        beta1: Decay of AdamW's mean of gradients.
        beta2: Decay of AdamW's mean of squared gradients.
        max_grad_norm: Norm to which the gradient of a step is clipped.
        clip_low: How far below 1 the probability ratio of a token counts.
        clip_high: How far above 1 it counts.
        temperature: Of sampling, and of the log-probabilities that are trained.
        old_log_prob: Score each batch under the weights before its update as well, to see how far
            they are from what the rollout engine reported (timing key ``old_log_prob``, metric
            ``actor/rollout_log_prob_difference``). The clipped ratio is to the rollout engine's
            either way.
        kl_coefficient: Weight of the divergence from the initial model; above 0 a frozen copy of it
            scores each batch (timing key ``ref``).
        critic: Train a critic for the advantages in place of the comparison within a sample
            (timing keys ``values`` and ``update_critic``).
        critic_learning_rate: Step size of the critic's AdamW.
        gamma: Discount per token, for the critic.
        gae_lambda: Weight of longer returns in the critic's advantages.
        epochs: Passes over each batch.
        micro_batch_tokens: Most tokens in one forward and backward pass, padding included; a longer
            sequence is a pass of its own.
        normalize_by_std: Divide the advantages of a sample by the spread of its rewards.
    """

    learning_rate: float = _number(1e-6, _POSITIVE)
    weight_decay: float = _number(0.01, _NOT_NEGATIVE)
    beta1: float = _number(0.9, _DECAY)
    beta2: float = _number(0.999, _DECAY)
    max_grad_norm: float = _number(1.0, _POSITIVE)
    clip_low: float = _number(0.2, _SHARE)
    clip_high: float = _number(0.2, _NOT_NEGATIVE)
    temperature: float = _number(1.0, _POSITIVE)
    old_log_prob: bool = attrs.field(default=False, validator=boolean())
    kl_coefficient: float = _number(0.0, _NOT_NEGATIVE)
    critic: bool = attrs.field(default=False, validator=boolean())
    critic_learning_rate: float = _number(1e-5, _POSITIVE)
    gamma: float = _number(1.0, _SHARE)
    gae_lambda: float = _number(1.0, _SHARE)
    epochs: int = attrs.field(default=1, validator=integer(ge=1))
    micro_batch_tokens: int = attrs.field(default=16_384, validator=integer(ge=1))
    normalize_by_std: bool = attrs.field(default=True, validator=boolean())

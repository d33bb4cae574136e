"""Sizes that do not fit the modelled cluster are refused by the key that the user wrote."""

from __future__ import annotations

from collections.abc import Callable

import attrs
import pytest
from tests.executors.support import small_config, small_options

from swingshift.executors.simulated.adapter import SimulatedAdapter
from swingshift.sdk.config import RolloutEngineConfig, RunConfig
from swingshift.sdk.errors import ConfigError

ENGINE = "actor_rollout_ref.rollout"


def engine(**changes: float) -> RunConfig:
    """Return a small run with other shares of memory."""
    config = small_config()
    rollout = RolloutEngineConfig(n=2, **changes)  # type: ignore[arg-type]
    return attrs.evolve(
        config, actor_rollout_ref=attrs.evolve(config.actor_rollout_ref, rollout=rollout)
    )


def megatron(**changes: int) -> RunConfig:
    """Return a small run whose trainer is split otherwise."""
    config = small_config()
    actor = config.actor_rollout_ref.actor
    actor = attrs.evolve(actor, megatron=attrs.evolve(actor.megatron, **changes))
    return attrs.evolve(
        config, actor_rollout_ref=attrs.evolve(config.actor_rollout_ref, actor=actor)
    )


def long_prompts() -> RunConfig:
    """Return a small run that takes shorter prompts than are modelled."""
    config = small_config()
    return attrs.evolve(config, data=attrs.evolve(config.data, max_prompt_length=512))


@pytest.mark.parametrize(
    ("make", "line"),
    [
        (
            lambda: engine(gpu_memory_utilization=0.01),
            f"{ENGINE}.gpu_memory_utilization: 0.01 is not allowed; expected at least 0.",
        ),
        (
            lambda: engine(standalone_gpu_memory_utilization=0.01),
            f"{ENGINE}.standalone_gpu_memory_utilization: 0.01 is not allowed; expected at least ",
        ),
        (
            lambda: megatron(expert_model_parallel_size=3),
            "actor_rollout_ref.actor.megatron.expert_model_parallel_size: 3 is not allowed; "
            "expected a divisor of the 2 GPUs of a pipeline stage",
        ),
        (
            long_prompts,
            "executor.lengths.prompt.max_tokens: 1024 is not allowed; expected at most "
            "data.max_prompt_length=512",
        ),
    ],
)
def test_what_does_not_fit_is_told_by_its_key(make: Callable[[], RunConfig], line: str) -> None:
    """Key, value and what is allowed, before anything runs."""
    with pytest.raises(ConfigError) as caught:
        SimulatedAdapter().build(make(), small_options())
    assert str(caught.value).startswith(line)


def test_prompts_of_both_defaults_fit_each_other() -> None:
    """Nobody has to set the one because of the other."""
    assert small_options().lengths.prompt.max_tokens <= RunConfig().data.max_prompt_length

"""Validation between cycles: on all serving replicas, outside staleness and utilization."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import attrs
import pytest
from tests.executors.support import (
    Ran,
    ScriptedPolicy,
    lengths_of,
    run_training,
    small_config,
    small_options,
)

from swingshift.executors.simulated.task import SimulatedTask
from swingshift.sdk.config import RunConfig, RuntimeConfig
from swingshift.sdk.errors import ConfigError
from swingshift.sdk.events import (
    Advisory,
    ControllerMoved,
    RequestRouted,
    SampleSubmitted,
    ValidationEnded,
    ValidationStarted,
)
from swingshift.sdk.executor import Episode, Prompt
from swingshift.sdk.metrics import GpuState

PROMPTS = 6


class GradedTask(SimulatedTask):
    """A task whose answers are worth their length in thousands of tokens."""

    async def score(self, prompt: Prompt, episodes: Sequence[Episode]) -> tuple[float, ...]:
        return tuple(episode.tokens / 1000 for episode in episodes)


def validating(*, every: int = 2, lends: bool = False, retries: int = 3) -> RunConfig:
    """Return a configuration that validates."""
    runtime = RuntimeConfig(validation_lends=lends, request_retries=retries)
    config = small_config(runtime=runtime)
    return attrs.evolve(config, trainer=attrs.evolve(config.trainer, test_freq=every))


def run(config: RunConfig, *, lend: bool = False, prompts: int = PROMPTS) -> Ran:
    task = GradedTask(
        lengths_of(config, small_options()), config.rollout.total_rollout_steps, prompts
    )
    return run_training(config, ScriptedPolicy(lend=lend), task=task)


def test_validation_comes_every_so_many_cycles() -> None:
    """Each answers every prompt once; the result is reported with its mean reward."""
    ran = run(validating())
    ended = ran.sink.of(ValidationEnded)
    assert [event.version for event in ended] == [2, 4, 6]
    assert all(event.answered == event.prompts == PROMPTS for event in ended)
    assert all(event.mean_reward is not None and event.mean_reward > 0 for event in ended)
    assert ended[0].mean_reward == ended[1].mean_reward


def test_validation_counts_for_no_rollout_metric() -> None:
    """No sample is submitted meanwhile, and no rollout window knows the time it took."""
    ran = run(validating())
    began, ended = ran.sink.of(ValidationStarted), ran.sink.of(ValidationEnded)
    for start, end in zip(began, ended, strict=True):
        events = ran.sink.events
        between = events[events.index(start) : events.index(end)]
        assert not [event for event in between if isinstance(event, SampleSubmitted)]
    assert ran.report.gpu_seconds[GpuState.VALIDATION] > 0
    windows = sum(cycle["fully_async/rollouter/version_time"] for cycle in ran.report.cycles)
    spent = sum(event.duration_s for event in ended)
    assert windows <= ran.report.wall_clock_s - spent + 1e-6


def test_gpus_are_lent_for_validation_on_request() -> None:
    """Hybrid replicas answer too, and are back before training goes on."""
    ran = run(validating(lends=True))
    starts = [ran.sink.events.index(event) for event in ran.sink.of(ValidationStarted)]
    ends = [ran.sink.events.index(event) for event in ran.sink.of(ValidationEnded)]
    for start, end in zip(starts, ends, strict=True):
        between = ran.sink.events[start:end]
        moves = [event.after for event in between if isinstance(event, ControllerMoved)]
        assert moves == ["activating", "hybrid_active", "deactivating", "standalone_only"]
        routed = [event for event in between if isinstance(event, RequestRouted)]
        validated = {e.replica for e in routed if e.request.startswith("validation/")}
        assert any(replica.startswith("hybrid") for replica in validated)


def test_replicas_that_the_policy_lent_validate_too() -> None:
    """They are not taken back for it."""
    ran = run(validating(), lend=True)
    start = ran.sink.events.index(ran.sink.of(ValidationStarted)[0])
    end = ran.sink.events.index(ran.sink.of(ValidationEnded)[0])
    assert not [e for e in ran.sink.events[start:end] if isinstance(e, ControllerMoved)]


def test_a_validation_prompt_without_an_answer_is_reported() -> None:
    """It is left out of the mean, and the run goes on."""
    config = validating(retries=0)
    task = GradedTask(lengths_of(config, small_options()), 48, PROMPTS)
    ran = run_training(
        config,
        ScriptedPolicy(lend=False),
        task=task,
        faults=[("generate", "standalone-0", "fail", 1)],
        virtual_time=False,
    )
    assert ran.report.given_up_samples + ran.report.trained_samples <= 48
    assert ran.sink.of(ValidationEnded)[-1].answered == PROMPTS


def test_a_validation_that_does_not_end_is_reported() -> None:
    """It has no result, and training goes on."""

    class StuckTask(GradedTask):
        async def score(self, prompt: Prompt, episodes: Sequence[Episode]) -> tuple[float, ...]:
            if prompt.position >= 48:
                await asyncio.sleep(1e9)
            return await super().score(prompt, episodes)

    config = attrs.evolve(
        validating(every=4), runtime=RuntimeConfig(wait_deadline_s=5_000.0, restart_attempts=0)
    )
    task = StuckTask(lengths_of(config, small_options()), 48, PROMPTS)
    ran = run_training(config, ScriptedPolicy(lend=False), task=task, virtual_time=False)
    assert ran.sink.of(ValidationEnded)[0].mean_reward is None
    assert any("validation of version 4" in event.text for event in ran.sink.of(Advisory))
    assert ran.report.trained_samples == 48


@pytest.mark.parametrize("error", [ValueError("no such unit"), asyncio.CancelledError()])
def test_a_grader_that_fails_costs_one_answer(error: BaseException) -> None:
    """The prompt is left out of the mean and named, and training goes on."""

    class PartlyGraded(GradedTask):
        async def score(self, prompt: Prompt, episodes: Sequence[Episode]) -> tuple[float, ...]:
            if prompt.position == 50:
                raise error
            return await super().score(prompt, episodes)

    config = validating(every=4)
    task = PartlyGraded(lengths_of(config, small_options()), 48, PROMPTS)
    ran = run_training(config, ScriptedPolicy(lend=False), task=task)
    (ended,) = ran.sink.of(ValidationEnded)
    assert (ended.answered, ended.prompts) == (PROMPTS - 1, PROMPTS)
    assert ended.mean_reward is not None
    told = [event.text for event in ran.sink.of(Advisory)]
    words = f"{type(error).__name__}: {error}"
    assert told == [f"validation prompt 2 has no reward: {words}"]
    assert ran.report.trained_samples == 48


def test_a_frequency_without_prompts_is_refused() -> None:
    """What is asked for and cannot be done is said before anything starts."""
    with pytest.raises(ConfigError, match=r"trainer\.test_freq is 2 and the task has no"):
        run(validating(), prompts=0)

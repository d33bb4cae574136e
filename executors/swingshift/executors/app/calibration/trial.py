"""A short real run beside the same run simulated: what single verbs do not show.

While a run goes on, processes share cores, caches and memory, and the control plane has work of its
own between two requests. A trial under a policy that never lends shows by how much generating and
training are slower than alone.
"""

from __future__ import annotations

import asyncio
import math
import statistics
from collections.abc import Mapping, Sequence

import attrs

from swingshift.executors.app.assembly import (
    build_configured_policy,
    configured_executor,
    execute,
)
from swingshift.executors.app.configuration import dump_section
from swingshift.executors.rl.task import EpisodeRequest, Task, Turn
from swingshift.executors.runtime.run import RunOutcome, TrainingRun
from swingshift.executors.simulated.costs.measured import (
    DecodePoint,
    MeasuredCosts,
    MeasuredDecode,
    MeasuredEngine,
    MeasuredPrefill,
    MeasuredTiming,
)
from swingshift.executors.simulated.costs.observed import ObservedPhase, ObservedSample
from swingshift.sdk.config import ExecutorSection, RunConfig
from swingshift.sdk.errors import UserError
from swingshift.sdk.events import BatchTrained, Event, SampleQueued
from swingshift.sdk.executor import Episode, Prompt

_NEVER_LENDS = "static_fully_async"
_MOST_SAMPLES = 256
_ITERATIONS = 12
_TOLERANCE = 0.002
_WIDEST = 8.0


@attrs.frozen(kw_only=True)
class Trial:
    """What a run showed.

    Attributes:
        processing_s: Mean seconds from the submission of a sample until it was queued, after the
            first cycle.
        fits: Tokens, responses and seconds by timing key of each fit step after the first cycle.
        samples: Lengths of prompts and responses, at most some hundreds, evenly over the run.
    """

    processing_s: float
    fits: tuple[tuple[int, int, Mapping[str, float]], ...]
    samples: tuple[ObservedSample, ...]


class _Observed(Task):
    """A task that remembers how long its prompts and responses are."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self.samples: list[ObservedSample] = []

    def __len__(self) -> int:
        return len(self._task)

    def prompt(self, index: int) -> Prompt:
        return self._task.prompt(index)

    def validation_prompts(self) -> Sequence[Prompt]:
        return self._task.validation_prompts()

    async def episode(self, turn: Turn, request: EpisodeRequest) -> Episode:
        return await self._task.episode(turn, request)

    async def score(self, prompt: Prompt, episodes: Sequence[Episode]) -> tuple[float, ...]:
        lengths = tuple(episode.tokens for episode in episodes)
        self.samples.append(ObservedSample(prompt_tokens=prompt.tokens, response_tokens=lengths))
        return await self._task.score(prompt, episodes)


class _Steady:
    """An event sink for what happens after the first cycle, when everything has been done once."""

    def __init__(self) -> None:
        self.processing_s: list[float] = []
        self.fits: list[tuple[int, int, Mapping[str, float]]] = []

    def write(self, sequence: int, t_s: float, event: Event) -> None:
        if isinstance(event, SampleQueued) and event.first_version > 0:
            self.processing_s.append(event.processing_s)
        elif isinstance(event, BatchTrained) and event.version > 0:
            self.fits.append((event.total_tokens, event.trajectories, event.timing_s))


def run_trial(config: RunConfig) -> Trial:
    """Run a configuration for real and return what it showed.

    Args:
        config: Short, of three cycles or more.

    Raises:
        UserError: The run failed, or was too short.
    """
    adapter, options = configured_executor(config)
    policy = build_configured_policy(config, _NEVER_LENDS)
    steady = _Steady()

    async def run() -> _Observed:
        executor, task = adapter.build(config, options)
        observed = _Observed(task)
        training = TrainingRun(
            config, executor, observed, policy, name="calibration", event_sinks=[steady]
        )
        report = await training.run()
        if report.outcome is not RunOutcome.EXHAUSTED:
            raise UserError(f"the trial run of the calibration failed: {report.reason}")
        return observed

    with asyncio.Runner(loop_factory=adapter.loop_factory()) as runner:
        samples = runner.run(run()).samples
    if not steady.processing_s or not steady.fits:
        raise UserError("the trial run of the calibration was too short; ask for more cycles")
    every = max(1, math.ceil(len(samples) / _MOST_SAMPLES))
    return Trial(
        processing_s=statistics.fmean(steady.processing_s),
        fits=tuple(steady.fits),
        samples=tuple(samples[::every]),
    )


def simulated_config(
    config: RunConfig, costs: MeasuredCosts, samples: Sequence[ObservedSample]
) -> RunConfig:
    """Return a configuration with the simulated executor in place of the measured one."""
    options = {
        "measured": dump_section(costs),
        "lengths": {"observed": [dump_section(ObservedPhase(samples=tuple(samples)))]},
    }
    return attrs.evolve(
        config,
        executor=ExecutorSection(name="simulated", options=options),
        # answers of a validation set are not measured
        trainer=attrs.evolve(config.trainer, test_freq=-1),
    )


def adjust(costs: MeasuredCosts, config: RunConfig, trial: Trial) -> tuple[MeasuredCosts, float]:
    """Return costs under which the simulated trial takes as long as the real one did.

    Args:
        costs: As the verbs took alone.
        config: Of the trial.
        trial: What it showed.

    Returns:
        The costs, and the factor by which generating is slower in a run than alone.
    """
    costs = attrs.evolve(
        costs, fit_step={key: _in_run(key, costs, trial) for key in costs.fit_step}
    )

    def simulated_s(factor: float) -> float:
        scaled = _scaled(costs, factor)
        steady = _Steady()
        execute(
            simulated_config(config, scaled, trial.samples),
            policy=_NEVER_LENDS,
            event_sinks=[steady],
        )
        return statistics.fmean(steady.processing_s)

    low, high = 1.0 / _WIDEST, _WIDEST
    factor = 1.0
    for _ in range(_ITERATIONS):
        took_s = simulated_s(factor)
        if abs(took_s / trial.processing_s - 1.0) < _TOLERANCE:
            break
        if took_s < trial.processing_s:
            low = factor
        else:
            high = factor
        # as good a guess as any where the time is in proportion, and never outside what is known
        guess = factor * trial.processing_s / took_s
        factor = guess if low < guess < high else math.sqrt(low * high)
    return _scaled(costs, factor), factor


def _in_run(key: str, costs: MeasuredCosts, trial: Trial) -> MeasuredTiming:
    """Return a timing such that the fit steps of the trial take what they took, on the whole."""
    timing = costs.fit_step[key]
    seen_s = math.fsum(timing_s.get(key, 0.0) for _, _, timing_s in trial.fits)
    alone_s = math.fsum(
        timing.fixed_s + timing.per_token_s * tokens + timing.per_sequence_s * sequences
        for tokens, sequences, _ in trial.fits
    )
    if alone_s <= 0.0:
        return MeasuredTiming(fixed_s=seen_s / len(trial.fits))
    factor = seen_s / alone_s
    return MeasuredTiming(
        fixed_s=timing.fixed_s * factor,
        per_token_s=timing.per_token_s * factor,
        per_sequence_s=timing.per_sequence_s * factor,
    )


def _scaled(costs: MeasuredCosts, factor: float) -> MeasuredCosts:
    hybrid = costs.hybrid_engine
    return attrs.evolve(
        costs,
        engine=_slower(costs.engine, factor),
        hybrid_engine=None if hybrid is None else _slower(hybrid, factor),
    )


def _slower(engine: MeasuredEngine, factor: float) -> MeasuredEngine:
    decode, prefill = engine.decode, engine.prefill
    return attrs.evolve(
        engine,
        decode=MeasuredDecode(
            steps=tuple(
                DecodePoint(running=point.running, step_s=point.step_s * factor)
                for point in decode.steps
            ),
            per_context_token_s=decode.per_context_token_s * factor,
        ),
        prefill=MeasuredPrefill(
            fixed_s=prefill.fixed_s * factor, per_token_s=prefill.per_token_s * factor
        ),
    )

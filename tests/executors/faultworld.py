"""A small world in which everything goes wrong by plan, and a judge of what becomes of a run.

`judge` runs a whole training under a `FaultPlan` and returns every promise that was broken; the
first event that breaks one ends the run. Deadlines are short against the seconds of `BEYOND`, which
are longer than any of them.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import os
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import Context
from typing import TypeVar, TypeVarTuple, Unpack

import attrs
from tests.executors.support import (
    HYBRID,
    STANDALONE,
    TRAINER_GPUS,
    ListSink,
    ScriptedPolicy,
    lengths_of,
    small_config,
    small_options,
)

from swingshift.executors.runtime.deadlines import DeadlineExpiredError
from swingshift.executors.runtime.run import RunOutcome, RunReport, TrainingRun
from swingshift.executors.simulated.costs.episodes import (
    EpisodeModel,
    EpisodeSource,
    ObservationLengths,
    ToolPauses,
)
from swingshift.executors.simulated.costs.lengths import LengthSource
from swingshift.executors.simulated.executor import SimulatedExecutor, UnsafeCallError
from swingshift.executors.simulated.faults import Fault, FaultPlan, Verb
from swingshift.executors.simulated.faulty import FaultyExecutor
from swingshift.executors.simulated.loop import VirtualLoop
from swingshift.executors.simulated.options import SimulatedOptions
from swingshift.executors.simulated.task import SimulatedTask
from swingshift.sdk.config import RunConfig, RuntimeConfig
from swingshift.sdk.context import DynamicScheduleContext
from swingshift.sdk.events import (
    BatchCollected,
    BatchTrained,
    ControllerMoved,
    Event,
    GpuStateChanged,
    LentWaitEnded,
    ReplicaMoved,
    RequestReturned,
    RequestRouted,
    SwitchStep,
    WeightsSynced,
)
from swingshift.sdk.executor import ExecutorError, FitBatch, FitResult, SyncOutcome
from swingshift.sdk.lifecycle import ControllerState
from swingshift.sdk.metrics import GpuState
from swingshift.sdk.policy import Rebalance, RebalanceScope
from swingshift.sdk.testing import EventLogChecker

NIGHTLY = os.environ.get("HYPOTHESIS_PROFILE") == "nightly"
"""Whether there is time for all combinations."""

T = TypeVar("T")
_Ts = TypeVarTuple("_Ts")

DEADLINES = RuntimeConfig(
    start_deadline_s=150.0,
    stop_deadline_s=150.0,
    switch_step_deadline_s=50.0,
    sync_deadline_s=60.0,
    fit_deadline_s=300.0,
    request_deadline_s=200.0,
    drain_deadline_s=200.0,
    wait_deadline_s=2_000.0,
    restart_deadline_s=80.0,
)
WITHIN, SOON, BEYOND = 20.0, 70.0, 1_000.0
"""Seconds within every deadline, just beyond that of a step, and beyond that of any call."""
COLD_START_S = 10.0
_MOST_CALLBACKS = 300_000
_TICK_S = 1e-6


class CountingLoop(VirtualLoop):
    """A virtual loop that counts what was made ready, and does not go round for ever.

    Attributes:
        count: Callbacks made ready so far.
        at: Callbacks after which ``then`` is called, once.
        then: What to do then.
    """

    def __init__(self) -> None:
        super().__init__()
        self.count = 0
        self.at: int | None = None
        self.then: Callable[[], object] | None = None

    def call_soon(
        self,
        callback: Callable[[Unpack[_Ts]], object],
        *args: *_Ts,
        context: Context | None = None,
    ) -> asyncio.Handle:
        self.count += 1
        if self.count > _MOST_CALLBACKS:
            raise RuntimeError(f"no end after {_MOST_CALLBACKS} callbacks")
        handle = super().call_soon(callback, *args, context=context)
        if self.then is not None and self.count == self.at:
            then, self.then = self.then, None
            super().call_soon(then)
        return handle


def run_counted(main: Callable[[CountingLoop], Awaitable[T]]) -> T:
    """Run to the end on a new loop, which ``main`` is given."""
    loop = CountingLoop()

    async def start() -> T:
        return await main(loop)

    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        return runner.run(start())


@attrs.define(kw_only=True)
class Lender(ScriptedPolicy):
    """A policy that lends at every so many syncs."""

    every: int = 1

    def should_activate_after_step(
        self, global_steps: int, is_hybrid_active: bool, ctx: DynamicScheduleContext
    ) -> bool:
        return global_steps % self.every == 0


@attrs.frozen(kw_only=True, eq=False)
class World:
    """A kind of run.

    Attributes:
        name: For the names of tests.
        config: Its configuration.
        rebalance: What the policy answers when asked for it.
        validation_prompts: Size of the validation set.
        episodes: Turns and tool pauses of each response.
        lends_every: Versions between two at which the policy lends.
    """

    name: str
    config: RunConfig
    rebalance: Rebalance | None = None
    validation_prompts: int = 0
    episodes: EpisodeModel = attrs.field(factory=EpisodeModel)
    lends_every: int = 1

    @functools.cached_property
    def lengths(self) -> LengthSource:
        """Where lengths come from; they depend on no run, so every run of this world shares it."""
        return lengths_of(self.config, self.options)

    @functools.cached_property
    def options(self) -> SimulatedOptions:
        """The modelled cluster."""
        options = small_options(mean_tokens=2_000.0)
        return attrs.evolve(options, cold_start_s=COLD_START_S, episodes=self.episodes)

    def task(self) -> SimulatedTask:
        """Return its data set."""
        return SimulatedTask(
            self.lengths,
            self.config.rollout.total_rollout_steps,
            self.validation_prompts,
            EpisodeSource(self.episodes, seed=self.config.seed),
        )

    @property
    def replicas(self) -> tuple[str, ...]:
        """Its replicas, the standalone ones first."""
        standalone = () if self.config.only_hybrid else STANDALONE
        return (*standalone, *(HYBRID if self.policy() else ()))

    def policy(self) -> ScriptedPolicy | None:
        """Return a new policy, or None where nothing can be lent."""
        if not self.config.async_training.use_dynamic_resource_scheduling:
            return None
        return Lender(rebalance=self.rebalance, every=self.lends_every)


def _config(prompts: int = 24, **changes: object) -> RunConfig:
    return small_config(prompts=prompts, runtime=DEADLINES, **changes)  # type: ignore[arg-type]


def _validating() -> RunConfig:
    config = _config()
    return attrs.evolve(
        config,
        trainer=attrs.evolve(config.trainer, test_freq=1),
        runtime=attrs.evolve(config.runtime, validation_lends=True),
    )


LENDING = World(name="lending", config=_config(), rebalance=Rebalance())
HYBRID_ALONE = World(name="hybrid-alone", config=_config(rollout_nodes=0))
ONE_VERSION = World(name="one-version", config=_config(training={"partial_rollout": False}))
STATIC = World(name="static", config=_config(dynamic=False))
VALIDATING = World(
    name="validating",
    config=_validating(),
    rebalance=Rebalance(scope=RebalanceScope.ALL),
    validation_prompts=3,
    lends_every=2,
)
SEVERAL_TURNS = World(
    name="several-turns",
    config=_config(),
    rebalance=Rebalance(),
    episodes=EpisodeModel(
        min_turns=1,
        mean_turns=2.0,
        max_turns=4,
        pause=ToolPauses(mean_s=3.0),
        observation=ObservationLengths(mean_tokens=100.0),
    ),
)
WORLDS = (LENDING, HYBRID_ALONE, ONE_VERSION, STATIC, VALIDATING, SEVERAL_TURNS)


class Witness(SimulatedExecutor):
    """The modelled cluster, which remembers what was really trained.

    Attributes:
        trained: Positions in the data of every sample of every fit step that ended.
        unsafe: What was asked of it that would have spoiled weights, whoever heard of it.
        is_stopped: Whether it was released.
    """

    def __init__(self, world: World) -> None:
        super().__init__(world.config, world.options, world.lengths)
        self.trained: list[int] = []
        self.unsafe: list[str] = []
        self.is_stopped = False

    async def fit_step(self, batch: FitBatch) -> FitResult:
        is_new = batch.batch_id not in self._fitted
        with self._witnessed():
            result = await super().fit_step(batch)
        if is_new:
            self.trained.extend(sample.prompt.position for sample in batch.samples)
        return result

    async def sync_weights(
        self, version: int, replicas: Sequence[str]
    ) -> Mapping[str, SyncOutcome]:
        with self._witnessed():
            return await super().sync_weights(version, replicas)

    async def stop(self) -> None:
        self.is_stopped = True
        await super().stop()

    @contextmanager
    def _witnessed(self) -> Iterator[None]:
        try:
            yield
        except UnsafeCallError as error:
            self.unsafe.append(str(error))
            raise


class Alarm:
    """An event sink that checks after every event and ends the run at the first breach."""

    def __init__(self) -> None:
        self.checker = EventLogChecker()
        self.on_breach: Callable[[], object] = lambda: None

    def write(self, sequence: int, t_s: float, event: Event) -> None:
        """Check one event."""
        was_sound = not self.checker.found
        self.checker.write(sequence, t_s, event)
        if was_sound and self.checker.found:
            self.on_breach()


@attrs.frozen(kw_only=True)
class Judged:
    """A run and what is to be said against it.

    Attributes:
        problems: Broken promises, empty for a sound run.
        report: How it ended; None if it did not.
        sink: Its events.
        struck: The faults that struck.
        calls: How often each verb was called, for each replica and under None in all.
    """

    problems: tuple[str, ...]
    report: RunReport | None
    sink: ListSink
    struck: tuple[Fault, ...]
    calls: dict[tuple[Verb, str | None], int]


def judge(plan: FaultPlan, world: World = LENDING) -> Judged:
    """Run a world under a plan."""
    sink, alarm = ListSink(), Alarm()
    problems: list[str] = []
    reports: list[RunReport] = []
    made: list[tuple[FaultyExecutor, Witness]] = []

    async def main(_: CountingLoop) -> None:
        witness = Witness(world)
        executor = FaultyExecutor(witness, plan)
        made.append((executor, witness))
        run = TrainingRun(
            world.config,
            executor,
            world.task(),
            world.policy(),
            strict_policy=True,
            event_sinks=(sink, alarm),
        )
        task = asyncio.create_task(run.run(), name="run")
        alarm.on_breach = task.cancel
        await asyncio.gather(task, return_exceptions=True)
        problems.extend(_ending(task, alarm, sink, reports))
        await asyncio.sleep(0)
        left = asyncio.all_tasks() - {asyncio.current_task()}
        problems.extend(f"left behind: {task!r}" for task in left)

    try:
        run_counted(main)
    except Exception as error:  # whatever it is, it is a finding
        problems.append(f"{type(error).__name__}: {error}")
    executor, witness = made[0]
    if not witness.is_stopped and not any(fault.verb is Verb.STOP for fault in executor.struck):
        problems.append("the executor was not released")
    problems.extend(f"unsafe: {what}" for what in witness.unsafe)
    problems.extend(_about_samples(reports, witness, sink, world))
    problems.extend(_overlong(sink, world.config.runtime))
    return Judged(
        problems=tuple(problems),
        report=reports[0] if reports else None,
        sink=sink,
        struck=tuple(executor.struck),
        calls=dict(executor.calls),
    )


def _ending(
    task: asyncio.Task[RunReport], alarm: Alarm, sink: ListSink, reports: list[RunReport]
) -> Iterator[str]:
    if alarm.checker.found:
        yield str(alarm.checker.found[0])
    elif task.cancelled():
        yield "the run cancelled itself"
    elif (error := task.exception()) is not None:
        # one that could not start has nothing to report, and says why
        if sink.events or not isinstance(error, (ExecutorError, DeadlineExpiredError)):
            yield f"the run raised {type(error).__name__}: {error}"
    else:
        report = task.result()
        reports.append(report)
        yield from map(str, alarm.checker.violations())
        if report.outcome is RunOutcome.FAILED and not report.reason:
            yield "it failed without a reason"


def _about_samples(
    reports: Sequence[RunReport], witness: Witness, sink: ListSink, world: World
) -> Iterator[str]:
    """Compare what was trained with what was reported; the log's own checks know the rest."""
    if len(set(witness.trained)) < len(witness.trained):
        yield f"trained twice: {sorted(witness.trained)}"
    collected = {event.batch: event.samples for event in sink.of(BatchCollected)}
    told = [sample for event in sink.of(BatchTrained) for sample in collected[event.batch]]
    under_way = list(collected.get(len(sink.of(BatchTrained)), ()))
    for report in reports:
        is_over = report.outcome is RunOutcome.EXHAUSTED
        # a fit step that failed may have been done all the same
        if witness.trained != told and (is_over or witness.trained != told + under_way):
            yield f"{told} reported, {witness.trained} trained"
        if report.trained_samples != len(told):
            yield f"{report.trained_samples} in the report, {len(told)} in the log"
        total = world.config.rollout.total_rollout_steps
        if report.unused_samples != total - len(told):
            yield f"{report.unused_samples} unused of {total}, {len(told)} trained"
        left = report.unused_samples - report.given_up_samples
        if is_over and not 0 <= left < world.config.required_samples:
            yield f"{left} samples were neither trained nor given up"


def _overlong(sink: ListSink, limits: RuntimeConfig) -> Iterator[str]:
    """Find waits that went on beyond their deadline."""
    for what, seconds, most in _waits(sink, limits):
        if seconds > most + _TICK_S:
            yield f"{what} took {seconds:g} s; its deadline is {most:g} s"


def _waits(sink: ListSink, limits: RuntimeConfig) -> Iterator[tuple[str, float, float]]:
    step_s, sync_s = limits.switch_step_deadline_s, limits.sync_deadline_s
    routed: dict[str, float] = {}
    training_s = None
    switches = _switches(sink)
    for t_s, event in zip(sink.times_s, sink.events, strict=True):
        if isinstance(event, SwitchStep):
            yield f"{event.switch}: {event.step}", event.duration_s, step_s
        elif isinstance(event, WeightsSynced):
            # whom it missed is killed, all at once
            yield "a sync", event.duration_s, sync_s + step_s
        elif isinstance(event, LentWaitEnded):
            yield "the wait on lent GPUs", event.wait_s, limits.wait_deadline_s
        elif isinstance(event, BatchCollected):
            begun_s = t_s - event.wait_s
            lending_s = sum(end_s - start_s for start_s, end_s in switches if start_s >= begun_s)
            yield "a collection", event.wait_s, limits.wait_deadline_s + lending_s
        elif isinstance(event, RequestRouted):
            routed[event.request] = t_s
        elif isinstance(event, RequestReturned):
            yield event.request, t_s - routed.pop(event.request), limits.request_deadline_s
        elif isinstance(event, GpuStateChanged) and set(TRAINER_GPUS) & set(event.gpus):
            if training_s is not None:
                yield "a fit step", t_s - training_s, limits.fit_deadline_s
            training_s = t_s if event.state == GpuState.TRAIN else None


def _switches(sink: ListSink) -> list[tuple[float, float]]:
    """Return when each move of GPUs began and ended."""
    moves = [
        (t_s, event.after)
        for t_s, event in zip(sink.times_s, sink.events, strict=True)
        if isinstance(event, ControllerMoved)
    ]
    return [
        (start_s, end_s)
        for (start_s, state), (end_s, _) in itertools.pairwise(moves)
        if state in (ControllerState.ACTIVATING, ControllerState.DEACTIVATING)
    ]


def came_back(sink: ListSink, replica: str) -> bool:
    """Return whether a replica served again after its last death."""
    states = [event.after for event in sink.of(ReplicaMoved) if event.replica == replica]
    latest = max((place for place, state in enumerate(states) if state == "dead"), default=-1)
    return "serving" in states[latest + 1 :]

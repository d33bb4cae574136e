"""A small fast world for tests of the control plane: four GPUs, a dense model, a virtual clock.

One trainer node of two GPUs (two hybrid replicas), one rollout node of two (two standalone ones).
A whole run of `small_config` takes some 50 ms. `ScriptedExecutor` is the simulated executor with
faults on demand; `ScriptedPolicy` is a policy that says what a test wants.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from typing import Literal, TypeVar

import attrs

from swingshift.executors.rl.task import Task
from swingshift.executors.runtime.run import RunReport, TrainingRun
from swingshift.executors.simulated.costs.hardware import H20
from swingshift.executors.simulated.costs.lengths import LengthModel, LengthSource
from swingshift.executors.simulated.costs.model import ModelSpec
from swingshift.executors.simulated.executor import SimulatedExecutor
from swingshift.executors.simulated.loop import VirtualLoop
from swingshift.executors.simulated.options import SimulatedOptions
from swingshift.executors.simulated.task import SimulatedTask
from swingshift.sdk.config import (
    ActorConfig,
    ActorRolloutRefConfig,
    AsyncTrainingConfig,
    DataConfig,
    RolloutEngineConfig,
    RunConfig,
    RuntimeConfig,
    StandaloneConfig,
    TrainerConfig,
)
from swingshift.sdk.context import DynamicScheduleContext
from swingshift.sdk.events import Event, EventSink, MetricSink
from swingshift.sdk.executor import (
    Capabilities,
    Episode,
    ExecutorError,
    FitBatch,
    FitResult,
    Generation,
    GenerationRequest,
    Inventory,
    MemoryPart,
    PauseMode,
    Prompt,
    ReplicaLostError,
    Sample,
    SyncOutcome,
    TrainingPart,
    VersionSpan,
)
from swingshift.sdk.policy import DynamicSchedulePolicyBase, Rebalance
from swingshift.sdk.testing import EventLogChecker

T = TypeVar("T")
E = TypeVar("E", bound=Event)

MODEL = ModelSpec(
    name="small dense model",
    total_params=1e9,
    active_params=1e9,
    layers=16,
    attention_layers=16,
    query_heads=16,
    kv_heads=8,
    head_dim=64,
)
STANDALONE = ("standalone-0", "standalone-1")
HYBRID = ("hybrid-0", "hybrid-1")
TRAINER_GPUS = ("trainer-0", "trainer-1")
ROLLOUT_GPUS = ("rollout-0", "rollout-1")


def run_virtual(main: Coroutine[object, object, T]) -> T:
    """Run a coroutine to its end on a virtual clock that starts at 0."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)


def sample(number: int, *, version: int = 0) -> Sample:
    """Return a sample of one response of four tokens."""
    episode = Episode(handle=f"{number}/0", tokens=4, spans=(VersionSpan(version, 4),), attempts=1)
    return Sample(
        sample_id=number,
        prompt=Prompt(number, 16, str(number)),
        episodes=(episode,),
        rewards=(0.0,),
    )


class ListSink:
    """An event sink that keeps everything, in order."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.times_s: list[float] = []

    def write(self, sequence: int, t_s: float, event: Event) -> None:
        """Keep one event."""
        assert sequence == len(self.events)
        self.events.append(event)
        self.times_s.append(t_s)

    def of(self, kind: type[E]) -> list[E]:
        """Return the events of one type, in order."""
        return [event for event in self.events if isinstance(event, kind)]


def small_config(
    *,
    dynamic: bool = True,
    prompts: int = 48,
    responses: int = 2,
    batch: int = 4,
    steps: int = 2,
    trainer_nodes: int = 1,
    rollout_nodes: int = 1,
    max_num_seqs: int = 16,
    max_response_tokens: int = 32_000,
    seed: int = 0,
    runtime: RuntimeConfig | None = None,
    training: Mapping[str, bool | int | float | str] | None = None,
) -> RunConfig:
    """Return the configuration of a small run.

    Args:
        dynamic: The master switch.
        prompts: Samples of the whole run.
        responses: Responses per prompt.
        batch: Samples of one collection.
        steps: Collections of one cycle.
        trainer_nodes: Nodes of two GPUs for training.
        rollout_nodes: Nodes of two GPUs for standalone replicas; 0 for hybrid ones alone.
        max_num_seqs: Requests one replica decodes at once.
        max_response_tokens: Token budget of a response.
        seed: Of everything random.
        runtime: Deadlines and retries.
        training: Further keys of ``async_training``.
    """
    settings: dict[str, bool | int | float | str] = {
        "use_dynamic_resource_scheduling": dynamic,
        "dynamic_schedule_deactivate_ratio": 0.5,
        "staleness_threshold": 0.5,
        "trigger_parameter_sync_step": steps,
        "concurrent_samples_per_replica": 4,
        **(training or {}),
    }
    return RunConfig(
        data=DataConfig(max_prompt_length=2048, max_response_length=max_response_tokens),
        actor_rollout_ref=ActorRolloutRefConfig(
            actor=ActorConfig(ppo_mini_batch_size=batch),
            rollout=RolloutEngineConfig(n=responses, max_num_seqs=max_num_seqs),
        ),
        trainer=TrainerConfig(nnodes=trainer_nodes, n_gpus_per_node=2),
        rollout=StandaloneConfig(
            nnodes=rollout_nodes, n_gpus_per_node=2, total_rollout_steps=prompts
        ),
        async_training=AsyncTrainingConfig(**settings),  # type: ignore[arg-type]
        runtime=runtime or RuntimeConfig(),
        seed=seed,
    )


def small_options(*, mean_tokens: float = 8_000.0, max_tokens: int = 32_000) -> SimulatedOptions:
    """Return the modelled world of a small run; responses of the mean length take about 10 s."""
    return SimulatedOptions(
        model=MODEL,
        gpu=H20,
        lengths=LengthModel(mean_tokens=mean_tokens, max_tokens=max_tokens),
    )


Fault = Literal["fail", "lose", "hang"]


class ScriptedExecutor(SimulatedExecutor):
    """The simulated executor with faults on demand, and a record of what was asked of it.

    Its capabilities say that time is not modelled unless ``virtual_time`` is set, because injected
    faults make deadlines expire.

    Attributes:
        calls: Verb and subject of every call so far, in order; subjects are replicas or parts.
        withheld_bytes: By GPU, what `sleep` and `kill` report less than is really free.
        pause_keep: The capability.
        lend: The capability.
        virtual_time: The capability.
    """

    def __init__(self, config: RunConfig, options: SimulatedOptions, lengths: LengthSource) -> None:
        super().__init__(config, options, lengths)
        self.calls: list[tuple[str, str]] = []
        self.withheld_bytes: dict[str, int] = {}
        self.pause_keep = True
        self.lend = True
        self.virtual_time = False
        self._faults: dict[tuple[str, str], list[Fault]] = {}

    def inject(self, verb: str, subject: str, how: Fault = "fail", *, times: int = 1) -> None:
        """Make the next ``times`` calls of a verb for a subject fail, lose its replica or hang.

        Args:
            verb: Name of the method; ``generate`` does not count canaries, ``canary`` is those.
            subject: A replica or the value of a part; ``*`` for any.
            how: ``fail`` raises `ExecutorError`, ``lose`` raises `ReplicaLostError`, ``hang`` never
                returns.
            times: How often.
        """
        self._faults.setdefault((verb, subject), []).extend([how] * times)

    def called(self, *verbs: str) -> list[tuple[str, str]]:
        """Return the calls of some verbs, in order."""
        return [call for call in self.calls if call[0] in verbs]

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            pause_keep=self.pause_keep, lend=self.lend, virtual_time=self.virtual_time
        )

    async def start(self) -> Inventory:
        await self._call("start", [""])
        return await super().start()

    async def stop(self) -> None:
        await self._call("stop", [""])
        await super().stop()

    async def generate(self, replica: str, request: GenerationRequest) -> Generation:
        await self._call("canary" if request.prompt.position < 0 else "generate", [replica])
        return await super().generate(replica, request)

    async def abort(self, replica: str, request_ids: Sequence[str]) -> None:
        await self._call("abort", [replica])
        await super().abort(replica, request_ids)

    async def pause(self, replicas: Sequence[str], mode: PauseMode) -> None:
        await self._call("pause", replicas)
        await super().pause(replicas, mode)

    async def resume(self, replicas: Sequence[str]) -> None:
        await self._call("resume", replicas)
        await super().resume(replicas)

    async def wake(self, replicas: Sequence[str], part: MemoryPart) -> None:
        await self._call(f"wake_{part.value}", replicas)
        await super().wake(replicas, part)

    async def sleep(self, replicas: Sequence[str]) -> Mapping[str, int]:
        await self._call("sleep", replicas)
        return self._less(await super().sleep(replicas))

    async def offload_training(self, part: TrainingPart) -> None:
        await self._call("offload_training", [part.value])
        await super().offload_training(part)

    async def reload_training(self, part: TrainingPart) -> None:
        await self._call("reload_training", [part.value])
        await super().reload_training(part)

    async def sync_weights(
        self, version: int, replicas: Sequence[str]
    ) -> Mapping[str, SyncOutcome]:
        await self._call("sync_weights", replicas)
        return await super().sync_weights(version, replicas)

    async def kill(self, replicas: Sequence[str]) -> Mapping[str, int]:
        await self._call("kill", replicas)
        return self._less(await super().kill(replicas))

    async def restart(self, replicas: Sequence[str]) -> None:
        await self._call("restart", replicas)
        await super().restart(replicas)

    async def fit_step(self, batch: FitBatch) -> FitResult:
        await self._call("fit_step", [str(batch.batch_id)])
        return await super().fit_step(batch)

    async def discard(self, handles: Sequence[str]) -> None:
        await self._call("discard", handles)

    def _less(self, free_bytes: Mapping[str, int]) -> dict[str, int]:
        return {gpu: free - self.withheld_bytes.get(gpu, 0) for gpu, free in free_bytes.items()}

    async def _call(self, verb: str, subjects: Iterable[str]) -> None:
        for subject in subjects:
            self.calls.append((verb, subject))
            for key in ((verb, subject), (verb, "*")):
                if self._faults.get(key):
                    await self._fault(self._faults[key].pop(0), verb, subject)

    async def _fault(self, how: Fault, verb: str, subject: str) -> None:
        if how == "hang":
            await asyncio.get_running_loop().create_future()
        if how == "lose":
            raise ReplicaLostError(f"{verb} of {subject}: the replica is gone")
        raise ExecutorError(f"{verb} of {subject} was told to fail")


def small_executor(
    config: RunConfig | None = None, options: SimulatedOptions | None = None
) -> ScriptedExecutor:
    """Return an executor of the small world, not started. Call it where a loop runs."""
    config = config or small_config()
    options = options or small_options()
    return ScriptedExecutor(config, options, lengths_of(config, options))


def small_task(config: RunConfig, options: SimulatedOptions | None = None) -> SimulatedTask:
    """Return the data set that belongs to `small_executor` of the same arguments."""
    lengths = lengths_of(config, options or small_options())
    return SimulatedTask(lengths, config.rollout.total_rollout_steps)


def lengths_of(config: RunConfig, options: SimulatedOptions) -> LengthSource:
    """Return where the lengths of a run come from."""
    return LengthSource(
        options.lengths,
        seed=config.seed,
        responses_per_prompt=config.actor_rollout_ref.rollout.n,
    )


@attrs.define(kw_only=True)
class ScriptedPolicy(DynamicSchedulePolicyBase):
    """A policy that answers what its attributes say.

    Attributes:
        lend: Answer of `should_activate_after_step`.
        deactivate: Answer of `should_deactivate` while hybrids are active.
        wait: Answer of `deactivate_wait_samples`, cut to a full cycle.
        rebalance: Answer of `request_rebalance`.
        learned: Version and context of every `update_after_step`.
    """

    lend: bool = True
    deactivate: bool = True
    wait: int = 2
    rebalance: Rebalance | None = None
    learned: list[tuple[int, DynamicScheduleContext]] = attrs.field(factory=list)

    def should_deactivate(
        self, global_steps: int, is_hybrid_active: bool, ctx: DynamicScheduleContext
    ) -> bool:
        return is_hybrid_active and self.deactivate

    def deactivate_wait_samples(self, ctx: DynamicScheduleContext) -> int:
        return min(self.wait, ctx.step_required_samples)

    def should_activate_after_step(
        self, global_steps: int, is_hybrid_active: bool, ctx: DynamicScheduleContext
    ) -> bool:
        return self.lend

    def request_rebalance(self, global_steps: int, ctx: DynamicScheduleContext) -> Rebalance | None:
        return self.rebalance

    def update_after_step(self, global_steps: int, ctx: DynamicScheduleContext) -> None:
        self.learned.append((global_steps, ctx))


@attrs.frozen(kw_only=True)
class Ran:
    """A run that ended: its report, its events, and the executor it ran on."""

    report: RunReport
    sink: ListSink
    executor: ScriptedExecutor


def run_training(
    config: RunConfig | None = None,
    policy: DynamicSchedulePolicyBase | None = None,
    *,
    options: SimulatedOptions | None = None,
    task: Task | None = None,
    faults: Iterable[tuple[str, str, Fault, int]] = (),
    withheld_bytes: Mapping[str, int] | None = None,
    virtual_time: bool = True,
    pause_keep: bool = True,
    strict: bool = True,
    event_sinks: Sequence[EventSink] = (),
    metric_sinks: Sequence[MetricSink] = (),
) -> Ran:
    """Run a whole training on a virtual clock, and check its event log.

    Args:
        config: `small_config` by default.
        policy: Decides; `ScriptedPolicy` by default where the configuration is dynamic.
        options: The modelled world, `small_options` by default.
        task: Another data set than the modelled one.
        faults: Arguments for `ScriptedExecutor.inject`: verb, subject, how, times.
        withheld_bytes: See `ScriptedExecutor`.
        virtual_time: Whether an expired deadline is a fault of the control plane; False for runs
            with faults that hang.
        pause_keep: The capability.
        strict: Whether a fault of the policy raises.
        event_sinks: Get every event, after the list that is returned.
        metric_sinks: Get the metrics of every cycle.
    """
    config = config or small_config()
    if policy is None and config.async_training.use_dynamic_resource_scheduling:
        policy = ScriptedPolicy()
    sink, checker = ListSink(), EventLogChecker()

    async def main() -> Ran:
        executor = small_executor(config, options)
        executor.virtual_time, executor.pause_keep = virtual_time, pause_keep
        executor.withheld_bytes = dict(withheld_bytes or {})
        for verb, subject, how, times in faults:
            executor.inject(verb, subject, how, times=times)
        run = TrainingRun(
            config,
            executor,
            task or small_task(config, options),
            policy,
            strict_policy=strict,
            event_sinks=(sink, checker, *event_sinks),
            metric_sinks=metric_sinks,
        )
        report = await run.run()
        checker.assert_sound()
        return Ran(report=report, sink=sink, executor=executor)

    return run_virtual(main())

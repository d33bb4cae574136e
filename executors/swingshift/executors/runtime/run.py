"""A whole run: policy x executor x configuration -> report."""

from __future__ import annotations

import asyncio
import enum
import logging
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack

import attrs

from swingshift.executors.rl.task import Task
from swingshift.executors.runtime.before_stop import BeforeStop, await_before_stop
from swingshift.executors.runtime.changes import Changes
from swingshift.executors.runtime.checkpoint import CheckpointHook, RunState
from swingshift.executors.runtime.client import GenerationClient
from swingshift.executors.runtime.deadlines import (
    AdapterFaultError,
    DeadlineExpiredError,
    Deadlines,
)
from swingshift.executors.runtime.fleet import Fleet
from swingshift.executors.runtime.health import Health
from swingshift.executors.runtime.lending import MemoryWithheldError
from swingshift.executors.runtime.lifespan import start_executor, stop_executor
from swingshift.executors.runtime.load_balancer import LoadBalancer
from swingshift.executors.runtime.measurement import Measurement
from swingshift.executors.runtime.message_queue import MessageQueue
from swingshift.executors.runtime.observation import CycleObservations
from swingshift.executors.runtime.rates import RolloutRates
from swingshift.executors.runtime.recorder import Recorder
from swingshift.executors.runtime.recovery import Recovery
from swingshift.executors.runtime.rollouter import Rollouter
from swingshift.executors.runtime.switchboard import build_switchboard
from swingshift.executors.runtime.trainer import RunFailedError, Trainer
from swingshift.executors.runtime.validation import Validation
from swingshift.sdk.config import RunConfig
from swingshift.sdk.decision import Decision
from swingshift.sdk.errors import ConfigError, SwingshiftError
from swingshift.sdk.events import (
    CycleEnded,
    Event,
    EventSink,
    MetricSink,
    PolicyDecided,
    RequestReturned,
    RunEnded,
    RunStarted,
)
from swingshift.sdk.executor import Executor, ExecutorError, Inventory, Prompt, ReplicaKind
from swingshift.sdk.guard import GuardedPolicy
from swingshift.sdk.metrics import GpuState
from swingshift.sdk.policy import DynamicSchedulePolicyBase, Rebalance

_log = logging.getLogger(__name__)
_FAILURES = (
    RunFailedError,
    MemoryWithheldError,
    ExecutorError,
    DeadlineExpiredError,
    AdapterFaultError,
)


class RunOutcome(enum.StrEnum):
    """How a run ended. Running out of data is the good end."""

    EXHAUSTED = "exhausted"
    FAILED = "failed"


@attrs.frozen(kw_only=True)
class RunReport:
    """What a run came to.

    Attributes:
        outcome: How it ended.
        reason: In words, for a failure; empty otherwise.
        wall_clock_s: Seconds from the first event to the last, on the executor's clock.
        trained_samples: Samples trained.
        unused_samples: Samples of the data that were never trained, given-up ones included.
        given_up_samples: Samples that failed for good.
        cycles: Metrics of each sync cycle, in order, by their public names.
        gpu_seconds: The ledger: GPU-seconds by state; they sum to wall clock x GPUs.
    """

    outcome: RunOutcome
    reason: str
    wall_clock_s: float
    trained_samples: int
    unused_samples: int
    given_up_samples: int
    cycles: tuple[Mapping[str, float], ...]
    gpu_seconds: Mapping[GpuState, float]


class _Cycles:
    """An event sink that keeps each cycle's metrics and passes them on."""

    def __init__(self, metric_sinks: Sequence[MetricSink]) -> None:
        self.metrics: list[Mapping[str, float]] = []
        self._sinks = metric_sinks

    def write(self, sequence: int, t_s: float, event: Event) -> None:
        if isinstance(event, CycleEnded):
            self.metrics.append(event.metrics)
            for sink in self._sinks:
                sink.log(event.version, event.metrics)


@attrs.frozen(kw_only=True)
class _Parts:
    """What a run is made of, once the executor's inventory is known."""

    recorder: Recorder
    measurement: Measurement
    cycles: _Cycles
    queue: MessageQueue
    client: GenerationClient
    rollouter: Rollouter
    recovery: Recovery
    trainer: Trainer


class TrainingRun:
    """One run of a policy on an executor.

    Make one, then ``await run()`` once, on a loop the executor's adapter provides.
    """

    def __init__(
        self,
        config: RunConfig,
        executor: Executor,
        task: Task,
        policy: DynamicSchedulePolicyBase | None,
        *,
        name: str = "run",
        strict_policy: bool = False,
        event_sinks: Sequence[EventSink] = (),
        metric_sinks: Sequence[MetricSink] = (),
        checkpoint: CheckpointHook | None = None,
        before_stop: BeforeStop | None = None,
    ) -> None:
        """Bind the parts; nothing happens yet.

        Args:
            config: Sizes, deadlines and switches.
            executor: Acts.
            task: Prompts, episodes, scores.
            policy: Decides; None where dynamic scheduling is off.
            name: Names the run in its log.
            strict_policy: A fault in the policy ends the run instead of being logged.
            event_sinks: Get every event.
            metric_sinks: Get the metrics of every cycle.
            checkpoint: Gets the run's state after every cycle, and before the run ends because
                GPU memory did not come back.
            before_stop: Awaited once, after the run ended in whatever way, cancelled included, and
                before the executor is stopped: for what only a living executor can do. Hybrid
                replicas are gone by then, and the training state is on the trainer's GPUs. It has
                half an hour. Its failure is logged and changes nothing about how the run ended.

        Raises:
            ConfigError: The configuration needs what the executor cannot do, or a policy is
                missing or one too many.
        """
        is_dynamic = config.async_training.use_dynamic_resource_scheduling
        if is_dynamic != (policy is not None):
            raise ConfigError(
                f"async_training.use_dynamic_resource_scheduling is {is_dynamic} and the policy is "
                f"{type(policy).__name__}; a policy goes with true, None with false"
            )
        if is_dynamic and not executor.capabilities.lend:
            raise ConfigError(
                "async_training.use_dynamic_resource_scheduling needs the capability 'lend', which "
                f"executor {config.executor.name!r} does not have; switch it off or choose another"
            )
        self._config = config
        self._executor = executor
        self._task = task
        self._policy = policy
        self._name = name
        self._strict_policy = strict_policy
        self._event_sinks = tuple(event_sinks)
        self._metric_sinks = tuple(metric_sinks)
        self._checkpoint = checkpoint
        self._before_stop = before_stop
        self._validation_prompts = self._find_validation_prompts(config, task)

    async def run(self) -> RunReport:
        """Train until the data is exhausted or the run fails, and release the executor.

        Raises:
            ExecutorError: The executor did not start.
            DeadlineExpiredError: It did not start in time.
            UnexpectedDeadlineError: On modelled time a deadline expired where no fault was
                injected.
            PolicyError: The policy failed and ``strict_policy`` is set.
        """
        executor, limits = self._executor, self._config.runtime
        deadlines = Deadlines(expiry_is_fault=executor.capabilities.virtual_time)
        try:
            inventory = await start_executor(executor, deadlines, limits)
            try:
                return await self._drive(inventory, deadlines)
            finally:
                if self._before_stop is not None:
                    await await_before_stop(self._before_stop, executor, inventory, run=self._name)
        finally:
            await stop_executor(executor, deadlines, limits)

    async def _drive(self, inventory: Inventory, deadlines: Deadlines) -> RunReport:
        parts = self._wire(inventory, deadlines)
        trainer, rollouter = parts.trainer, parts.rollouter
        outcome, reason = RunOutcome.EXHAUSTED, ""
        parts.recovery.start()
        try:
            await trainer.run()
        except _FAILURES as error:
            outcome, reason = RunOutcome.FAILED, str(error)
            if isinstance(error, MemoryWithheldError):
                self._save(parts, reason)
            _log.error("run %s failed: %s", self._name, error, exc_info=error)
        except asyncio.CancelledError:
            outcome, reason = RunOutcome.FAILED, "cancelled"
            raise
        except Exception as error:
            # a fault of the program or the policy: the log still says how the run ended
            outcome, reason = RunOutcome.FAILED, f"{type(error).__name__}: {error}"
            raise
        finally:
            async with AsyncExitStack() as ending:
                # from the last to the first, the others also where one is cancelled
                ending.callback(lambda: self._tell_end(parts, outcome, reason))
                ending.callback(parts.client.close)
                ending.push_async_callback(rollouter.stop)
                ending.push_async_callback(parts.recovery.stop)
        measurement = parts.measurement
        return RunReport(
            outcome=outcome,
            reason=reason,
            wall_clock_s=measurement.elapsed_s,
            trained_samples=trainer.trained_samples,
            unused_samples=self._total_samples - trainer.trained_samples,
            given_up_samples=rollouter.given_up,
            cycles=tuple(parts.cycles.metrics),
            gpu_seconds=measurement.gpu_seconds(),
        )

    def _tell_end(self, parts: _Parts, outcome: RunOutcome, reason: str) -> None:
        trained = parts.trainer.trained_samples
        unused = self._total_samples - trained
        parts.recorder.emit(
            RunEnded(outcome.value, reason, trained, unused, parts.rollouter.given_up)
        )

    def _wire(self, inventory: Inventory, deadlines: Deadlines) -> _Parts:
        config, executor = self._config, self._executor
        rates, measurement, cycles = RolloutRates(), Measurement(), _Cycles(self._metric_sinks)
        recorder = Recorder()
        recorder.subscribe(rates, *RolloutRates.WANTS)
        recorder.subscribe(measurement, *measurement.wants)
        recorder.subscribe(cycles, CycleEnded)
        for sink in self._event_sinks:
            recorder.subscribe(sink)
        recorder.emit(self._started(inventory))
        changes, balancer = Changes(), LoadBalancer()
        fleet = Fleet(inventory, balancer, recorder, changes)
        recorder.subscribe(Health(balancer.epoch, fleet.lose), RequestReturned)
        queue = MessageQueue(config.max_required_samples, changes)
        client = GenerationClient(
            executor,
            balancer,
            recorder,
            deadlines,
            max_response_tokens=config.data.max_response_length,
            request_deadline_s=config.runtime.request_deadline_s,
            request_retries=config.runtime.request_retries,
            version_of=None
            if config.async_training.partial_rollout
            else lambda replica: fleet.status(replica).version,
        )
        rollouter = Rollouter(
            self._task,
            client,
            client.drop,
            queue,
            recorder,
            changes,
            responses_per_prompt=config.actor_rollout_ref.rollout.n,
            concurrent_samples_per_replica=config.async_training.concurrent_samples_per_replica,
            max_required_samples=config.max_required_samples,
            total_samples=self._total_samples,
        )
        fleet.on_serving = rollouter.set_servers
        observations = CycleObservations(
            config, executor, queue, rollouter, fleet, rates, measurement, recorder, changes
        )
        switchboard = build_switchboard(
            config,
            executor,
            fleet,
            balancer,
            self._guarded(recorder),
            observations,
            recorder,
            changes,
            deadlines,
            on_error=lambda error: queue.fail(_recovery_failed(error), error),
        )
        controller, recovery = switchboard.controller, switchboard.recovery
        validation = Validation(
            self._task,
            client,
            rollouter,
            controller,
            fleet,
            recorder,
            deadlines,
            every=config.trainer.test_freq,
            lends=config.runtime.validation_lends,
            deadline_s=config.runtime.wait_deadline_s,
            prompts=self._validation_prompts,
        )

        trainer = Trainer(
            executor,
            controller,
            rollouter,
            queue,
            fleet,
            observations,
            recorder,
            deadlines,
            config,
            validation,
            after_cycle=lambda reason: self._save(parts, reason),
            take_dropped=client.take_dropped,
        )
        parts = _Parts(
            recorder=recorder,
            measurement=measurement,
            cycles=cycles,
            queue=queue,
            client=client,
            rollouter=rollouter,
            recovery=recovery,
            trainer=trainer,
        )
        return parts

    def _save(self, parts: _Parts, reason: str) -> None:
        if self._checkpoint is not None:
            self._checkpoint(self._state(reason, parts))

    @staticmethod
    def _find_validation_prompts(config: RunConfig, task: Task) -> tuple[Prompt, ...]:
        if config.trainer.test_freq <= 0:
            return ()
        prompts = tuple(task.validation_prompts())
        if not prompts:
            raise ConfigError(
                f"trainer.test_freq is {config.trainer.test_freq} and the task has no validation "
                "prompts; give it some, or set -1"
            )
        return prompts

    def _state(self, reason: str, parts: _Parts) -> RunState:
        trainer, rollouter = parts.trainer, parts.rollouter
        return RunState(
            reason=reason,
            version=trainer.version,
            global_step=trainer.global_step,
            trained_samples=trainer.trained_samples,
            next_sample=rollouter.submitted,
            in_flight=rollouter.in_flight,
            queue=parts.queue.samples,
            given_up=rollouter.given_up,
            policy=None if self._policy is None else self._policy.state_dict(),
        )

    @property
    def _total_samples(self) -> int:
        return min(self._config.rollout.total_rollout_steps, len(self._task))

    def _guarded(self, recorder: Recorder) -> GuardedPolicy | None:
        if self._policy is None:
            return None

        def tell(decision: Decision) -> None:
            recorder.emit(_decided(decision))

        return GuardedPolicy(self._policy, strict=self._strict_policy, on_decision=tell)

    def _started(self, inventory: Inventory) -> RunStarted:
        config = self._config
        standalone = inventory.of_kind(ReplicaKind.STANDALONE)
        return RunStarted(
            self._name,
            "none" if self._policy is None else type(self._policy).__name__,
            tuple(gpu.id for gpu in inventory.trainer_gpus),
            tuple(gpu for replica in standalone for gpu in replica.gpus),
            {replica.id: replica.gpus for replica in inventory.replicas},
            {replica.id: replica.kind.value for replica in inventory.replicas},
            {gpu.id: gpu.train_required_bytes for gpu in inventory.trainer_gpus},
            config.required_samples,
            config.async_training.trigger_parameter_sync_step,
            config.max_required_samples,
            config.async_training.concurrent_samples_per_replica,
            config.actor_rollout_ref.rollout.n,
            self._total_samples,
        )


def _recovery_failed(error: BaseException) -> str:
    words = str(error) if isinstance(error, SwingshiftError) else repr(error)
    return f"the recovery of lost capacity failed: {words}"


def _decided(decision: Decision) -> PolicyDecided:
    def plain(answer: bool | int | Rebalance | None) -> bool | int | str | None:
        return answer.scope.value if isinstance(answer, Rebalance) else answer

    return PolicyDecided(
        decision.question,
        decision.global_steps,
        plain(decision.answer),
        plain(decision.effective),
        decision.forced,
        decision.reason,
        attrs.asdict(decision.context),
    )

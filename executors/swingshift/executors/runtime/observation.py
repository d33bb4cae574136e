"""What snapshots are made of, in the run's own loop: the `Workload` of `TrainingRun`."""

from __future__ import annotations

import asyncio
from collections import deque

from swingshift.executors.runtime.changes import Changes
from swingshift.executors.runtime.fleet import Fleet
from swingshift.executors.runtime.measurement import Measurement
from swingshift.executors.runtime.message_queue import MessageQueue, WaitOutcome
from swingshift.executors.runtime.rates import RolloutRates
from swingshift.executors.runtime.recorder import Recorder
from swingshift.executors.runtime.rollouter import Rollouter
from swingshift.sdk.config import RunConfig
from swingshift.sdk.context import DynamicScheduleContext, Telemetry
from swingshift.sdk.events import CycleEnded
from swingshift.sdk.executor import Executor, ReplicaKind
from swingshift.sdk.lifecycle import ReplicaState

_RECENT_FIT_STEPS = 8


class CycleObservations:
    """Counts of the cycle under way, and the snapshot a policy sees of them."""

    def __init__(
        self,
        config: RunConfig,
        executor: Executor,
        queue: MessageQueue,
        rollouter: Rollouter,
        fleet: Fleet,
        rates: RolloutRates,
        measurement: Measurement,
        recorder: Recorder,
        changes: Changes,
    ) -> None:
        """Bind the parts of one run.

        Args:
            config: Sizes of collections and cycles.
            executor: Knows tokens in flight.
            queue: Knows what is buffered.
            rollouter: Knows what is active and what can still come.
            fleet: Knows who serves.
            rates: Measured rollout rates.
            measurement: Metrics of the cycle, computed from the event log alone.
            recorder: Hears the metrics of each cycle.
            changes: Notified at everything that can change an answer.
        """
        self._config = config
        self._executor = executor
        self._queue = queue
        self._rollouter = rollouter
        self._fleet = fleet
        self._rates = rates
        self._measurement = measurement
        self._recorder = recorder
        self._changes = changes
        self._finished_cycles = 0
        self._wait_times_s: list[float] = []
        self._wait_samples: list[int] = []
        self._ended_waits: tuple[tuple[float, ...], tuple[int, ...]] = ((), ())
        self._fit_steps_s: deque[float] = deque(maxlen=_RECENT_FIT_STEPS)
        self._weight_sync_s: float | None = None

    def collected(self, wait_s: float, waited_samples: int) -> None:
        """Note one collection."""
        self._wait_times_s.append(wait_s)
        self._wait_samples.append(waited_samples)

    def fitted(self, compute_s: float) -> None:
        """Note the compute of one fit step."""
        self._fit_steps_s.append(compute_s)

    def last_fit_step_done(self) -> None:
        """Note that the last fit step of a cycle is done: from now on its samples are expected."""
        self._finished_cycles += 1
        self._ended_waits = (tuple(self._wait_times_s), tuple(self._wait_samples))
        self._wait_times_s.clear()
        self._wait_samples.clear()

    def synced(self, weight_sync_s: float) -> None:
        """Note a weight sync of the standalone replicas."""
        self._weight_sync_s = weight_sync_s

    def cycle_ended(self, version: int) -> None:
        """Report the metrics of the cycle that ended."""
        self._recorder.emit(CycleEnded(version, self._measurement.cycle_metrics()))

    def snapshot(
        self, *, last_activate_duration_s: float, last_deactivate_duration_s: float
    ) -> DynamicScheduleContext:
        """Return what a policy may know now."""
        training = self._config.async_training
        expected = self._config.step_required_samples * self._finished_cycles
        wait_times_s, wait_samples = self._ended_waits
        return DynamicScheduleContext(
            required_samples=self._config.required_samples,
            trigger_parameter_sync_step=training.trigger_parameter_sync_step,
            total_generated_samples=self._queue.total_put,
            expected_samples=expected,
            buffer_samples=int(expected * training.staleness_threshold),
            step_wait_times=wait_times_s,
            step_wait_samples=wait_samples,
            only_hybrid=self._fleet.only_hybrid,
            last_activate_duration_s=last_activate_duration_s,
            last_deactivate_duration_s=last_deactivate_duration_s,
            attainable_samples=self._rollouter.attainable,
            telemetry=self._telemetry(),
        )

    def queue_size(self) -> int:
        """Return how many samples are buffered."""
        return len(self._queue)

    def ended(self) -> WaitOutcome | None:
        """Return how production ended, or None while it goes on."""
        if self._queue.failure is not None:
            return WaitOutcome.FAILED
        return WaitOutcome.EXHAUSTED if self._queue.ended else None

    def incoming_requests(self) -> int:
        """Return how many requests begin as soon as the window of a new version opens."""
        return self._rollouter.upcoming * self._config.actor_rollout_ref.rollout.n

    async def changed(self) -> None:
        """Return after the next event that can change an answer."""
        await self._changes.wait()

    async def drain(self) -> None:
        """Begin no new episode and return when none is in flight."""
        await self._rollouter.drain()

    def resume_submission(self) -> None:
        """Begin episodes again."""
        self._rollouter.resume_submission()

    def _telemetry(self) -> Telemetry:
        serving = self._fleet.serving()
        hybrid = self._fleet.serving(ReplicaKind.HYBRID)
        lendable = self._fleet.in_state(ReplicaState.ASLEEP, kind=ReplicaKind.HYBRID)
        return Telemetry(
            queue_size=len(self._queue),
            samples_in_flight=self._rollouter.active,
            tokens_in_flight=sum(self._executor.progress(name).tokens for name in serving),
            standalone_samples_per_s=self._rates.samples_per_s(ReplicaKind.STANDALONE),
            hybrid_samples_per_s=self._rates.samples_per_s(ReplicaKind.HYBRID),
            fit_step_s=tuple(self._fit_steps_s),
            weight_sync_s=self._weight_sync_s,
            serving_standalone_replicas=len(serving) - len(hybrid),
            serving_hybrid_replicas=len(hybrid),
            hybrid_replicas=len(hybrid) + len(lendable),
            loop_time_s=asyncio.get_running_loop().time(),
        )

"""The controller inside somebody else's training loop.

The loop calls it at two places: `EmbeddedController.before_fit_step` before it trains, and
`EmbeddedController.at_weight_sync` when it has new weights. Between the two the trainer's GPUs
belong to the loop. Its requests go through `EmbeddedController.generate`, an attempt each; one that
ends aborted is tried again and goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from typing import Protocol

import attrs

from swingshift.executors.runtime.changes import Changes
from swingshift.executors.runtime.controller import DynamicResourceController
from swingshift.executors.runtime.deadlines import Deadlines
from swingshift.executors.runtime.fleet import Fleet
from swingshift.executors.runtime.harvest import LentWait
from swingshift.executors.runtime.health import Health
from swingshift.executors.runtime.lifespan import start_executor, stop_executor
from swingshift.executors.runtime.load_balancer import LoadBalancer
from swingshift.executors.runtime.message_queue import WaitOutcome
from swingshift.executors.runtime.recorder import Recorder
from swingshift.executors.runtime.recovery import Recovery
from swingshift.executors.runtime.switchboard import build_switchboard
from swingshift.sdk.config import RunConfig
from swingshift.sdk.context import DynamicScheduleContext
from swingshift.sdk.errors import CallOrderError
from swingshift.sdk.events import EventSink, RequestReturned, StalenessReset
from swingshift.sdk.executor import (
    Executor,
    Generation,
    GenerationRequest,
    Inventory,
    ReplicaLostError,
)
from swingshift.sdk.guard import GuardedPolicy
from swingshift.sdk.policy import DynamicSchedulePolicyBase


@attrs.frozen(kw_only=True)
class LoopCounts:
    """What a foreign loop knows at one moment.

    Attributes:
        queue_size: Finished samples buffered.
        total_generated_samples: Samples ever put into the buffer.
        finished_cycles: Sync cycles whose last fit step is done.
        step_wait_times: Seconds waited by each collection of the cycle that ended last.
        step_wait_samples: Samples each of them had to wait for.
        attainable_samples: The most the buffer can still hold before the next sync; None if the
            loop does not know, which leaves waits to their deadline.
        ended: EXHAUSTED or FAILED once no sample will come any more, else None.
    """

    queue_size: int
    total_generated_samples: int
    finished_cycles: int
    step_wait_times: tuple[float, ...] = ()
    step_wait_samples: tuple[int, ...] = ()
    attainable_samples: int | None = None
    ended: WaitOutcome | None = None


class RolloutSide(Protocol):
    """What the controller asks of a foreign loop's rollout side."""

    def counts(self) -> LoopCounts:
        """Return what the loop knows now; must be cheap."""
        ...

    async def drain(self) -> None:
        """Begin no new episode and return when none is in flight.

        Asked for with ``partial_rollout: false`` alone.
        """
        ...

    def resume_submission(self) -> None:
        """Begin episodes again."""
        ...


class _Observed:
    """A `Workload` made of a foreign loop's counts."""

    def __init__(self, side: RolloutSide, config: RunConfig, changes: Changes) -> None:
        self._side = side
        self._config = config
        self._changes = changes
        self.fleet: Fleet | None = None

    def snapshot(
        self, *, last_activate_duration_s: float, last_deactivate_duration_s: float
    ) -> DynamicScheduleContext:
        counts = self._side.counts()
        training = self._config.async_training
        expected = self._config.step_required_samples * counts.finished_cycles
        return DynamicScheduleContext(
            required_samples=self._config.required_samples,
            trigger_parameter_sync_step=training.trigger_parameter_sync_step,
            total_generated_samples=counts.total_generated_samples,
            expected_samples=expected,
            buffer_samples=int(expected * training.staleness_threshold),
            step_wait_times=counts.step_wait_times,
            step_wait_samples=counts.step_wait_samples,
            only_hybrid=self.fleet is not None and self.fleet.only_hybrid,
            last_activate_duration_s=last_activate_duration_s,
            last_deactivate_duration_s=last_deactivate_duration_s,
            attainable_samples=counts.attainable_samples,
        )

    def queue_size(self) -> int:
        return self._side.counts().queue_size

    def ended(self) -> WaitOutcome | None:
        return self._side.counts().ended

    def incoming_requests(self) -> int:
        # a foreign loop has no window that opens with a sync: it submits when it likes
        return 0

    async def changed(self) -> None:
        await self._changes.wait()

    async def drain(self) -> None:
        await self._side.drain()

    def resume_submission(self) -> None:
        self._side.resume_submission()


class EmbeddedController:
    """Lends the GPUs of a loop that is not ours.

    ``async with EmbeddedController(...) as controller:`` starts the executor and stops it.

    Attributes:
        balancer: Routing, for a loop that wants more of it than `generate` gives.
        inventory: What the executor brought up; None before the start.
    """

    def __init__(
        self,
        config: RunConfig,
        executor: Executor,
        policy: DynamicSchedulePolicyBase,
        side: RolloutSide,
        *,
        strict_policy: bool = False,
        event_sinks: Sequence[EventSink] = (),
        on_error: Callable[[BaseException], None] | None = None,
    ) -> None:
        """Bind the parts; call it on the loop it will live on.

        Args:
            config: Sizes and deadlines; sections that concern the training loop itself are unused.
            executor: Its replica, memory and weight verbs are used; ``fit_step`` is not.
            policy: Decides.
            side: The loop's rollout side.
            strict_policy: Raise where a policy fails instead of logging it.
            event_sinks: Get every event.
            on_error: Called when the recovery of lost capacity itself fails.
        """
        self._config = config
        self._executor = executor
        self._policy = policy
        self._strict_policy = strict_policy
        self._on_error = on_error or _ignore
        self._deadlines = Deadlines(expiry_is_fault=executor.capabilities.virtual_time)
        self._recorder = Recorder()
        for sink in event_sinks:
            self._recorder.subscribe(sink)
        self._changes = Changes()
        self._workload = _Observed(side, config, self._changes)
        self._turn = AsyncExitStack()
        self._controller: DynamicResourceController | None = None
        self._recovery: Recovery | None = None
        self.balancer = LoadBalancer()
        self.inventory: Inventory | None = None

    async def __aenter__(self) -> EmbeddedController:
        try:
            await self.start()
        except BaseException:
            await self.stop()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> Inventory:
        """Start the executor; called once, first.

        Raises:
            ExecutorError: It failed.
            DeadlineExpiredError: It did not end in time.
        """
        config, executor, deadlines = self._config, self._executor, self._deadlines
        inventory = self.inventory = await start_executor(executor, deadlines, config.runtime)
        fleet = Fleet(inventory, self.balancer, self._recorder, self._changes)
        self._recorder.subscribe(Health(self.balancer.epoch, fleet.lose), RequestReturned)
        self._workload.fleet = fleet
        switchboard = build_switchboard(
            config,
            executor,
            fleet,
            self.balancer,
            GuardedPolicy(self._policy, strict=self._strict_policy),
            self._workload,
            self._recorder,
            self._changes,
            deadlines,
            on_error=self._on_error,
        )
        self._controller, self._recovery = switchboard.controller, switchboard.recovery
        self._recovery.start()
        return inventory

    async def stop(self) -> None:
        """Stop the executor; called once, last, whatever happened before.

        An executor that does not stop, or not in time, is logged.
        """
        async with AsyncExitStack() as ending:
            # from the last to the first, the others also where one is cancelled
            ending.push_async_callback(
                stop_executor, self._executor, self._deadlines, self._config.runtime
            )
            if self._recovery is not None:
                ending.push_async_callback(self._recovery.stop)
            ending.push_async_callback(self._turn.aclose)

    def notify(self) -> None:
        """Say that the loop's counts changed: a sample buffered or given up, or the data ended."""
        self._changes.notify()

    async def generate(self, request: GenerationRequest) -> Generation:
        """Make one attempt at a response on the replica that has most room; wait while none serves.

        A replica that is gone, or fails at several attempts in a row, is taken out of routing and
        restarted. The caller owns the deadline.

        Args:
            request: What to generate; after an attempt that was aborted, with what it had.

        Returns:
            How the attempt ended. With ``FinishReason.ABORT`` it is to be made again.

        Raises:
            ReplicaLostError: The replica is gone; begin again at the prompt.
            ExecutorError: The attempt failed; likewise.
        """
        name = request.request_id
        lease = await self.balancer.acquire(name)
        reason, tokens = "failed", 0
        try:
            answer = await self._executor.generate(lease.replica, request)
            reason, tokens = answer.finish_reason.value, answer.new_tokens
            return answer
        except asyncio.CancelledError:
            reason = "cancelled"
            raise
        except ReplicaLostError:
            reason = "lost"
            raise
        finally:
            self.balancer.release(lease)
            self._recorder.emit(RequestReturned(name, lease.replica, lease.epoch, reason, tokens))

    async def before_fit_step(self, global_steps: int) -> LentWait:
        """Wait as the policy says and take lent GPUs back; afterwards they belong to training.

        Called before every fit step. They belong to training until the next call of this or of
        `at_weight_sync`.

        Args:
            global_steps: The current parameter version.

        Raises:
            MemoryWithheldError: The memory did not come back; do not train.
            AdapterFaultError: The executor raised what its contract does not name.
        """
        controller = self._started()
        await self._turn.aclose()
        wait = await controller.before_fit_step(global_steps)
        await self._turn.enter_async_context(controller.training())
        return wait

    async def at_weight_sync(self, version: int) -> None:
        """Send the new weights, lend GPUs if the policy says so, and let it learn.

        Called with 0 before the first fit step, then after the last fit step of each cycle. After
        a call that was cancelled, only the same call may follow: until it ends, replicas may be
        paused and of different versions.

        Args:
            version: The parameter version to send.

        Raises:
            MemoryWithheldError: An activation failed and the memory did not come back.
            AdapterFaultError: The executor raised what its contract does not name.
        """
        controller = self._started()
        await self._turn.aclose()
        await controller.at_weight_sync(version)
        staleness = self._workload.queue_size()
        self._recorder.emit(StalenessReset(version, staleness, 0, staleness))
        controller.end_cycle(version)

    def _started(self) -> DynamicResourceController:
        if self._controller is None:
            raise CallOrderError("start the controller first, or use 'async with'")
        return self._controller


def _ignore(_error: BaseException) -> None:
    """Serve as ``on_error`` where nobody listens."""

"""Carries out what the policy decides: lends the trainer's GPUs to rollout and gets them back.

A training loop calls the controller at two places: `DynamicResourceController.before_fit_step`, and
`DynamicResourceController.at_weight_sync` followed by `DynamicResourceController.end_cycle`.
Training may touch its GPUs only when the controller is in STANDALONE_ONLY.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import attrs

from swingshift.executors.runtime.deadlines import DeadlineExpiredError, Deadlines
from swingshift.executors.runtime.fleet import Fleet
from swingshift.executors.runtime.harvest import LentWait, wait_for_harvest
from swingshift.executors.runtime.lending import Lending, MemoryWithheldError
from swingshift.executors.runtime.load_balancer import LoadBalancer
from swingshift.executors.runtime.rebalancing import Rebalancing
from swingshift.executors.runtime.recorder import Recorder
from swingshift.executors.runtime.restarts import Restarts
from swingshift.executors.runtime.switching import RECOVERABLE, Steps
from swingshift.executors.runtime.syncing import Syncing
from swingshift.executors.runtime.workload import Workload
from swingshift.sdk.config import RuntimeConfig
from swingshift.sdk.context import DynamicScheduleContext
from swingshift.sdk.errors import CallOrderError
from swingshift.sdk.events import (
    Advisory,
    ControllerMoved,
)
from swingshift.sdk.executor import Executor, ReplicaKind
from swingshift.sdk.guard import GuardedPolicy
from swingshift.sdk.lifecycle import (
    ControllerEvent,
    ControllerState,
    ReplicaState,
    advance_controller,
)
from swingshift.sdk.metrics import GpuState
from swingshift.sdk.policy import Rebalance


class DynamicResourceController:
    """Owner of the controller's state machine and of every switch."""

    def __init__(
        self,
        executor: Executor,
        fleet: Fleet,
        balancer: LoadBalancer,
        policy: GuardedPolicy | None,
        workload: Workload,
        recorder: Recorder,
        deadlines: Deadlines,
        restarts: Restarts,
        *,
        config: RuntimeConfig,
        enable_rebalance: bool,
        partial_rollout: bool,
    ) -> None:
        """Bind the parts.

        Args:
            executor: Acts.
            fleet: Book of replicas and GPUs.
            balancer: Routing; the controller moves requests in it, the fleet moves replicas.
            policy: Decides; None when there are no hybrid replicas.
            workload: What snapshots are made of.
            recorder: Hears of everything.
            deadlines: Rule for a step that does not end.
            restarts: Brings dead replicas back.
            config: Seconds allowed for each step.
            enable_rebalance: Ask the policy for a rebalance after an activation.
            partial_rollout: Responses may hold tokens of several versions.
        """
        self._executor = executor
        self._fleet = fleet
        self._policy = policy
        self._workload = workload
        self._recorder = recorder
        self._config = config
        self._enable_rebalance = enable_rebalance
        self._partial_rollout = partial_rollout
        self._deadlines = deadlines
        self._steps = Steps(
            executor,
            fleet,
            recorder,
            deadlines,
            step_s=config.switch_step_deadline_s,
            sync_s=config.sync_deadline_s,
        )
        self._lending = Lending(executor, fleet, recorder, self._steps, restarts)
        self._rebalancing = Rebalancing(
            executor, balancer, recorder, self._steps, incoming=workload.incoming_requests
        )
        self._syncing = Syncing(
            executor, fleet, balancer, self._steps, partial_rollout=partial_rollout
        )
        # training, weight sync and switches exclude each other on the trainer's GPUs
        self._gpus = asyncio.Lock()
        self._version: int | None = None
        self._lends: bool | None = None
        self._is_drained = False
        self._state = ControllerState.STANDALONE_ONLY
        self._activate_s = 0.0
        self._deactivate_s = 0.0
        self._cycle_context: DynamicScheduleContext | None = None

    @property
    def state(self) -> ControllerState:
        """Where the trainer's GPUs are."""
        return self._state

    @property
    def is_hybrid_active(self) -> bool:
        """Whether GPUs are lent."""
        return self._state is ControllerState.HYBRID_ACTIVE

    @property
    def can_lend(self) -> bool:
        """Whether there is a hybrid replica to lend."""
        return self._state is ControllerState.STANDALONE_ONLY and self._lending.has_replicas

    @property
    def is_behind(self) -> bool:
        """Whether `catch_up` has something to do and may do it."""
        return (
            self._state is ControllerState.STANDALONE_ONLY
            and self._version is not None
            and not self._fleet.lost_trainer_gpus
            and bool(self._fleet.in_state(ReplicaState.STALE, kind=ReplicaKind.STANDALONE))
        )

    @asynccontextmanager
    async def training(self) -> AsyncIterator[None]:
        """Hold the trainer's GPUs for one fit step: no sync and no switch meanwhile.

        Waits for a weight sync under way, and for lost trainer GPUs to come back.

        Raises:
            CallOrderError: GPUs are lent; call `before_fit_step` first.
            DeadlineExpiredError: A lost GPU did not come back in time.
        """
        async with self._gpus:
            if self._state is not ControllerState.STANDALONE_ONLY:
                raise CallOrderError(
                    f"training must not start while the controller is {self._state.value}; "
                    "call before_fit_step first"
                )
            await self._trainer_gpus_back()
            with self._fleet.training():
                yield

    async def catch_up(self) -> None:
        """Bring STALE standalone replicas to the current version and into routing.

        Called by recovery at any time; waits until the trainer's GPUs do not compute.
        """
        async with self._gpus:
            if not self.is_behind or self._version is None:
                return
            await self._syncing.catch_up(self._version)

    async def before_fit_step(self, global_steps: int) -> LentWait:
        """Ask the policy, wait as it says, and take lent GPUs back. Called before every fit step.

        Args:
            global_steps: The current parameter version.

        Raises:
            MemoryWithheldError: The memory did not come back; do not train.
        """
        await self._settle()
        if self._policy is None:
            return LentWait()
        active = self.is_hybrid_active
        reclaim = self._policy.before_fit_step(global_steps, active)
        if not active:
            reclaim.evaluate(self._snapshot())
            return LentWait()
        wait = await wait_for_harvest(
            reclaim,
            self._snapshot,
            self._workload,
            self._fleet,
            self._recorder,
            self._deadlines,
            deadline_s=self._config.wait_deadline_s,
        )
        await self.deactivate()
        return wait

    async def at_weight_sync(self, version: int) -> float:
        """Ask the policy, sync the standalone replicas, and lend GPUs if it says so.

        Called once per version: 0 before the first fit step, then after the last fit step of each
        cycle. The policy is asked before any sync. No failure of one replica reaches the others.
        Where a response must be of one version, episodes in flight end first; new ones begin once
        the standalone replicas are synced.

        If it was cancelled, it may be called again with the same version; the policy is not asked
        a second time.

        Args:
            version: The parameter version to send.

        Returns:
            Seconds of the standalone replicas' sync; an activation is not part of it.

        Raises:
            CallOrderError: GPUs are lent since an earlier version.
            DeadlineExpiredError: A lost trainer GPU did not come back in time.
            MemoryWithheldError: An activation failed and the GPUs did not come back.
        """
        loop = asyncio.get_running_loop()
        await self._settle()
        if self.is_hybrid_active:
            return self._already_synced(version)
        await self._drain("weight sync")
        lend = self._should_lend(version)
        async with self._gpus:
            await self._trainer_gpus_back()
            begun_s = loop.time()
            self._version = version
            await self._syncing.standalone(version)
            synced_s = loop.time() - begun_s
            # standalone replicas serve from here on, whatever an activation still takes
            self._is_drained = False
            self._workload.resume_submission()
            if not lend or not self.can_lend or not await self._activate(version):
                return synced_s
        if self._enable_rebalance and self._policy is not None:
            decision = self._policy.request_rebalance(version, self._snapshot())
            if decision is not None:
                await self.rebalance(decision)
        return synced_s

    def _already_synced(self, version: int) -> float:
        if version != self._version:
            raise CallOrderError(
                f"weights of version {version} cannot be sent while GPUs are lent; "
                "call before_fit_step first"
            )
        return 0.0

    def _should_lend(self, version: int) -> bool:
        if self._policy is None:
            return False
        if self._lends is None:
            context = self._cycle_context = self._snapshot()
            has_ended = self._workload.ended() is not None
            self._lends = self._policy.should_activate_after_step(
                version, False, context, has_ended=has_ended
            )
        return self._lends

    def end_cycle(self, version: int) -> None:
        """Let the policy learn from the cycle that ended. Called once after each `at_weight_sync`.

        It gets the snapshot its question saw, with the durations of this cycle's switches.
        """
        if self._policy is not None and self._cycle_context is not None:
            context = attrs.evolve(
                self._cycle_context,
                last_activate_duration_s=self._activate_s,
                last_deactivate_duration_s=self._deactivate_s,
            )
            self._policy.update_after_step(version, context)
        self._activate_s = self._deactivate_s = 0.0
        self._lends = None

    async def activate(self, version: int) -> bool:
        """Lend the GPUs of every sleeping hybrid replica; a failure rolls back to STANDALONE_ONLY.

        Returns:
            Whether at least one replica serves now.

        Raises:
            MemoryWithheldError: The way back failed too.
        """
        async with self._gpus:
            return await self._activate(version)

    async def _activate(self, version: int) -> bool:
        started_s = asyncio.get_running_loop().time()
        self._move(ControllerEvent.ACTIVATE)
        self._fleet.set_trainer(GpuState.SWITCH)
        try:
            served = await self._lending.lend(version)
        except RECOVERABLE as error:
            self._recorder.emit(Advisory(f"activation rolled back: {error}"))
            served = ()
        if served:
            self._move(ControllerEvent.ACTIVATED)
            self._fleet.set_lent(served)
        else:
            await self._roll_back()
        self._activate_s += asyncio.get_running_loop().time() - started_s
        return bool(served)

    async def deactivate(self) -> None:
        """Take lent GPUs back: out of routing, aborted, asleep, measured, training state reloaded.

        Raises:
            MemoryWithheldError: The memory did not come back; the controller is BLOCKED.
        """
        started_s = asyncio.get_running_loop().time()
        if not self._fleet.serving(ReplicaKind.STANDALONE):
            # with nowhere to go under the same version, requests run to their end first
            await self._drain("deactivation")
        async with self._gpus:
            self._move(ControllerEvent.DEACTIVATE)
            await self._return_gpus()
        self._end_drain()
        self._deactivate_s += asyncio.get_running_loop().time() - started_s

    async def _drain(self, before: str) -> None:
        """Let episodes in flight end where a response must be of one version; begin no new ones.

        What has not ended at the deadline is left to be aborted, and begins again under the next
        version. Nothing is done where responses may span versions, or no replica serves.

        Args:
            before: What comes next, for the report.
        """
        if self._partial_rollout or not self._fleet.serving():
            return
        self._is_drained = True
        try:
            async with self._deadlines.step(
                f"drain before {before}", self._config.drain_deadline_s
            ):
                await self._workload.drain()
        except DeadlineExpiredError as error:
            self._recorder.emit(Advisory(f"{error}; what is in flight starts again"))

    def _end_drain(self) -> None:
        if self._is_drained:
            self._is_drained = False
            self._workload.resume_submission()

    async def rebalance(self, decision: Rebalance) -> None:
        """Route requests in flight anew, as the decision says."""
        await self._rebalancing.carry_out(decision)

    @asynccontextmanager
    async def lent_outside_cycle(self, version: int) -> AsyncIterator[None]:
        """Lend the GPUs while the context lasts, without the policy and outside its measurements.

        Args:
            version: The current parameter version.

        Raises:
            MemoryWithheldError: The memory did not come back; the controller is BLOCKED.
        """
        durations_s = self._activate_s, self._deactivate_s
        try:
            lent = await self.activate(version)
            try:
                yield
            finally:
                if lent:
                    await self.deactivate()
        finally:
            self._activate_s, self._deactivate_s = durations_s

    async def _settle(self) -> None:
        """Finish what a cancelled call left half-done: GPUs on their way go back to training.

        Episodes that it kept from beginning begin.

        Raises:
            MemoryWithheldError: They did not come back.
        """
        self._end_drain()
        async with self._gpus:
            if self._state is ControllerState.ACTIVATING:
                await self._roll_back()
            elif self._state is ControllerState.DEACTIVATING:
                await self._return_gpus()
            elif self._state is ControllerState.BLOCKED:
                raise MemoryWithheldError("the controller is blocked: GPU memory is not back")

    async def _trainer_gpus_back(self) -> None:
        if lost := self._fleet.lost_trainer_gpus:
            what = f"the wait for lost trainer GPUs {', '.join(lost)}"
            async with self._deadlines.step(what, self._config.wait_deadline_s):
                while self._fleet.lost_trainer_gpus:
                    await self._workload.changed()

    async def _roll_back(self) -> None:
        self._move(ControllerEvent.ROLL_BACK)
        await self._lending.clear_training_state()
        await self._return_gpus()

    async def _return_gpus(self) -> None:
        try:
            await self._give_back()
        except MemoryWithheldError:
            self._move(ControllerEvent.MEMORY_WITHHELD)
            raise
        self._move(ControllerEvent.DEACTIVATED)

    async def _give_back(self) -> None:
        while True:
            try:
                # there is nothing to measure on a lost GPU, and nowhere to reload to
                await self._trainer_gpus_back()
                return await self._lending.give_back()
            except DeadlineExpiredError as error:
                raise MemoryWithheldError(str(error)) from error
            except MemoryWithheldError:
                if not self._fleet.lost_trainer_gpus:
                    raise

    def _snapshot(self) -> DynamicScheduleContext:
        return self._workload.snapshot(
            last_activate_duration_s=self._activate_s,
            last_deactivate_duration_s=self._deactivate_s,
        )

    def _move(self, event: ControllerEvent) -> None:
        before, self._state = self._state, advance_controller(self._state, event)
        self._recorder.emit(ControllerMoved(before.value, self._state.value))
        # replicas that are behind are synced only while nothing is lent
        self._fleet.notify()

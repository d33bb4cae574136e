"""Carries out what the policy decides: lends the trainer's GPUs to rollout and gets them back.

A training loop calls the controller at two places: `DynamicResourceController.before_fit_step`, and
`DynamicResourceController.at_weight_sync` followed by `DynamicResourceController.end_cycle`.
Training may touch its GPUs only when the controller is in STANDALONE_ONLY.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import attrs

from swingshift.executors.runtime.deadlines import Deadlines
from swingshift.executors.runtime.fleet import Fleet
from swingshift.executors.runtime.load_balancer import LoadBalancer
from swingshift.executors.runtime.message_queue import WaitOutcome
from swingshift.executors.runtime.recorder import Recorder
from swingshift.executors.runtime.switching import RECOVERABLE, Steps
from swingshift.executors.runtime.workload import Workload
from swingshift.sdk.config import RuntimeConfig
from swingshift.sdk.context import DynamicScheduleContext
from swingshift.sdk.errors import SwingshiftError
from swingshift.sdk.events import (
    Advisory,
    ControllerMoved,
    LentWaitEnded,
    MemoryMeasured,
    Rebalanced,
)
from swingshift.sdk.executor import Executor, MemoryPart, PauseMode, ReplicaKind, TrainingPart
from swingshift.sdk.guard import GuardedPolicy, Reclaim
from swingshift.sdk.lifecycle import (
    ControllerEvent,
    ControllerState,
    ReplicaEvent,
    ReplicaState,
    advance_controller,
)
from swingshift.sdk.metrics import GpuState
from swingshift.sdk.policy import Rebalance, RebalanceScope

_SLEEP_ATTEMPTS = 2


class MemoryWithheldError(SwingshiftError):
    """GPU memory did not come back to training; the controller is BLOCKED and training must not
    start.
    """


@attrs.frozen(kw_only=True)
class LentWait:
    """How the wait for the lent GPUs' harvest ended before a fit step.

    Attributes:
        wait_s: Seconds waited while GPUs were lent; 0.0 when none were.
        outcome: REACHED, EXHAUSTED or FAILED.
    """

    wait_s: float = 0.0
    outcome: WaitOutcome = WaitOutcome.REACHED


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
            config: Seconds allowed for each step.
            enable_rebalance: Ask the policy for a rebalance after an activation.
            partial_rollout: Responses may hold tokens of several versions.
        """
        self._executor = executor
        self._fleet = fleet
        self._balancer = balancer
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
        self._required_bytes = {
            gpu.id: gpu.train_required_bytes for gpu in fleet.inventory.trainer_gpus
        }
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
        asleep = self._fleet.in_state(ReplicaState.ASLEEP, kind=ReplicaKind.HYBRID)
        return self._state is ControllerState.STANDALONE_ONLY and bool(asleep)

    async def before_fit_step(self, global_steps: int) -> LentWait:
        """Ask the policy, wait as it says, and take lent GPUs back. Called before every fit step.

        Args:
            global_steps: The current parameter version.

        Raises:
            MemoryWithheldError: The memory did not come back; do not train.
        """
        if self._policy is None:
            return LentWait()
        active = self.is_hybrid_active
        reclaim = self._policy.before_fit_step(global_steps, active)
        if not active:
            reclaim.evaluate(self._snapshot())
            return LentWait()
        wait = await self._wait_for_harvest(reclaim)
        await self.deactivate()
        return wait

    async def at_weight_sync(self, version: int) -> float:
        """Ask the policy, sync the standalone replicas, and lend GPUs if it says so.

        Called once per version: 0 before the first fit step, then after the last fit step of each
        cycle. The policy is asked before any sync. No failure of one replica reaches the others.

        Args:
            version: The parameter version to send.

        Returns:
            Seconds of the standalone replicas' sync; an activation is not part of it.
        """
        loop = asyncio.get_running_loop()
        lend, context = False, None
        if self._policy is not None:
            context = self._cycle_context = self._snapshot()
            lend = self._policy.should_activate_after_step(version, self.is_hybrid_active, context)
        begun_s = loop.time()
        await self._sync_standalone(version)
        synced_s = loop.time() - begun_s
        if self._policy is None or context is None or not lend or not self.can_lend:
            return synced_s
        if await self.activate(version) and self._enable_rebalance:
            decision = self._policy.request_rebalance(version, context)
            if decision is not None:
                await self.rebalance(decision)
        return synced_s

    def end_cycle(self, version: int) -> None:
        """Let the policy learn, from the snapshot its question saw and the durations of this
        cycle's switches.
        """
        if self._policy is not None and self._cycle_context is not None:
            context = attrs.evolve(
                self._cycle_context,
                last_activate_duration_s=self._activate_s,
                last_deactivate_duration_s=self._deactivate_s,
            )
            self._policy.update_after_step(version, context)
        self._activate_s = self._deactivate_s = 0.0

    async def activate(self, version: int) -> bool:
        """Lend the GPUs of every sleeping hybrid replica; a failure rolls back to STANDALONE_ONLY.

        Returns:
            Whether at least one replica serves now.

        Raises:
            MemoryWithheldError: The way back failed too.
        """
        started_s = asyncio.get_running_loop().time()
        self._move(ControllerEvent.ACTIVATE)
        self._fleet.set_trainer(GpuState.SWITCH)
        try:
            served = await self._lend(version)
        except RECOVERABLE as error:
            self._recorder.emit(Advisory(f"activation rolled back: {error}"))
            served = ()
        if served:
            self._move(ControllerEvent.ACTIVATED)
            self._fleet.set_rollout(served)
        else:
            self._move(ControllerEvent.ROLL_BACK)
            await self._return_gpus()
        self._activate_s += asyncio.get_running_loop().time() - started_s
        return bool(served)

    async def deactivate(self) -> None:
        """Take lent GPUs back: out of routing, aborted, asleep, measured, training state reloaded.

        Raises:
            MemoryWithheldError: The memory did not come back; the controller is BLOCKED.
        """
        started_s = asyncio.get_running_loop().time()
        if not self._partial_rollout and not self._fleet.serving(ReplicaKind.STANDALONE):
            # with nowhere to go under the same version, requests run to their end first
            async with self._deadlines.step(
                "drain before deactivation", self._config.request_deadline_s
            ):
                await self._workload.drain()
        self._move(ControllerEvent.DEACTIVATE)
        await self._return_gpus()
        self._workload.resume_submission()
        self._deactivate_s += asyncio.get_running_loop().time() - started_s

    async def rebalance(self, decision: Rebalance) -> None:
        """Route requests in flight anew: all of them, or only what replicas hold above their fair
        share.
        """
        if decision.scope is RebalanceScope.ALL:
            moves = {name: self._balancer.requests_on(name) for name in self._balancer.replicas}
            self._balancer.forget_all()
        else:
            moves = self._balancer.excess()
            for request in (request for requests in moves.values() for request in requests):
                self._balancer.forget(request)
        moves = {name: requests for name, requests in moves.items() if requests}
        self._balancer.hold()
        try:
            aborted = await self._steps.each(
                "rebalance",
                "abort",
                tuple(moves),
                lambda name: self._executor.abort(name, moves[name]),
            )
            await self._balancer.released({name: moves[name] for name in aborted})
        finally:
            self._balancer.open()
        self._recorder.emit(
            Rebalanced(decision.scope.value, {name: len(moves[name]) for name in aborted})
        )

    async def _wait_for_harvest(self, reclaim: Reclaim) -> LentWait:
        loop = asyncio.get_running_loop()
        started_s = loop.time()
        deadline_s = started_s + self._config.wait_deadline_s
        expired = False
        while True:
            target = reclaim.evaluate(self._snapshot(), deadline_reached=expired)
            size = self._workload.queue_size()
            ended = self._workload.ended()
            if (target is not None and size >= target) or ended is WaitOutcome.FAILED:
                break
            try:
                async with asyncio.timeout_at(deadline_s):
                    await self._workload.changed()
            except TimeoutError:
                self._deadlines.expired(
                    "the wait for samples on lent GPUs", self._config.wait_deadline_s
                )
                expired = True
        wait_s = loop.time() - started_s
        outcome = ended or WaitOutcome.REACHED
        self._recorder.emit(LentWaitEnded(outcome.value, wait_s, target or 0, size))
        return LentWait(wait_s=wait_s, outcome=outcome)

    async def _sync_standalone(self, version: int) -> None:
        replicas = self._fleet.in_state(
            ReplicaState.SERVING, ReplicaState.STALE, kind=ReplicaKind.STANDALONE
        )
        serving = [name for name in replicas if name in self._fleet.serving()]
        self._fleet.set_trainer(GpuState.SYNC)
        self._fleet.set_replicas(replicas, GpuState.SYNC)
        mode = PauseMode.KEEP if self._executor.capabilities.pause_keep else PauseMode.ABORT
        paused = await self._steps.each(
            "sync", "pause", serving, lambda name: self._executor.pause([name], mode)
        )
        alive = [name for name in replicas if name in paused or name not in serving]
        synced = await self._steps.sync(version, ReplicaKind.STANDALONE.value, alive)
        resumed = await self._steps.each(
            "sync", "resume", synced, lambda name: self._executor.resume([name])
        )
        await self._steps.admit("sync", [name for name in resumed if name not in serving])
        self._fleet.set_rollout(name for name in resumed if name in self._fleet.serving())
        self._fleet.set_trainer(GpuState.TRAIN_WAIT)

    async def _lend(self, version: int) -> tuple[str, ...]:
        executor, steps = self._executor, self._steps
        replicas = self._fleet.in_state(ReplicaState.ASLEEP, kind=ReplicaKind.HYBRID)
        await steps.once(
            "activate",
            "offload_optimizer_and_gradients",
            executor.offload_training(TrainingPart.OPTIMIZER_AND_GRADIENTS),
        )
        for name in replicas:
            self._fleet.move(name, ReplicaEvent.WAKE)
        woken = await steps.each(
            "activate",
            "wake_weights",
            replicas,
            lambda name: executor.wake([name], MemoryPart.WEIGHTS),
        )
        for name in woken:
            self._fleet.move(name, ReplicaEvent.WOKEN)
        synced = await steps.sync(version, ReplicaKind.HYBRID.value, woken)
        if not synced:
            return ()
        await steps.once(
            "activate", "offload_parameters", executor.offload_training(TrainingPart.PARAMETERS)
        )
        cached = await steps.each(
            "activate",
            "wake_kv_cache",
            synced,
            lambda name: executor.wake([name], MemoryPart.KV_CACHE),
        )
        resumed = await steps.each(
            "activate", "resume", cached, lambda name: executor.resume([name])
        )
        return await steps.admit("activate", resumed)

    async def _return_gpus(self) -> None:
        """Do what every way back to STANDALONE_ONLY has in common, after an activation or half of
        one.
        """
        awake = self._fleet.in_state(
            ReplicaState.SERVING, ReplicaState.STALE, ReplicaState.WAKING, kind=ReplicaKind.HYBRID
        )
        for name in awake:
            self._fleet.move(name, ReplicaEvent.DRAIN)
        self._fleet.set_trainer(GpuState.SWITCH)
        stopped = await self._steps.each(
            "deactivate", "abort", awake, lambda name: self._executor.pause([name], PauseMode.ABORT)
        )
        for name in stopped:
            self._fleet.move(name, ReplicaEvent.SLEEP)
        await self._sleep(stopped)
        for part in (TrainingPart.PARAMETERS, TrainingPart.OPTIMIZER_AND_GRADIENTS):
            try:
                await self._steps.once(
                    "deactivate", f"reload_{part.value}", self._executor.reload_training(part)
                )
            except RECOVERABLE as error:
                self._block(f"training state did not come back: {error}")
        self._fleet.set_trainer(GpuState.TRAIN_WAIT)
        self._move(ControllerEvent.DEACTIVATED)

    async def _sleep(self, replicas: tuple[str, ...]) -> None:
        """Put replicas to sleep and prove that their memory is back: sleep, sleep again, then
        kill.
        """
        waiting = replicas
        for _ in range(_SLEEP_ATTEMPTS):
            free: dict[str, int] = {}

            async def sleep(name: str, free: dict[str, int] = free) -> None:
                free.update(await self._executor.sleep([name]))

            slept = await self._steps.each("deactivate", "sleep", waiting, sleep, fence=False)
            for name in slept:
                if not self._short_of_memory(name, free):
                    self._fleet.move(name, ReplicaEvent.SLEPT)
            waiting = self._fleet.in_state(ReplicaState.SLEEPING, kind=ReplicaKind.HYBRID)
            if free:
                self._recorder.emit(MemoryMeasured(free, self._required_bytes))
            if not waiting:
                return
        for name in waiting:
            free_bytes = await self._steps.fence(name, "its memory did not come back")
            self._recorder.emit(MemoryMeasured(free_bytes, self._required_bytes))
            short = self._short_of_memory(name, free_bytes)
            if short:
                self._block(short)

    def _short_of_memory(self, replica: str, free: Mapping[str, int]) -> str:
        """Return an empty string when training fits on the replica's GPUs, else what is missing."""
        for gpu in self._fleet.gpus(replica):
            required = self._required_bytes.get(gpu, 0)
            if free.get(gpu, 0) < required:
                return (
                    f"GPU {gpu} has {free.get(gpu, 0)} bytes free after {replica} slept; "
                    f"training needs {required}"
                )
        return ""

    def _block(self, reason: str) -> None:
        self._move(ControllerEvent.MEMORY_WITHHELD)
        raise MemoryWithheldError(reason)

    def _snapshot(self) -> DynamicScheduleContext:
        return self._workload.snapshot(
            last_activate_duration_s=self._activate_s,
            last_deactivate_duration_s=self._deactivate_s,
        )

    def _move(self, event: ControllerEvent) -> None:
        before, self._state = self._state, advance_controller(self._state, event)
        self._recorder.emit(ControllerMoved(before.value, self._state.value))

"""The two ways of the trainer's GPUs: to rollout, and back with their memory measured."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from functools import partial

from swingshift.executors.runtime.fleet import Fleet
from swingshift.executors.runtime.recorder import Recorder
from swingshift.executors.runtime.restarts import Restarts
from swingshift.executors.runtime.switching import RECOVERABLE, Steps
from swingshift.sdk.errors import SwingshiftError
from swingshift.sdk.events import MemoryMeasured
from swingshift.sdk.executor import Executor, MemoryPart, PauseMode, ReplicaKind, TrainingPart
from swingshift.sdk.lifecycle import ReplicaEvent, ReplicaState
from swingshift.sdk.metrics import GpuState

_SLEEP_ATTEMPTS = 2


class MemoryWithheldError(SwingshiftError):
    """GPU memory or training state did not come back; training must not start."""


class Lending:
    """Takes hybrid replicas through their steps; the controller says when, and keeps its state.

    Whatever happened on the way to rollout, `give_back` ends either with every trainer GPU shown to
    have the memory training needs, or with an error.
    """

    def __init__(
        self,
        executor: Executor,
        fleet: Fleet,
        recorder: Recorder,
        steps: Steps,
        restarts: Restarts,
    ) -> None:
        """Bind the parts.

        Args:
            executor: Acts.
            fleet: Book of replicas and GPUs.
            recorder: Hears what was measured.
            steps: Runs each step under its deadline.
            restarts: Brings dead hybrid replicas back while their GPUs are lent.
        """
        self._restarts = restarts
        self._executor = executor
        self._fleet = fleet
        self._recorder = recorder
        self._steps = steps
        self._required_bytes = {
            gpu.id: gpu.train_required_bytes for gpu in fleet.inventory.trainer_gpus
        }
        # replicas that may hold memory of the trainer's GPUs until it is measured free
        self._lent: tuple[str, ...] = ()

    @property
    def has_replicas(self) -> bool:
        """Whether a hybrid replica sleeps, or is dead and can be restarted."""
        return bool(self._hybrid(ReplicaState.ASLEEP)) or any(
            map(self._restarts.can_begin, self._hybrid(ReplicaState.DEAD))
        )

    async def lend(self, version: int) -> tuple[str, ...]:
        """Wake, sync and admit every sleeping hybrid replica, and restart the dead ones meanwhile.

        Returns:
            The replicas that serve now. The others that woke were fenced.

        Raises:
            ExecutorError: A step of the trainer failed; `give_back` undoes what was done.
            DeadlineExpiredError: It did not end in time; likewise.
        """
        executor, steps = self._executor, self._steps
        await steps.once(
            "activate",
            "offload_optimizer_and_gradients",
            lambda: executor.offload_training(TrainingPart.OPTIMIZER_AND_GRADIENTS),
        )
        asleep = self._hybrid(ReplicaState.ASLEEP)
        restarting = [
            name for name in self._hybrid(ReplicaState.DEAD) if self._restarts.begin(name)
        ]
        self._lent = (*asleep, *restarting)
        for name in asleep:
            self._fleet.move(name, ReplicaEvent.WAKE)
        # waited for only where there is nobody else: they are there for the next lending, if they
        # are up before this one ends
        restarted = () if asleep else await self._restarts.ended(restarting)
        woken = await steps.each(
            "activate",
            "wake_weights",
            (*asleep, *restarted),
            lambda name: executor.wake([name], MemoryPart.WEIGHTS),
        )
        for name in woken:
            if name in asleep:
                self._fleet.move(name, ReplicaEvent.WOKEN)
        synced = await steps.sync(version, ReplicaKind.HYBRID.value, woken)
        if not synced:
            return ()
        await self._offload_parameters("activate")
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

    async def clear_training_state(self) -> None:
        """Offload what a `lend` that failed half-way left on the GPUs, before `give_back`.

        What is measured free has to hold all of the training state, so none may be resident; if
        some stays, the measurement errs on the safe side.
        """
        if self._lent:
            with suppress(*RECOVERABLE):
                await self._offload_parameters("deactivate")

    async def give_back(self) -> None:
        """Stop hybrid replicas, prove that their memory is free, and reload the training state.

        Called after `lend`, whether it succeeded, failed or ended half-way, and again if it was
        itself cancelled half-way.

        Raises:
            MemoryWithheldError: Memory or training state did not come back.
        """
        for name in self._lent:
            await self._restarts.cancel(name)
        for name in self._hybrid(ReplicaState.SERVING, ReplicaState.STALE, ReplicaState.WAKING):
            self._fleet.move(name, ReplicaEvent.DRAIN)
        self._fleet.set_trainer(GpuState.SWITCH)
        stopped = await self._steps.each(
            "deactivate",
            "abort",
            self._hybrid(ReplicaState.DRAINING),
            lambda name: self._executor.pause([name], PauseMode.ABORT),
        )
        for name in stopped:
            self._fleet.move(name, ReplicaEvent.SLEEP)
        await self._sleep()
        await self._prove_memory()
        self._lent = ()
        for part in (TrainingPart.PARAMETERS, TrainingPart.OPTIMIZER_AND_GRADIENTS):
            await self._reload(part)
        self._fleet.set_trainer(GpuState.TRAIN_WAIT)

    async def _offload_parameters(self, switch: str) -> None:
        await self._steps.once(
            switch,
            "offload_parameters",
            lambda: self._executor.offload_training(TrainingPart.PARAMETERS),
        )

    async def _reload(self, part: TrainingPart) -> None:
        try:
            await self._steps.once(
                "deactivate",
                f"reload_{part.value}",
                partial(self._executor.reload_training, part),
            )
        except RECOVERABLE as error:
            raise MemoryWithheldError(f"training state did not come back: {error}") from error

    def _hybrid(self, *states: ReplicaState) -> tuple[str, ...]:
        return self._fleet.in_state(*states, kind=ReplicaKind.HYBRID)

    async def _sleep(self) -> None:
        """Put replicas to sleep; ASLEEP is only who gave enough memory back, at the second try."""
        for _ in range(_SLEEP_ATTEMPTS):
            waiting = self._hybrid(ReplicaState.SLEEPING)
            if not waiting:
                return
            free: dict[str, int] = {}

            async def sleep(name: str, free: dict[str, int] = free) -> None:
                free.update(await self._executor.sleep([name]))

            slept = await self._steps.each("deactivate", "sleep", waiting, sleep, fence=False)
            if free:
                self._recorder.emit(MemoryMeasured(free, self._required_bytes))
            for name in slept:
                if not self._short_of_memory(name, free):
                    self._fleet.move(name, ReplicaEvent.SLEPT)

    async def _prove_memory(self) -> None:
        """End every replica that was lent and is not ASLEEP, and measure its GPUs afterwards."""
        awake = [
            name for name in self._lent if self._fleet.status(name).state is not ReplicaState.ASLEEP
        ]
        if not awake:
            return
        free = await self._steps.fence(dict.fromkeys(awake, "its memory did not come back"))
        self._recorder.emit(MemoryMeasured(free, self._required_bytes))
        for name in awake:
            if short := self._short_of_memory(name, free):
                raise MemoryWithheldError(short)

    def _short_of_memory(self, replica: str, free: Mapping[str, int]) -> str:
        """Return an empty string when training fits on the replica's GPUs, else what is missing."""
        for gpu in self._fleet.gpus(replica):
            required = self._required_bytes.get(gpu, 0)
            if free.get(gpu, 0) < required:
                return (
                    f"GPU {gpu} has {free.get(gpu, 0)} bytes free after {replica} left it; "
                    f"training needs {required}"
                )
        return ""

"""Faults in a simulated cluster: each verb can fail, hang, be slow, answer late or lie about memory.

A scenario says so below ``executor:``, by script (`Fault`: the n-th call of a verb) or by seed
(`RandomFaults`: any call, with a probability). `FaultyExecutor` wraps the executor that would have
worked.
"""

from __future__ import annotations

import asyncio
import enum
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import TypeVar

import attrs

from swingshift.sdk.executor import (
    Capabilities,
    CapacityChange,
    CapacityEvent,
    Executor,
    ExecutorError,
    FitBatch,
    FitResult,
    Generation,
    GenerationRequest,
    Inventory,
    MemoryPart,
    PauseMode,
    Progress,
    SyncOutcome,
    TrainingPart,
)
from swingshift.sdk.validators import finite, integer

_T = TypeVar("_T")


class FaultKind(enum.StrEnum):
    """What goes wrong with a call."""

    FAIL = "fail"
    """It raises and has no effect."""
    HANG = "hang"
    """It never returns and has no effect."""
    SLOW = "slow"
    """It takes longer and then does its work."""
    LATE = "late"
    """It does its work at once and answers later."""
    SHORT_MEMORY = "short_memory"
    """It does its work and reports less free memory than there is (``sleep`` and ``kill`` alone)."""
    PARTIAL = "partial"
    """It reports failure for the first of its replicas (``sync_weights`` alone)."""


class Verb(enum.StrEnum):
    """The calls that can go wrong; a canary is a ``generate`` that the control plane makes itself."""

    GENERATE = "generate"
    CANARY = "canary"
    ABORT = "abort"
    PAUSE = "pause"
    RESUME = "resume"
    WAKE_WEIGHTS = "wake_weights"
    WAKE_KV_CACHE = "wake_kv_cache"
    SLEEP = "sleep"
    OFFLOAD_OPTIMIZER_AND_GRADIENTS = "offload_optimizer_and_gradients"
    OFFLOAD_PARAMETERS = "offload_parameters"
    RELOAD_OPTIMIZER_AND_GRADIENTS = "reload_optimizer_and_gradients"
    RELOAD_PARAMETERS = "reload_parameters"
    SYNC_WEIGHTS = "sync_weights"
    KILL = "kill"
    RESTART = "restart"
    FIT_STEP = "fit_step"


@attrs.frozen(kw_only=True)
class Fault:
    """One scripted fault.

    Attributes:
        verb: Which call.
        kind: What goes wrong.
        call: The first call it strikes, counted from 1; with ``replica``, among calls for that replica.
        times: How many calls in a row it strikes.
        replica: Strike only calls for this replica; None strikes any.
        seconds: Extra seconds of SLOW and LATE.
    """

    verb: Verb
    kind: FaultKind
    call: int = attrs.field(default=1, validator=integer(ge=1))
    times: int = attrs.field(default=1, validator=integer(ge=1))
    replica: str | None = None
    seconds: float = attrs.field(default=5.0, validator=finite(ge=0))


@attrs.frozen(kw_only=True)
class Loss:
    """A replica or GPU that goes at a time, and may come back.

    Attributes:
        subject: Name of the replica or GPU.
        at_s: When it goes, virtual seconds.
        back_after_s: Seconds until it is back; None when it stays away.
    """

    subject: str
    at_s: float = attrs.field(validator=finite(ge=0))
    back_after_s: float | None = None


@attrs.frozen(kw_only=True)
class RandomFaults:
    """Faults drawn by seed.

    Attributes:
        probability: For each call of a verb other than ``generate``.
        generate_probability: For each ``generate``, of which there are many more.
        kinds: Drawn from with equal weight.
        seconds: Extra seconds of SLOW and LATE.
        seed: Of the draws.
    """

    probability: float = attrs.field(default=0.0, validator=finite(ge=0, le=1))
    generate_probability: float = attrs.field(default=0.0, validator=finite(ge=0, le=1))
    kinds: tuple[FaultKind, ...] = (FaultKind.FAIL, FaultKind.SLOW)
    seconds: float = attrs.field(default=5.0, validator=finite(ge=0))
    seed: int = attrs.field(default=0, validator=integer(ge=0))


@attrs.frozen(kw_only=True)
class FaultPlan:
    """Everything that will go wrong in a run; empty by default."""

    script: tuple[Fault, ...] = ()
    losses: tuple[Loss, ...] = ()
    at_random: RandomFaults | None = None

    @property
    def is_empty(self) -> bool:
        """Whether nothing will go wrong."""
        return not self.script and not self.losses and self.at_random is None


class _Draw:
    """Decides which fault, if any, strikes a call."""

    def __init__(self, plan: FaultPlan) -> None:
        self._plan = plan
        self._calls: dict[tuple[Verb, str | None], int] = {}
        self._random = random.Random(plan.at_random.seed if plan.at_random else 0)

    def strike(self, verb: Verb, replicas: Sequence[str]) -> Fault | None:
        for subject in (None, *replicas):
            self._calls[verb, subject] = self._calls.get((verb, subject), 0) + 1
        for fault in self._plan.script:
            if fault.verb is verb and (fault.replica is None or fault.replica in replicas):
                call = self._calls[verb, fault.replica]
                if fault.call <= call < fault.call + fault.times:
                    return fault
        return self._by_chance(verb)

    def _by_chance(self, verb: Verb) -> Fault | None:
        chance = self._plan.at_random
        if chance is None or not chance.kinds:
            return None
        often = verb is Verb.GENERATE
        if self._random.random() >= (chance.generate_probability if often else chance.probability):
            return None
        return Fault(verb=verb, kind=self._random.choice(chance.kinds), seconds=chance.seconds)


class FaultyExecutor(Executor):
    """An executor whose verbs go wrong by plan; the faults that struck are kept for tests.

    Attributes:
        struck: Each fault that struck, in order.
    """

    def __init__(self, inner: Executor, plan: FaultPlan) -> None:
        """Wrap an executor.

        Args:
            inner: Does the work of every call that no fault prevents.
            plan: What goes wrong.
        """
        self.struck: list[Fault] = []
        self._inner = inner
        self._plan = plan
        self._draw = _Draw(plan)
        self._capacity: asyncio.Queue[CapacityEvent | None] = asyncio.Queue()
        self._timers: list[asyncio.TimerHandle] = []

    @property
    def capabilities(self) -> Capabilities:
        """Those of the inner executor, except that a deadline may expire."""
        return attrs.evolve(self._inner.capabilities, virtual_time=False)

    async def start(self) -> Inventory:
        """Start, and set the timers of losses."""
        inventory = await self._inner.start()
        loop = asyncio.get_running_loop()
        gpus = set(inventory.gpus)
        for loss in self._plan.losses:
            is_gpu = loss.subject in gpus
            gone = CapacityChange.GPU_LOST if is_gpu else CapacityChange.REPLICA_LOST
            back = CapacityChange.GPU_RETURNED if is_gpu else CapacityChange.REPLICA_READY
            self._timers.append(
                loop.call_later(loss.at_s, self._announce, CapacityEvent(gone, loss.subject))
            )
            if loss.back_after_s is not None:
                self._timers.append(
                    loop.call_later(
                        loss.at_s + loss.back_after_s,
                        self._announce,
                        CapacityEvent(back, loss.subject),
                    )
                )
        return inventory

    async def stop(self) -> None:
        """Stop, and end the event stream."""
        for timer in self._timers:
            timer.cancel()
        self._capacity.put_nowait(None)
        await self._inner.stop()

    async def events(self) -> AsyncIterator[CapacityEvent]:
        """Stream the planned losses and returns."""
        while (event := await self._capacity.get()) is not None:
            yield event

    async def generate(self, replica: str, request: GenerationRequest) -> Generation:
        """Generate, unless a fault strikes."""
        verb = Verb.CANARY if request.prompt.position < 0 else Verb.GENERATE
        return await self._call(verb, [replica], lambda: self._inner.generate(replica, request))

    async def abort(self, replica: str, request_ids: Sequence[str]) -> None:
        """Abort, unless a fault strikes."""
        await self._call(Verb.ABORT, [replica], lambda: self._inner.abort(replica, request_ids))

    def progress(self, replica: str) -> Progress:
        """Return the inner executor's counts."""
        return self._inner.progress(replica)

    async def pause(self, replicas: Sequence[str], mode: PauseMode) -> None:
        """Pause, unless a fault strikes."""
        await self._call(Verb.PAUSE, replicas, lambda: self._inner.pause(replicas, mode))

    async def resume(self, replicas: Sequence[str]) -> None:
        """Resume, unless a fault strikes."""
        await self._call(Verb.RESUME, replicas, lambda: self._inner.resume(replicas))

    async def wake(self, replicas: Sequence[str], part: MemoryPart) -> None:
        """Wake, unless a fault strikes."""
        await self._call(
            Verb(f"wake_{part.value}"), replicas, lambda: self._inner.wake(replicas, part)
        )

    async def sleep(self, replicas: Sequence[str]) -> Mapping[str, int]:
        """Sleep, unless a fault strikes."""
        return await self._measure(Verb.SLEEP, replicas, lambda: self._inner.sleep(replicas))

    async def offload_training(self, part: TrainingPart) -> None:
        """Offload, unless a fault strikes."""
        await self._call(
            Verb(f"offload_{part.value}"), (), lambda: self._inner.offload_training(part)
        )

    async def reload_training(self, part: TrainingPart) -> None:
        """Reload, unless a fault strikes."""
        await self._call(
            Verb(f"reload_{part.value}"), (), lambda: self._inner.reload_training(part)
        )

    async def sync_weights(
        self, version: int, replicas: Sequence[str]
    ) -> Mapping[str, SyncOutcome]:
        """Sync, unless a fault strikes."""
        fault = self._strike(Verb.SYNC_WEIGHTS, replicas)
        outcomes = dict(
            await self._under(fault, lambda: self._inner.sync_weights(version, replicas))
        )
        if fault is not None and fault.kind is FaultKind.PARTIAL:
            outcomes[fault.replica or replicas[0]] = SyncOutcome.FAILED
        return outcomes

    async def kill(self, replicas: Sequence[str]) -> Mapping[str, int]:
        """Kill, unless a fault strikes."""
        return await self._measure(Verb.KILL, replicas, lambda: self._inner.kill(replicas))

    async def restart(self, replicas: Sequence[str]) -> None:
        """Restart, unless a fault strikes."""
        await self._call(Verb.RESTART, replicas, lambda: self._inner.restart(replicas))

    async def fit_step(self, batch: FitBatch) -> FitResult:
        """Train, unless a fault strikes."""
        return await self._call(Verb.FIT_STEP, (), lambda: self._inner.fit_step(batch))

    async def discard(self, handles: Sequence[str]) -> None:
        """Discard; no fault strikes here, since nothing depends on it."""
        await self._inner.discard(handles)

    def _strike(self, verb: Verb, replicas: Sequence[str]) -> Fault | None:
        fault = self._draw.strike(verb, replicas)
        if fault is not None:
            self.struck.append(fault)
        return fault

    async def _call(
        self, verb: Verb, replicas: Sequence[str], work: Callable[[], Awaitable[_T]]
    ) -> _T:
        return await self._under(self._strike(verb, replicas), work)

    async def _measure(
        self, verb: Verb, replicas: Sequence[str], work: Callable[[], Awaitable[Mapping[str, int]]]
    ) -> Mapping[str, int]:
        fault = self._strike(verb, replicas)
        free_bytes = await self._under(fault, work)
        if fault is not None and fault.kind is FaultKind.SHORT_MEMORY:
            return dict.fromkeys(free_bytes, 0)
        return free_bytes

    async def _under(self, fault: Fault | None, work: Callable[[], Awaitable[_T]]) -> _T:
        if fault is None:
            return await work()
        if fault.kind is FaultKind.FAIL:
            raise ExecutorError(f"{fault.verb.value} failed by plan")
        if fault.kind is FaultKind.HANG:
            await asyncio.get_running_loop().create_future()
        if fault.kind is FaultKind.SLOW:
            await asyncio.sleep(fault.seconds)
        result = await work()
        if fault.kind is FaultKind.LATE:
            await asyncio.sleep(fault.seconds)
        return result

    def _announce(self, event: CapacityEvent) -> None:
        lost = (CapacityChange.REPLICA_LOST, CapacityChange.GPU_LOST)
        if event.change in lost:
            asyncio.get_running_loop().create_task(self._lose(event))
        else:
            self._capacity.put_nowait(event)

    async def _lose(self, event: CapacityEvent) -> None:
        if event.change is CapacityChange.REPLICA_LOST:
            await self._inner.kill([event.subject])
        self._capacity.put_nowait(event)

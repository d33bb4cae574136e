"""An executor whose verbs go wrong by plan, around one that would have worked."""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Iterator,
    Mapping,
    Sequence,
)
from typing import TypeVar

import attrs

from swingshift.executors.simulated.faults import Fault, FaultKind, FaultPlan, Loss, Verb
from swingshift.sdk.errors import ConfigError
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
    ReplicaLostError,
    SyncOutcome,
    TrainingPart,
)

_T = TypeVar("_T")
_log = logging.getLogger(__name__)
_SPARED_BY_CHANCE = (Verb.START, Verb.STOP)


class _Draw:
    """Decides which fault, if any, strikes a call."""

    def __init__(self, plan: FaultPlan) -> None:
        self.calls: Counter[tuple[Verb, str | None]] = Counter()
        self._plan = plan
        self._random = random.Random(plan.at_random.seed if plan.at_random else 0)

    def strike(self, verb: Verb, replicas: Sequence[str]) -> Fault | None:
        self.calls.update((verb, subject) for subject in (None, *replicas))
        for fault in self._plan.script:
            if fault.verb is verb and self._is_due(fault, replicas):
                return fault
        return self._by_chance(verb, replicas)

    def _is_due(self, fault: Fault, replicas: Sequence[str]) -> bool:
        counted = None if fault.verb.is_of_trainer else fault.replica
        if counted is not None and counted not in replicas:
            return False
        return fault.call <= self.calls[fault.verb, counted] < fault.call + fault.times

    def _by_chance(self, verb: Verb, replicas: Sequence[str]) -> Fault | None:
        chance = self._plan.at_random
        if chance is None or verb in _SPARED_BY_CHANCE:
            return None
        is_frequent = verb is Verb.GENERATE
        probability = chance.generate_probability if is_frequent else chance.probability
        if self._random.random() >= probability:
            return None
        kinds = [
            kind
            for kind in chance.kinds
            if verb.can(kind) and (replicas or kind is not FaultKind.DIE)
        ]
        if not kinds:
            return None
        return Fault(verb=verb, kind=self._random.choice(kinds), seconds=chance.seconds)


class FaultyExecutor(Executor):
    """Strikes calls as the plan says, and loses capacity when it says.

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
        self._inventory = Inventory(replicas=(), trainer_gpus=())
        self._lost_gpus: set[str] = set()
        # replicas that hold memory which was reported free
        self._withholding: set[str] = set()
        # calls that go on by themselves, and the replicas whose end ends them
        self._detached: dict[asyncio.Task[object], Sequence[str]] = {}
        self._reports: asyncio.Queue[CapacityEvent | None] = asyncio.Queue()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def capabilities(self) -> Capabilities:
        """Those of the inner executor, except that a deadline may expire."""
        return attrs.evolve(self._inner.capabilities, virtual_time=False)

    @property
    def calls(self) -> Mapping[tuple[Verb, str | None], int]:
        """How often each verb was called: for each replica, and under None in all."""
        return self._draw.calls

    async def start(self) -> Inventory:
        """Start, unless a fault strikes, and let time run towards the losses.

        Raises:
            ConfigError: The plan names a replica or a GPU that there is not.
        """
        self._inventory = await self._call(Verb.START, (), self._inner.start)
        self._check_names()
        for loss in self._plan.losses:
            self._spawn(self._lose(loss))
        return self._inventory

    async def stop(self) -> None:
        """End the stream of events and what goes on by itself; stop, unless a fault strikes."""
        tasks = (*self._tasks, *self._detached)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._reports.put_nowait(None)
        await self._call(Verb.STOP, (), self._inner.stop)

    async def events(self) -> AsyncIterator[CapacityEvent]:
        """Report what was lost and came back."""
        while (event := await self._reports.get()) is not None:
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
        verb = Verb(f"wake_{part.value}")
        await self._call(verb, replicas, lambda: self._inner.wake(replicas, part))

    async def sleep(self, replicas: Sequence[str]) -> Mapping[str, int]:
        """Sleep, unless a fault strikes."""

        async def sleep() -> Mapping[str, int]:
            free_bytes = await self._inner.sleep(replicas)
            self._withholding.difference_update(replicas)
            return free_bytes

        return await self._measure(Verb.SLEEP, replicas, sleep)

    async def offload_training(self, part: TrainingPart) -> None:
        """Offload, unless a fault strikes."""
        verb = Verb(f"offload_{part.value}")
        await self._train(verb, lambda: self._inner.offload_training(part))

    async def reload_training(self, part: TrainingPart) -> None:
        """Reload, unless a fault strikes or memory that was reported free is not.

        Raises:
            ExecutorError: There is no room.
        """
        verb = Verb(f"reload_{part.value}")

        async def reload() -> None:
            if self._withholding:
                holding = ", ".join(sorted(self._withholding))
                raise ExecutorError(f"no room for {part.value}: {holding} did not let go")
            await self._inner.reload_training(part)

        await self._train(verb, reload)

    async def sync_weights(
        self, version: int, replicas: Sequence[str]
    ) -> Mapping[str, SyncOutcome]:
        """Sync, unless a fault strikes."""
        fault = self._strike(Verb.SYNC_WEIGHTS, replicas)
        missed = ""
        if fault is not None and fault.kind is FaultKind.PARTIAL:
            missed = fault.replica or replicas[0]
        reached = [name for name in replicas if name != missed]
        self._expect_trainer_gpus()
        outcomes = await self._under(
            fault, replicas, lambda: self._inner.sync_weights(version, reached)
        )
        self._expect_trainer_gpus()
        return {name: outcomes.get(name, SyncOutcome.FAILED) for name in replicas}

    async def kill(self, replicas: Sequence[str]) -> Mapping[str, int]:
        """Kill, unless a fault strikes."""
        return await self._measure(Verb.KILL, replicas, lambda: self._end(replicas))

    async def restart(self, replicas: Sequence[str]) -> None:
        """Restart, unless a fault strikes or a GPU is lost."""

        async def restart() -> None:
            for name in replicas:
                if self._lost_gpus.intersection(self._gpus(name)):
                    raise ReplicaLostError(f"{name} cannot restart on a lost GPU")
            await self._inner.restart(replicas)

        await self._call(Verb.RESTART, replicas, restart)

    async def fit_step(self, batch: FitBatch) -> FitResult:
        """Train, unless a fault strikes or a trainer GPU is lost."""
        return await self._train(Verb.FIT_STEP, lambda: self._inner.fit_step(batch))

    async def discard(self, handles: Sequence[str]) -> None:
        """Discard, unless a fault strikes."""
        await self._call(Verb.DISCARD, (), lambda: self._inner.discard(handles))

    def _strike(self, verb: Verb, replicas: Sequence[str]) -> Fault | None:
        fault = self._draw.strike(verb, replicas)
        if fault is not None:
            self.struck.append(fault)
        return fault

    async def _call(
        self, verb: Verb, replicas: Sequence[str], work: Callable[[], Awaitable[_T]]
    ) -> _T:
        return await self._under(self._strike(verb, replicas), replicas, work)

    async def _train(self, verb: Verb, work: Callable[[], Awaitable[_T]]) -> _T:
        fault = self._strike(verb, ())
        self._expect_trainer_gpus()
        result = await self._under(fault, (), work)
        self._expect_trainer_gpus()
        return result

    async def _measure(
        self, verb: Verb, replicas: Sequence[str], work: Callable[[], Awaitable[Mapping[str, int]]]
    ) -> Mapping[str, int]:
        fault = self._strike(verb, replicas)
        if fault is not None and fault.kind is FaultKind.FALSE_MEMORY:
            return self._pretend(replicas)
        free_bytes = await self._under(fault, replicas, work)
        if fault is not None and fault.kind is FaultKind.SHORT_MEMORY:
            return dict.fromkeys(free_bytes, 0)
        return free_bytes

    async def _under(
        self, fault: Fault | None, replicas: Sequence[str], work: Callable[[], Awaitable[_T]]
    ) -> _T:
        if fault is None:
            return await work()
        if fault.kind is FaultKind.FAIL:
            raise ExecutorError(f"{fault.verb.value} failed by plan")
        if fault.kind is FaultKind.HANG:
            await asyncio.get_running_loop().create_future()
        if fault.kind is FaultKind.SLOW:
            await asyncio.sleep(fault.seconds)
        if fault.kind is FaultKind.DIE:
            await self._die(fault, replicas)
        if fault.kind is FaultKind.ZOMBIE:
            return await self._detach(fault, replicas, work)
        result = await work()
        if fault.kind is FaultKind.LATE:
            await asyncio.sleep(fault.seconds)
        return result

    async def _detach(
        self, fault: Fault, replicas: Sequence[str], work: Callable[[], Awaitable[_T]]
    ) -> _T:
        async def outlive() -> _T:
            await asyncio.sleep(fault.seconds)
            return await work()

        task = asyncio.get_running_loop().create_task(outlive())
        self._detached[task] = replicas
        task.add_done_callback(self._forget)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():
                raise ReplicaLostError(f"{fault.verb.value} ended with its replica") from None
            raise

    def _forget(self, task: asyncio.Task[_T]) -> None:
        del self._detached[task]
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.warning("a call that went on by itself failed: %s", error)

    async def _end(self, replicas: Sequence[str]) -> Mapping[str, int]:
        """Kill replicas, and with them what goes on by itself."""
        for task, subjects in self._detached.items():
            if set(subjects).intersection(replicas):
                task.cancel()
        self._withholding.difference_update(replicas)
        return await self._inner.kill(replicas)

    def _pretend(self, replicas: Sequence[str]) -> Mapping[str, int]:
        """Return what training needs as free bytes of each GPU of replicas."""
        required = {gpu.id: gpu.train_required_bytes for gpu in self._inventory.trainer_gpus}
        gpus = [(name, gpu) for name in replicas for gpu in self._gpus(name)]
        self._withholding.update(name for name, gpu in gpus if gpu in required)
        return {gpu: required.get(gpu, 0) for _, gpu in gpus}

    async def _die(self, fault: Fault, replicas: Sequence[str]) -> None:
        victim = fault.replica or replicas[0]
        await self._end([victim])
        self._spawn(self._report(CapacityChange.REPLICA_LOST, victim, fault.seconds))
        if victim in replicas:
            raise ReplicaLostError(f"{victim} died during {fault.verb.value}, by plan")

    async def _lose(self, loss: Loss) -> None:
        await asyncio.sleep(loss.at_s)
        if loss.subject not in self._inventory.gpus:
            await self._end([loss.subject])
            await self._report(CapacityChange.REPLICA_LOST, loss.subject)
            if loss.back_after_s is not None:
                await self._report(CapacityChange.REPLICA_READY, loss.subject, loss.back_after_s)
            return
        self._lost_gpus.add(loss.subject)
        await self._end(
            [replica.id for replica in self._inventory.replicas if loss.subject in replica.gpus]
        )
        await self._report(CapacityChange.GPU_LOST, loss.subject)
        if loss.back_after_s is not None:
            await asyncio.sleep(loss.back_after_s)
            self._lost_gpus.discard(loss.subject)
            await self._report(CapacityChange.GPU_RETURNED, loss.subject)

    async def _report(self, change: CapacityChange, subject: str, after_s: float = 0.0) -> None:
        await asyncio.sleep(after_s)
        self._reports.put_nowait(CapacityEvent(change, subject))

    def _spawn(self, work: Coroutine[object, object, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _gpus(self, replica: str) -> tuple[str, ...]:
        (gpus,) = (known.gpus for known in self._inventory.replicas if known.id == replica)
        return gpus

    def _expect_trainer_gpus(self) -> None:
        lost = [gpu.id for gpu in self._inventory.trainer_gpus if gpu.id in self._lost_gpus]
        if lost:
            raise ExecutorError(f"the trainer cannot act: {', '.join(lost)} lost")

    def _check_names(self) -> None:
        replicas = {replica.id for replica in self._inventory.replicas}
        for key, name, known in self._names(replicas):
            if name not in known:
                raise ConfigError(
                    f"executor.faults.{key}: there is no {name!r}; expected one of "
                    f"{', '.join(sorted(known))}"
                )

    def _names(self, replicas: set[str]) -> Iterator[tuple[str, str, set[str]]]:
        for index, fault in enumerate(self._plan.script):
            if fault.replica is not None:
                yield f"script[{index}].replica", fault.replica, replicas
        for index, loss in enumerate(self._plan.losses):
            yield f"losses[{index}].subject", loss.subject, replicas | set(self._inventory.gpus)

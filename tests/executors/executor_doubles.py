"""Executors that break the contract, each in one way, and the observed one that keeps it.

All are the simulated executor of a small world. `ObservedExecutor` keeps payloads, as an adapter
with tokens would, and `EveryDoor` sees through it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence

import attrs
from tests.executors.support import lengths_of, small_config, small_options

from swingshift.executors.simulated.executor import SimulatedExecutor
from swingshift.executors.simulated.loop import VirtualLoop
from swingshift.executors.simulated.options import SimulatedOptions
from swingshift.executors.simulated.task import SimulatedTask
from swingshift.sdk.config import RunConfig
from swingshift.sdk.executor import (
    Capabilities,
    CapacityEvent,
    ExecutorError,
    FinishReason,
    FitBatch,
    FitResult,
    Generation,
    GenerationRequest,
    Inventory,
    MemoryPart,
    PauseMode,
    Progress,
    Prompt,
    ReplicaLostError,
    SyncOutcome,
    TrainingPart,
    VersionSpan,
)
from swingshift.sdk.testing import BackDoor, ExecutorUnderTest

BUDGET = 2_000
MOMENT_S = 0.5
_CONFIG = small_config()
_OPTIONS = small_options()
_PART_BYTES = 10**9


class ObservedExecutor(SimulatedExecutor):
    """The simulated executor with payloads, and a count of what really trained."""

    def __init__(self, config: RunConfig = _CONFIG, options: SimulatedOptions = _OPTIONS) -> None:
        super().__init__(config, options, lengths_of(config, options))
        self.payloads: dict[str, int] = {}
        self.trained: Counter[int] = Counter()

    async def generate(self, replica: str, request: GenerationRequest) -> Generation:
        answer = await super().generate(replica, request)
        before = self.payloads.get(request.resume_from, 0) if request.resume_from else 0
        self.payloads[answer.handle] = before + answer.new_tokens
        return answer

    async def fit_step(self, batch: FitBatch) -> FitResult:
        started_s = asyncio.get_running_loop().time()
        result = await super().fit_step(batch)
        # training takes time, and a repeated answer none
        self.trained[batch.batch_id] += asyncio.get_running_loop().time() > started_s
        return result

    async def discard(self, handles: Sequence[str]) -> None:
        for handle in handles:
            self.payloads.pop(handle, None)


class EveryDoor(BackDoor):
    """Sees all there is to see."""

    def __init__(self, executor: ObservedExecutor) -> None:
        self._executor = executor

    async def in_flight(self, replica: str) -> int:
        seen = self._executor._engines[replica].progress
        return seen.running + seen.waiting

    async def token_count(self, replica: str) -> int:
        return self._executor._engines[replica].progress.tokens

    async def free_bytes(self, gpu: str) -> int:
        executor = self._executor
        free = int(executor._machine.gpu_bytes)
        if gpu.startswith("trainer"):
            free -= sum(
                int(executor._machine.state_bytes[part])
                for part in TrainingPart
                if part not in executor._offloaded
            )
        for name, replica in executor._replicas.items():
            if gpu in replica.gpus:
                free -= _PART_BYTES * len(executor._awake[name])
        return free

    async def weight_version(self, replica: str) -> int | None:
        version = self._executor._engines[replica]._version
        return None if version < 0 else version

    async def times_trained(self, batch_id: int) -> int:
        return self._executor.trained[batch_id]

    async def payload_tokens(self, handle: str) -> int | None:
        return self._executor.payloads.get(handle)


def long_prompts(count: int) -> tuple[Prompt, ...]:
    """Return prompts both of whose responses are longer than the budget."""
    lengths = lengths_of(_CONFIG, _OPTIONS)
    task = SimulatedTask(lengths, 48)
    found = [i for i in range(len(task)) if min(lengths.lengths(i)) > 2 * BUDGET]
    return tuple(task.prompt(index) for index in found[:count])


def under_test(
    make: Callable[[], ObservedExecutor] = ObservedExecutor,
    observe: Callable[[ObservedExecutor], BackDoor] = EveryDoor,
) -> ExecutorUnderTest[ObservedExecutor]:
    """Return what the kit needs of an observed executor."""
    return ExecutorUnderTest(
        make=make,
        observe=observe,
        loop_factory=VirtualLoop,
        prompts=long_prompts(3),
        max_new_tokens=BUDGET,
        moment_s=MOMENT_S,
    )


class Modest(ObservedExecutor):
    """Offers no more than every executor must, and keeps that."""

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(pause_keep=False, lend=False, virtual_time=True)

    async def pause(self, replicas: Sequence[str], mode: PauseMode) -> None:
        if mode is PauseMode.KEEP:
            raise ExecutorError("the engine cannot hold requests")
        await super().pause(replicas, mode)

    async def wake(self, replicas: Sequence[str], part: MemoryPart) -> None:
        raise ExecutorError("the engine cannot wake")


class NamesTwoReplicasAlike(ObservedExecutor):
    async def start(self) -> Inventory:
        inventory = await super().start()
        return attrs.evolve(inventory, replicas=(*inventory.replicas, inventory.replicas[0]))


class ChangesItsCapabilities(ObservedExecutor):
    @property
    def capabilities(self) -> Capabilities:
        return attrs.evolve(super().capabilities, virtual_time=bool(self._replicas))


class ServesUnsyncedAtStart(ObservedExecutor):
    async def start(self) -> Inventory:
        inventory = await super().start()
        for engine in self._engines.values():
            engine.set_version(0)
        return inventory


class NamesHandlesByTheClock(ObservedExecutor):
    """Two responses that end together have one handle."""

    async def generate(self, replica: str, request: GenerationRequest) -> Generation:
        answer = await super().generate(replica, request)
        handle = f"{asyncio.get_running_loop().time():g} s"
        self.payloads[handle] = self.payloads.pop(answer.handle)
        return answer._replace(handle=handle)


class ExceedsTheBudget(ObservedExecutor):
    async def generate(self, replica: str, request: GenerationRequest) -> Generation:
        answer = await super().generate(replica, request)
        if answer.finish_reason is FinishReason.ABORT or request.resume_from:
            return answer
        *begin, last = answer.spans
        spans = (*begin, VersionSpan(last.version, last.tokens + 1))
        return answer._replace(new_tokens=answer.new_tokens + 1, spans=spans)


class LosesATokenOfASpan(ObservedExecutor):
    async def generate(self, replica: str, request: GenerationRequest) -> Generation:
        answer = await super().generate(replica, request)
        if not answer.spans:
            return answer
        *begin, last = answer.spans
        return answer._replace(spans=(*begin, VersionSpan(last.version, last.tokens - 1)))


class KeepsCancelledIds(ObservedExecutor):
    def __init__(self) -> None:
        super().__init__()
        self.cancelled: set[str] = set()

    async def generate(self, replica: str, request: GenerationRequest) -> Generation:
        if request.request_id in self.cancelled:
            raise ExecutorError(f"{request.request_id} is in flight")
        try:
            return await super().generate(replica, request)
        except asyncio.CancelledError:
            self.cancelled.add(request.request_id)
            raise


class GeneratesForNobody(ObservedExecutor):
    """Its engine goes on with a request whose call was cancelled."""

    async def generate(self, replica: str, request: GenerationRequest) -> Generation:
        try:
            return await super().generate(replica, request)
        except asyncio.CancelledError:
            ghost = request._replace(request_id=f"ghost of {request.request_id}")
            self.ghost = asyncio.ensure_future(super().generate(replica, ghost))
            self.ghost.add_done_callback(lambda task: task.cancelled() or task.exception())
            raise


class StartsTheBudgetAgain(ObservedExecutor):
    async def generate(self, replica: str, request: GenerationRequest) -> Generation:
        if request.resume_from:
            request = request._replace(max_new_tokens=BUDGET, generated_tokens=0)
        return await super().generate(replica, request)


class ContinuesAtHomeOnly(ObservedExecutor):
    def __init__(self) -> None:
        super().__init__()
        self.homes: dict[str, str] = {}

    async def generate(self, replica: str, request: GenerationRequest) -> Generation:
        handle = request.resume_from
        if handle is not None and self.homes[handle] != replica:
            raise ExecutorError(f"{replica} does not know {handle}")
        answer = await super().generate(replica, request)
        self.homes[answer.handle] = replica
        return answer


class ForgetsEarlierTokens(ObservedExecutor):
    async def generate(self, replica: str, request: GenerationRequest) -> Generation:
        answer = await super().generate(replica, request)
        self.payloads[answer.handle] = answer.new_tokens
        return answer


class AbortLooksLikeAnEnd(ObservedExecutor):
    """Its caller takes a part for a whole."""

    def __init__(self) -> None:
        super().__init__()
        self.aborted: set[str] = set()

    async def generate(self, replica: str, request: GenerationRequest) -> Generation:
        answer = await super().generate(replica, request)
        if request.request_id in self.aborted and answer.spans:
            return answer._replace(finish_reason=FinishReason.STOP)
        return answer

    async def abort(self, replica: str, request_ids: Sequence[str]) -> None:
        self.aborted.update(request_ids)
        await super().abort(replica, request_ids)


class AbortsRunningOnly(ObservedExecutor):
    async def abort(self, replica: str, request_ids: Sequence[str]) -> None:
        if self._engines[replica].progress.running:
            await super().abort(replica, request_ids)


class AbortsAll(ObservedExecutor):
    async def abort(self, replica: str, request_ids: Sequence[str]) -> None:
        self._engines[replica].abort_all()


class RaisesOnUnknownIds(ObservedExecutor):
    async def abort(self, replica: str, request_ids: Sequence[str]) -> None:
        seen = self.progress(replica)
        if seen.running + seen.waiting < len(request_ids):
            raise ExecutorError(f"one of {request_ids} is not in flight")
        await super().abort(replica, request_ids)


class AbortIsAFlag(ObservedExecutor):
    """The engine looks at it a little later."""

    async def abort(self, replica: str, request_ids: Sequence[str]) -> None:
        ids = list(request_ids)
        engine = self._engines[replica]
        asyncio.get_running_loop().call_later(0.2 * MOMENT_S, lambda: engine.abort(ids))


class ReportsNoProgress(ObservedExecutor):
    def progress(self, replica: str) -> Progress:
        return Progress(0, 0, 0)


class ReportsSleepersBusy(ObservedExecutor):
    def progress(self, replica: str) -> Progress:
        awake = len(self._awake[replica]) == len(MemoryPart)
        return super().progress(replica) if awake else Progress(0, 1, 0)


class PauseReturnsNothing(ObservedExecutor):
    """Throws away what requests had, where a pause aborts several."""

    def __init__(self) -> None:
        super().__init__()
        self.emptied: set[str] = set()

    async def generate(self, replica: str, request: GenerationRequest) -> Generation:
        answer = await super().generate(replica, request)
        if request.request_id in self.emptied:
            return answer._replace(new_tokens=0, spans=())
        return answer

    async def pause(self, replicas: Sequence[str], mode: PauseMode) -> None:
        running = [request for name in replicas for request in self._engines[name]._running]
        if mode is PauseMode.ABORT and len(running) > 1:
            self.emptied.update(running)
        await super().pause(replicas, mode)


class KeepIgnored(ObservedExecutor):
    """Pauses for a while only."""

    async def pause(self, replicas: Sequence[str], mode: PauseMode) -> None:
        await super().pause(replicas, mode)
        if mode is PauseMode.KEEP:
            for name in replicas:
                if self.progress(name).running:
                    loop = asyncio.get_running_loop()
                    loop.call_later(1.5 * MOMENT_S, self._engines[name].resume)


class DrainAborts(ObservedExecutor):
    async def pause(self, replicas: Sequence[str], mode: PauseMode) -> None:
        await super().pause(replicas, PauseMode.ABORT if mode is PauseMode.DRAIN else mode)


class KeepsOnceKept(ObservedExecutor):
    """Takes a paused replica for done with."""

    async def pause(self, replicas: Sequence[str], mode: PauseMode) -> None:
        if not all(self._engines[name]._paused for name in replicas):
            await super().pause(replicas, mode)


class DrainReturnsEarly(ObservedExecutor):
    async def pause(self, replicas: Sequence[str], mode: PauseMode) -> None:
        if mode is PauseMode.DRAIN and self.progress(replicas[0]).running:
            self.drain = asyncio.ensure_future(super().pause(replicas, mode))
            return
        await super().pause(replicas, mode)


class KeepReturnsEarly(ObservedExecutor):
    async def pause(self, replicas: Sequence[str], mode: PauseMode) -> None:
        if mode is PauseMode.KEEP and self.progress(replicas[0]).running:
            engine = self._engines[replicas[0]]
            asyncio.get_running_loop().call_later(0.2 * MOMENT_S, engine.pause)
            return
        await super().pause(replicas, mode)


class DrainsTheBusyOnly(ObservedExecutor):
    """Does not pause a replica that has nothing to do."""

    async def pause(self, replicas: Sequence[str], mode: PauseMode) -> None:
        if mode is PauseMode.ABORT or self.progress(replicas[0]).running:
            await super().pause(replicas, mode)


class CountsPauses(ObservedExecutor):
    """Needs as many resumes as there were pauses."""

    def __init__(self) -> None:
        super().__init__()
        self.pauses: Counter[str] = Counter()

    async def pause(self, replicas: Sequence[str], mode: PauseMode) -> None:
        self.pauses.update(replicas)
        await super().pause(replicas, mode)

    async def resume(self, replicas: Sequence[str]) -> None:
        self.pauses.subtract(replicas)
        await super().resume([name for name in replicas if self.pauses[name] <= 0])


class ResumesPausedOnly(ObservedExecutor):
    async def resume(self, replicas: Sequence[str]) -> None:
        if not all(self._engines[name]._paused for name in replicas):
            raise ExecutorError(f"one of {replicas} is not paused")
        await super().resume(replicas)


class FirstWakeForgetsTheCache(ObservedExecutor):
    def __init__(self) -> None:
        super().__init__()
        self.forgets = True

    async def wake(self, replicas: Sequence[str], part: MemoryPart) -> None:
        if part is MemoryPart.KV_CACHE and self.forgets:
            self.forgets = False
            return
        await super().wake(replicas, part)


class CrashesOnSecondWake(ObservedExecutor):
    async def wake(self, replicas: Sequence[str], part: MemoryPart) -> None:
        if any(part in self._awake[name] for name in replicas):
            raise ExecutorError(f"{part} is mapped already")
        await super().wake(replicas, part)


class SleepMeasuresOneGpu(ObservedExecutor):
    async def sleep(self, replicas: Sequence[str]) -> Mapping[str, int]:
        return dict(list((await super().sleep(replicas)).items())[:1])


class WithholdsMemory(ObservedExecutor):
    async def sleep(self, replicas: Sequence[str]) -> Mapping[str, int]:
        return dict.fromkeys(await super().sleep(replicas), _PART_BYTES)


class CrashesOnSecondSleep(ObservedExecutor):
    async def sleep(self, replicas: Sequence[str]) -> Mapping[str, int]:
        if not all(self._awake[name] for name in replicas):
            raise ExecutorError(f"one of {replicas} is asleep")
        return await super().sleep(replicas)


class SleepsWholeReplicasOnly(ObservedExecutor):
    async def sleep(self, replicas: Sequence[str]) -> Mapping[str, int]:
        if any(len(self._awake[name]) == 1 for name in replicas):
            raise ExecutorError(f"one of {replicas} is half awake")
        return await super().sleep(replicas)


class SleepLies(ObservedExecutor):
    """Reports what would be free, and frees nothing."""

    async def sleep(self, replicas: Sequence[str]) -> Mapping[str, int]:
        awake = {name: set(self._awake[name]) for name in replicas}
        free = await super().sleep(replicas)
        self._awake.update(awake)
        return free


class AnswersInItsSleep(ObservedExecutor):
    async def generate(self, replica: str, request: GenerationRequest) -> Generation:
        if not self._awake[replica] and not self._engines[replica].is_lost:
            return Generation("?", 1, FinishReason.STOP, (VersionSpan(0, 1),))
        return await super().generate(replica, request)


class CrashesOnSecondOffload(ObservedExecutor):
    async def offload_training(self, part: TrainingPart) -> None:
        if part in self._offloaded:
            raise ExecutorError(f"{part} is away already")
        await super().offload_training(part)


class ReloadsParametersOnly(ObservedExecutor):
    async def reload_training(self, part: TrainingPart) -> None:
        if part is TrainingPart.PARAMETERS:
            await super().reload_training(part)


class LosesAnOutcome(ObservedExecutor):
    async def sync_weights(
        self, version: int, replicas: Sequence[str]
    ) -> Mapping[str, SyncOutcome]:
        outcomes = dict(await super().sync_weights(version, replicas))
        if len(outcomes) > 1:
            outcomes.popitem()
        return outcomes


class SaysTheFirstVersion(ObservedExecutor):
    async def generate(self, replica: str, request: GenerationRequest) -> Generation:
        answer = await super().generate(replica, request)
        if len(answer.spans) == 1:
            return answer._replace(spans=(answer.spans[0]._replace(version=0),))
        return answer


class SaysTheLastVersion(ObservedExecutor):
    async def generate(self, replica: str, request: GenerationRequest) -> Generation:
        answer = await super().generate(replica, request)
        if len(answer.spans) > 1:
            span = VersionSpan(answer.spans[-1].version, answer.new_tokens)
            return answer._replace(spans=(span,))
        return answer


class SyncSkipsAReplica(ObservedExecutor):
    async def sync_weights(
        self, version: int, replicas: Sequence[str]
    ) -> Mapping[str, SyncOutcome]:
        reached = replicas[:1] if version > 1 else replicas
        await super().sync_weights(version, reached)
        return dict.fromkeys(replicas, SyncOutcome.SYNCED)


class KillLeavesRequestsHanging(ObservedExecutor):
    async def kill(self, replicas: Sequence[str]) -> Mapping[str, int]:
        for name in replicas:
            self._engines[name]._running.clear()
        return await super().kill(replicas)


class KilledIsOnlyUnavailable(ObservedExecutor):
    async def generate(self, replica: str, request: GenerationRequest) -> Generation:
        if self._engines[replica].is_lost:
            raise ExecutorError(f"{replica} is not available")
        return await super().generate(replica, request)


class CrashesOnSecondKill(ObservedExecutor):
    async def kill(self, replicas: Sequence[str]) -> Mapping[str, int]:
        if any(self._engines[name].is_lost for name in replicas):
            raise ReplicaLostError(f"one of {replicas} is gone")
        return await super().kill(replicas)


class KillMeasuresNothing(ObservedExecutor):
    async def kill(self, replicas: Sequence[str]) -> Mapping[str, int]:
        await super().kill(replicas)
        return {}


class KillLies(ObservedExecutor):
    """Reports what would be free, and frees nothing."""

    async def kill(self, replicas: Sequence[str]) -> Mapping[str, int]:
        awake = {name: set(self._awake[name]) for name in replicas}
        free = await super().kill(replicas)
        self._awake.update(awake)
        return free


class ServesUnsyncedAfterRestart(ObservedExecutor):
    async def restart(self, replicas: Sequence[str]) -> None:
        await super().restart(replicas)
        for name in replicas:
            self._engines[name].set_version(0)


class SyncHoldsItsLock(ObservedExecutor):
    """A sync that was cancelled blocks every later one."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = asyncio.Lock()

    async def sync_weights(
        self, version: int, replicas: Sequence[str]
    ) -> Mapping[str, SyncOutcome]:
        await self.lock.acquire()
        outcomes = await super().sync_weights(version, replicas)
        self.lock.release()
        return outcomes


class SleepHoldsItsLock(ObservedExecutor):
    """A sleep that was cancelled blocks every later one."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = asyncio.Lock()

    async def sleep(self, replicas: Sequence[str]) -> Mapping[str, int]:
        await self.lock.acquire()
        free = await super().sleep(replicas)
        self.lock.release()
        return free


class TakesNoTime(ObservedExecutor):
    async def fit_step(self, batch: FitBatch) -> FitResult:
        return attrs.evolve(await super().fit_step(batch), timing_s={})


class ForgetsItsResult(ObservedExecutor):
    async def fit_step(self, batch: FitBatch) -> FitResult:
        is_repeated = batch.batch_id in self._fitted
        result = await super().fit_step(batch)
        return attrs.evolve(result, metrics={"repeated": 1.0}) if is_repeated else result


class TrainsTwice(ObservedExecutor):
    async def fit_step(self, batch: FitBatch) -> FitResult:
        self._fitted.clear()
        return await super().fit_step(batch)


class RaisesOnUnknownHandles(ObservedExecutor):
    async def discard(self, handles: Sequence[str]) -> None:
        for handle in handles:
            if handle not in self.payloads:
                raise ExecutorError(f"{handle} is not here")
        await super().discard(handles)


class DiscardsNothing(ObservedExecutor):
    async def discard(self, handles: Sequence[str]) -> None:
        pass


class EventsGoOn(ObservedExecutor):
    async def events(self) -> AsyncIterator[CapacityEvent]:
        await asyncio.get_running_loop().create_future()
        return
        yield


class StopLeavesRequestsHanging(ObservedExecutor):
    async def stop(self) -> None:
        self._stopped.set()


class CrashesOnSecondStop(ObservedExecutor):
    async def stop(self) -> None:
        if self._stopped.is_set():
            raise ExecutorError("stopped already")
        await super().stop()


class StopNeedsAStart(ObservedExecutor):
    async def stop(self) -> None:
        if not self._replicas:
            raise ExecutorError("not started")
        await super().stop()


BROKEN: dict[type[ObservedExecutor], str] = {
    NamesTwoReplicasAlike: "start.inventory",
    ChangesItsCapabilities: "start.keeps_capabilities",
    ServesUnsyncedAtStart: "start.needs_sync",
    NamesHandlesByTheClock: "generate.answers_each",
    ExceedsTheBudget: "generate.keeps_budget",
    LosesATokenOfASpan: "generate.spans_sum",
    KeepsCancelledIds: "generate.cancelled",
    GeneratesForNobody: "generate.cancelled_in_engine",
    StartsTheBudgetAgain: "continued.keeps_budget_left",
    ContinuesAtHomeOnly: "continued.elsewhere",
    ForgetsEarlierTokens: "continued.keeps_payload",
    AbortLooksLikeAnEnd: "abort.returns_part",
    AbortsRunningOnly: "abort.returns_waiting",
    AbortsAll: "abort.spares_others",
    RaisesOnUnknownIds: "abort.ignores_unknown",
    AbortIsAFlag: "abort.acknowledged",
    ReportsNoProgress: "progress.counts",
    ReportsSleepersBusy: "progress.zero_when_not_awake",
    PauseReturnsNothing: "pause.abort_returns_all",
    KeepIgnored: "pause.keep_holds",
    DrainAborts: "pause.drain_completes",
    KeepsOnceKept: "pause.abort_after_keep",
    DrainReturnsEarly: "pause.empties_engine",
    KeepReturnsEarly: "pause.stops_engine",
    DrainsTheBusyOnly: "pause.holds_new_requests",
    CountsPauses: "pause.idempotent",
    ResumesPausedOnly: "resume.without_pause",
    FirstWakeForgetsTheCache: "memory.wake_serves",
    CrashesOnSecondWake: "memory.wake_idempotent",
    SleepMeasuresOneGpu: "memory.sleep_reports_every_gpu",
    WithholdsMemory: "memory.sleep_leaves_room",
    CrashesOnSecondSleep: "memory.sleep_idempotent",
    SleepsWholeReplicasOnly: "memory.sleep_after_partial_wake",
    SleepLies: "memory.sleep_measures",
    AnswersInItsSleep: "memory.sleeper_refuses",
    CrashesOnSecondOffload: "training.idempotent",
    ReloadsParametersOnly: "training.offload_frees",
    LosesAnOutcome: "weights.outcome_each",
    SaysTheFirstVersion: "weights.reach_spans",
    SaysTheLastVersion: "weights.split_spans",
    SyncSkipsAReplica: "weights.held",
    KillLeavesRequestsHanging: "kill.loses_requests",
    KilledIsOnlyUnavailable: "kill.refuses_requests",
    CrashesOnSecondKill: "kill.idempotent",
    KillMeasuresNothing: "kill.reports_every_gpu",
    KillLies: "kill.measures",
    ServesUnsyncedAfterRestart: "restart.needs_sync",
    SyncHoldsItsLock: "cancelled.recovers",
    SleepHoldsItsLock: "cancelled.recovers_switch",
    TakesNoTime: "fit.timings",
    ForgetsItsResult: "fit.repeats_result",
    TrainsTwice: "fit.trains_once",
    RaisesOnUnknownHandles: "discard.ignores_unknown",
    DiscardsNothing: "discard.frees",
    EventsGoOn: "events.end_at_stop",
    StopLeavesRequestsHanging: "stop.ends_requests",
    CrashesOnSecondStop: "stop.idempotent",
    StopNeedsAStart: "stop.after_failed_start",
}
"""Each double with the one promise it breaks."""

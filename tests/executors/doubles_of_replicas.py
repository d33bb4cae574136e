"""Executors that break one promise about weights, lost replicas, training or their end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence

import attrs
from tests.executors.executor_doubles import PART_BYTES, ObservedExecutor

from swingshift.sdk.executor import (
    CapacityEvent,
    ExecutorError,
    FitBatch,
    FitResult,
    Generation,
    GenerationRequest,
    ReplicaLostError,
    SyncOutcome,
    VersionSpan,
)


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
        outcomes = await super().sync_weights(version, reached)
        return {**dict.fromkeys(replicas, SyncOutcome.SYNCED), **outcomes}


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
        free = await super().kill(replicas)
        self.occupied_bytes.update(dict.fromkeys(free, PART_BYTES))
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


class SyncsTheDead(ObservedExecutor):
    async def sync_weights(
        self, version: int, replicas: Sequence[str]
    ) -> Mapping[str, SyncOutcome]:
        outcomes = await super().sync_weights(version, replicas)
        return dict.fromkeys(outcomes, SyncOutcome.SYNCED)


class SyncCrashesOnTheDead(ObservedExecutor):
    async def sync_weights(
        self, version: int, replicas: Sequence[str]
    ) -> Mapping[str, SyncOutcome]:
        outcomes = await super().sync_weights(version, replicas)
        if SyncOutcome.FAILED in outcomes.values():
            raise ExecutorError("the collective was aborted")
        return outcomes


class SyncAbortsOthers(ObservedExecutor):
    async def sync_weights(
        self, version: int, replicas: Sequence[str]
    ) -> Mapping[str, SyncOutcome]:
        _abort_others(self, replicas)
        return await super().sync_weights(version, replicas)


class KillsTheFirstOnly(ObservedExecutor):
    """Reports the others as if they were gone."""

    async def kill(self, replicas: Sequence[str]) -> Mapping[str, int]:
        await super().kill(replicas[:1])
        return self._free_bytes(replicas)


class KillsAllAtWork(ObservedExecutor):
    async def kill(self, replicas: Sequence[str]) -> Mapping[str, int]:
        for engine in self._engines.values():
            if engine.progress.running:
                engine.lose()
        return await super().kill(replicas)


class KilledHybridKeepsItsMemory(ObservedExecutor):
    """Reports what would be free."""

    async def kill(self, replicas: Sequence[str]) -> Mapping[str, int]:
        free = await super().kill(replicas)
        trainer_gpus = [gpu for gpu in free if gpu.startswith("trainer")]
        self.occupied_bytes.update(dict.fromkeys(trainer_gpus, PART_BYTES))
        return free


class KillWithholdsMemory(ObservedExecutor):
    async def kill(self, replicas: Sequence[str]) -> Mapping[str, int]:
        return dict.fromkeys(await super().kill(replicas), PART_BYTES)


class RestartsTheFirstOnly(ObservedExecutor):
    async def restart(self, replicas: Sequence[str]) -> None:
        await super().restart(replicas[:1])


class RestartAbortsOthers(ObservedExecutor):
    async def restart(self, replicas: Sequence[str]) -> None:
        _abort_others(self, replicas)
        await super().restart(replicas)


class RemembersTheLatestBatchOnly(ObservedExecutor):
    async def fit_step(self, batch: FitBatch) -> FitResult:
        result = await super().fit_step(batch)
        self._fitted = {batch.batch_id: result}
        return result


class DiscardsTheFirstOnly(ObservedExecutor):
    async def discard(self, handles: Sequence[str]) -> None:
        await super().discard(handles[:1])


class DiscardsAll(ObservedExecutor):
    async def discard(self, handles: Sequence[str]) -> None:
        self.payloads.clear()


def _abort_others(executor: ObservedExecutor, replicas: Sequence[str]) -> None:
    for name, engine in executor._engines.items():
        if name not in replicas:
            engine.abort_all()


BROKEN: dict[type[ObservedExecutor], str] = {
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
    SyncsTheDead: "weights.outcome_of_lost",
    SyncCrashesOnTheDead: "weights.outcome_of_lost",
    SyncAbortsOthers: "weights.spares_others",
    KillsTheFirstOnly: "kill.reaches_all",
    KillsAllAtWork: "kill.spares_others",
    KilledHybridKeepsItsMemory: "kill.measures",
    KillWithholdsMemory: "kill.leaves_room",
    RestartsTheFirstOnly: "restart.reaches_all",
    RestartAbortsOthers: "restart.spares_others",
    RemembersTheLatestBatchOnly: "fit.trains_once",
    DiscardsTheFirstOnly: "discard.frees",
    DiscardsAll: "discard.frees",
}
"""Each double with the one promise it breaks."""

"""Executors that break one promise about pauses, memory or the trainer's state."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence

from tests.executors.executor_doubles import MOMENT_S, PART_BYTES, ObservedExecutor

from swingshift.sdk.executor import (
    ExecutorError,
    FinishReason,
    Generation,
    GenerationRequest,
    MemoryPart,
    PauseMode,
    ReplicaKind,
    TrainingPart,
    VersionSpan,
)


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
    """Where a replica is paused alone."""

    async def pause(self, replicas: Sequence[str], mode: PauseMode) -> None:
        if mode is PauseMode.KEEP and len(replicas) == 1 and self.progress(replicas[0]).running:
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
    """Where a replica wakes alone."""

    def __init__(self) -> None:
        super().__init__()
        self.forgets = True

    async def wake(self, replicas: Sequence[str], part: MemoryPart) -> None:
        if part is MemoryPart.KV_CACHE and self.forgets and len(replicas) == 1:
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
        return dict.fromkeys(await super().sleep(replicas), PART_BYTES)


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
        free = await super().sleep(replicas)
        self.occupied_bytes.update(dict.fromkeys(free, PART_BYTES))
        return free


class AnswersInItsFirstSleep(ObservedExecutor):
    async def generate(self, replica: str, request: GenerationRequest) -> Generation:
        if not self._awake[replica] and self._engines[replica]._version < 0:
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


class PausesTheFirstOnly(ObservedExecutor):
    async def pause(self, replicas: Sequence[str], mode: PauseMode) -> None:
        await super().pause(replicas[:1], mode)


class PausesAll(ObservedExecutor):
    async def pause(self, replicas: Sequence[str], mode: PauseMode) -> None:
        await super().pause(list(self._engines), mode)


class ResumesTheFirstOnly(ObservedExecutor):
    async def resume(self, replicas: Sequence[str]) -> None:
        await super().resume(replicas[:1])


class ResumesAll(ObservedExecutor):
    async def resume(self, replicas: Sequence[str]) -> None:
        await super().resume(list(self._engines))


class WakesTheFirstOnly(ObservedExecutor):
    async def wake(self, replicas: Sequence[str], part: MemoryPart) -> None:
        await super().wake(replicas[:1], part)


class WakesAll(ObservedExecutor):
    async def wake(self, replicas: Sequence[str], part: MemoryPart) -> None:
        await super().wake(_hybrid(self), part)


class SleepsTheFirstOnly(ObservedExecutor):
    """Reports the others as if they slept."""

    async def sleep(self, replicas: Sequence[str]) -> Mapping[str, int]:
        await super().sleep(replicas[:1])
        return self._free_bytes(replicas)


class SleepsAll(ObservedExecutor):
    async def sleep(self, replicas: Sequence[str]) -> Mapping[str, int]:
        await super().sleep(_hybrid(self))
        return self._free_bytes(replicas)


class FourthWakeFails(ObservedExecutor):
    def __init__(self) -> None:
        super().__init__()
        self.wakes = 0

    async def wake(self, replicas: Sequence[str], part: MemoryPart) -> None:
        self.wakes += part is MemoryPart.WEIGHTS
        if self.wakes > 3:
            raise ExecutorError("out of memory")
        await super().wake(replicas, part)


class LeaksAtEverySleep(ObservedExecutor):
    def __init__(self) -> None:
        super().__init__()
        self.leaked_bytes = 0

    async def sleep(self, replicas: Sequence[str]) -> Mapping[str, int]:
        free = {gpu: n - self.leaked_bytes for gpu, n in (await super().sleep(replicas)).items()}
        self.leaked_bytes += PART_BYTES
        return free


class NeverOffloadsParameters(ObservedExecutor):
    async def offload_training(self, part: TrainingPart) -> None:
        if part is not TrainingPart.PARAMETERS:
            await super().offload_training(part)


def _hybrid(executor: ObservedExecutor) -> list[str]:
    replicas = executor._replicas.values()
    return [replica.id for replica in replicas if replica.kind is ReplicaKind.HYBRID]


BROKEN: dict[type[ObservedExecutor], str] = {
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
    AnswersInItsFirstSleep: "memory.sleeper_refuses",
    CrashesOnSecondOffload: "training.idempotent",
    ReloadsParametersOnly: "training.offload_frees",
    PausesTheFirstOnly: "pause.reaches_all",
    PausesAll: "pause.spares_others",
    ResumesTheFirstOnly: "resume.reaches_all",
    ResumesAll: "resume.spares_others",
    WakesTheFirstOnly: "memory.wake_reaches_all",
    WakesAll: "memory.wake_spares_others",
    SleepsTheFirstOnly: "memory.sleep_reaches_all",
    SleepsAll: "memory.sleep_spares_others",
    FourthWakeFails: "memory.lent_again",
    LeaksAtEverySleep: "memory.lent_again",
    NeverOffloadsParameters: "training.offload_frees",
}
"""Each double with the one promise it breaks."""

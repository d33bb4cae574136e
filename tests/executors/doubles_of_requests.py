"""Executors that break one promise about their start or about single requests."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import attrs
from tests.executors.executor_doubles import BUDGET, MOMENT_S, ObservedExecutor

from swingshift.sdk.executor import (
    Capabilities,
    ExecutorError,
    FinishReason,
    Generation,
    GenerationRequest,
    Inventory,
    MemoryPart,
    Progress,
    VersionSpan,
)


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
}
"""Each double with the one promise it breaks."""

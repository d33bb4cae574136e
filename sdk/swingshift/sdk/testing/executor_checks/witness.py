"""An executor between a check and the one under test: it sets deadlines and keeps a record."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from typing import TypeVar

from swingshift.sdk.executor import (
    Capabilities,
    CapacityEvent,
    Executor,
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
from swingshift.sdk.testing.executor_checks.promise import BrokenPromise

_T = TypeVar("_T")


class Witness(Executor):
    """Passes every verb on.

    Attributes:
        calls: Every call so far, in words.
        is_started: Whether a call of `start` came to its end.
    """

    def __init__(self, executor: Executor, deadline_s: float) -> None:
        """Stand in front of an executor.

        Args:
            executor: The one under test.
            deadline_s: Seconds after which a call counts as hanging.
        """
        self._executor = executor
        self._deadline_s = deadline_s
        self._raised: list[tuple[Exception, str]] = []
        self.calls: list[str] = []
        self.is_started = False

    def call_that_raised(self, error: BaseException) -> str | None:
        """Return the call, in words, that raised an error; None if none of them did."""
        return next((call for raised, call in self._raised if raised is error), None)

    @property
    def capabilities(self) -> Capabilities:
        """What the executor declares."""
        return self._executor.capabilities

    async def start(self) -> Inventory:
        """Pass it on."""
        inventory = await self._timed("start()", self._executor.start())
        self.is_started = True
        return inventory

    async def stop(self) -> None:
        """Pass it on."""
        await self._timed("stop()", self._executor.stop())

    def events(self) -> AsyncIterator[CapacityEvent]:
        """Pass it on; the stream has no deadline."""
        self.calls.append("events()")
        return self._executor.events()

    async def generate(self, replica: str, request: GenerationRequest) -> Generation:
        """Pass it on."""
        words = f"generate({replica}, {request.request_id}: at most {request.max_new_tokens} tokens"
        words += f" after {request.generated_tokens})" if request.resume_from else ")"
        return await self._timed(words, self._executor.generate(replica, request))

    async def abort(self, replica: str, request_ids: Sequence[str]) -> None:
        """Pass it on."""
        call = f"abort({replica}, {_list(request_ids)})"
        await self._timed(call, self._executor.abort(replica, request_ids))

    def progress(self, replica: str) -> Progress:
        """Pass it on; it is asked too often to be recorded."""
        return self._executor.progress(replica)

    async def pause(self, replicas: Sequence[str], mode: PauseMode) -> None:
        """Pass it on."""
        call = f"pause({_list(replicas)}, {mode.name})"
        await self._timed(call, self._executor.pause(replicas, mode))

    async def resume(self, replicas: Sequence[str]) -> None:
        """Pass it on."""
        await self._timed(f"resume({_list(replicas)})", self._executor.resume(replicas))

    async def wake(self, replicas: Sequence[str], part: MemoryPart) -> None:
        """Pass it on."""
        call = f"wake({_list(replicas)}, {part.name})"
        await self._timed(call, self._executor.wake(replicas, part))

    async def sleep(self, replicas: Sequence[str]) -> Mapping[str, int]:
        """Pass it on."""
        return await self._timed(f"sleep({_list(replicas)})", self._executor.sleep(replicas))

    async def offload_training(self, part: TrainingPart) -> None:
        """Pass it on."""
        await self._timed(f"offload_training({part.name})", self._executor.offload_training(part))

    async def reload_training(self, part: TrainingPart) -> None:
        """Pass it on."""
        await self._timed(f"reload_training({part.name})", self._executor.reload_training(part))

    async def sync_weights(
        self, version: int, replicas: Sequence[str]
    ) -> Mapping[str, SyncOutcome]:
        """Pass it on."""
        call = f"sync_weights({version}, {_list(replicas)})"
        return await self._timed(call, self._executor.sync_weights(version, replicas))

    async def kill(self, replicas: Sequence[str]) -> Mapping[str, int]:
        """Pass it on."""
        return await self._timed(f"kill({_list(replicas)})", self._executor.kill(replicas))

    async def restart(self, replicas: Sequence[str]) -> None:
        """Pass it on."""
        await self._timed(f"restart({_list(replicas)})", self._executor.restart(replicas))

    async def fit_step(self, batch: FitBatch) -> FitResult:
        """Pass it on."""
        call = f"fit_step(batch {batch.batch_id})"
        return await self._timed(call, self._executor.fit_step(batch))

    async def discard(self, handles: Sequence[str]) -> None:
        """Pass it on."""
        await self._timed(f"discard({_list(handles)})", self._executor.discard(handles))

    async def _timed(self, call: str, verb: Awaitable[_T]) -> _T:
        self.calls.append(call)
        deadline = asyncio.timeout(self._deadline_s)
        try:
            async with deadline:
                return await verb
        except Exception as error:
            if deadline.expired() and isinstance(error, TimeoutError):
                raise BrokenPromise(f"{call} did not return in {self._deadline_s:g} s") from error
            self._raised.append((error, call))
            raise


def _list(names: Sequence[str]) -> str:
    return f"[{', '.join(names)}]"

"""What happens when capacity comes and goes: replicas are restarted and catch up with the weights.

Two tasks beside the fit loop. One listens to the executor's capacity events and books them. The
other syncs STALE standalone replicas at the current version whenever the trainer's GPUs are not
computing. A restart runs by itself for each replica that died, a bounded number of times.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine

from swingshift.executors.runtime.changes import Changes
from swingshift.executors.runtime.controller import DynamicResourceController
from swingshift.executors.runtime.deadlines import AdapterFaultError
from swingshift.executors.runtime.fleet import Fleet
from swingshift.executors.runtime.restarts import Restarts
from swingshift.sdk.executor import CapacityChange, CapacityEvent, Executor, ReplicaKind


class Recovery:
    """Keeps the fleet as large as the hardware allows, beside a running fit loop."""

    def __init__(
        self,
        executor: Executor,
        fleet: Fleet,
        controller: DynamicResourceController,
        restarts: Restarts,
        changes: Changes,
        *,
        on_error: Callable[[BaseException], None],
    ) -> None:
        """Bind the parts.

        Args:
            executor: Reports capacity.
            fleet: Book of replicas and GPUs.
            controller: Syncs replicas that are behind.
            restarts: Brings dead replicas back.
            changes: Notified whenever a replica's state changed.
            on_error: Called when recovery itself fails; the run cannot go on then.
        """
        self._executor = executor
        self._fleet = fleet
        self._controller = controller
        self._restarts = restarts
        self._changes = changes
        self._on_error = on_error
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Begin both tasks; called once, when the run begins."""
        self._fleet.on_dead = self._bring_back
        self._restarts.on_end = self._report
        self._tasks = [
            self._spawn(self._listen(), "capacity events"),
            self._spawn(self._keep_current(), "catch-up syncs"),
        ]

    async def stop(self) -> None:
        """End both tasks and every restart; called once, when the run ends."""
        for task in self._tasks:
            task.cancel()
        try:
            await asyncio.gather(*self._tasks, return_exceptions=True)
        finally:
            await self._restarts.stop()

    def _spawn(self, work: Coroutine[object, object, None], name: str) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work, name=name)
        task.add_done_callback(self._report)
        return task

    def _report(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._on_error(error)

    async def _listen(self) -> None:
        events = self._executor.events()
        while (event := await self._next(events)) is not None:
            self._book(event)

    @staticmethod
    async def _next(events: AsyncIterator[CapacityEvent]) -> CapacityEvent | None:
        """Return the next event, None after the last.

        Raises:
            AdapterFaultError: The stream broke.
        """
        try:
            return await anext(events, None)
        except Exception as error:
            words = f"{type(error).__name__}: {error}"
            raise AdapterFaultError(f"the executor's events ended with {words}") from error

    def _book(self, event: CapacityEvent) -> None:
        subject = event.subject
        if event.change is CapacityChange.REPLICA_LOST:
            self._fleet.lose(subject, "the executor reported it")
        elif event.change is CapacityChange.REPLICA_READY:
            # it comes back in a known state, and where memory is the trainer's only while lent
            self._restarts.forgive(subject)
            self._bring_back(subject)
        elif event.change is CapacityChange.GPU_LOST:
            self._fleet.lose_gpu(subject)
            for name in self._fleet.on_gpu(subject):
                self._fleet.lose(name, f"its GPU {subject} is gone")
        else:
            self._fleet.return_gpu(subject)
            for name in self._fleet.on_gpu(subject):
                self._restarts.forgive(name)
                self._bring_back(name)

    def _bring_back(self, replica: str) -> None:
        """Restart a dead standalone replica; a hybrid one is restarted when GPUs are lent."""
        if self._fleet.kind(replica) is ReplicaKind.STANDALONE:
            self._restarts.begin(replica)

    async def _keep_current(self) -> None:
        while True:
            if self._controller.is_behind:
                await self._controller.catch_up()
            else:
                await self._changes.wait()

"""Restarting dead replicas, a bounded number of times each."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from swingshift.executors.runtime.deadlines import Deadlines
from swingshift.executors.runtime.fleet import Fleet
from swingshift.executors.runtime.recorder import Recorder
from swingshift.executors.runtime.switching import RECOVERABLE
from swingshift.sdk.events import Advisory, Event
from swingshift.sdk.executor import Executor
from swingshift.sdk.lifecycle import ReplicaEvent, ReplicaState


def _ignore(_task: asyncio.Task[None]) -> None:
    """Serve as ``on_end`` where nobody listens."""


class Restarts:
    """Runs one task per replica that is being restarted; DEAD becomes STALE when it succeeds.

    Also an event sink, for `StalenessReset`.

    Attributes:
        on_end: Called with the task of each restart that ended, in whatever way.
    """

    def __init__(
        self,
        executor: Executor,
        fleet: Fleet,
        recorder: Recorder,
        deadlines: Deadlines,
        *,
        deadline_s: float,
        attempts: int,
    ) -> None:
        """Bind the parts.

        Args:
            executor: Kills and restarts.
            fleet: Books what came of it, and who is expected back.
            recorder: Hears of failures.
            deadlines: Rule for a restart that does not end.
            deadline_s: Seconds for one restart.
            attempts: Restarts of one replica until it serves again, after which it stays away.
        """
        self._executor = executor
        self._fleet = fleet
        self._recorder = recorder
        self._deadlines = deadlines
        self._deadline_s = deadline_s
        self._attempts = attempts
        self._used: dict[str, int] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._is_over = False
        self.on_end: Callable[[asyncio.Task[None]], None] = _ignore

    def write(self, sequence: int, t_s: float, event: Event) -> None:
        """Take an event: who serves at a weight sync has its attempts back."""
        for replica in self._fleet.serving():
            self.forgive(replica)

    def can_begin(self, replica: str) -> bool:
        """Return whether a restart may begin.

        The replica is dead, its GPUs are there, it has attempts left and no restart is under way.
        """
        return (
            not self._is_over
            and replica not in self._tasks
            and self._fleet.status(replica).state is ReplicaState.DEAD
            and self._fleet.has_gpus(replica)
            and self._used.get(replica, 0) < self._attempts
        )

    def begin(self, replica: str) -> bool:
        """Restart a replica in a task of its own, where `can_begin` allows it.

        Returns:
            Whether a restart began.
        """
        if not self.can_begin(replica):
            return False
        self._fleet.expect(replica)
        work = self._restart(replica)
        task = asyncio.get_running_loop().create_task(work, name=f"restart {replica}")
        task.add_done_callback(self.on_end)
        self._tasks[replica] = task
        return True

    async def ended(self, replicas: Sequence[str]) -> tuple[str, ...]:
        """Return, once no restart of them is under way, the replicas that are back."""
        tasks = [self._tasks[name] for name in replicas if name in self._tasks]
        await asyncio.gather(*tasks, return_exceptions=True)
        return tuple(
            name for name in replicas if self._fleet.status(name).state is ReplicaState.STALE
        )

    def forgive(self, replica: str) -> None:
        """Count the attempts of a replica from zero again: it serves, or its GPU came back."""
        self._used.pop(replica, None)

    async def cancel(self, replica: str) -> None:
        """End a restart under way and return when it has; the replica stays DEAD."""
        task = self._tasks.get(replica)
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            # one that was cancelled before its first step has not cleaned up
            self._forget(replica, task)

    async def stop(self) -> None:
        """End every restart, and begin none afterwards."""
        self._is_over = True
        tasks = tuple(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _restart(self, replica: str) -> None:
        try:
            while self._used.get(replica, 0) < self._attempts and self._fleet.has_gpus(replica):
                is_back = await self._try_once(replica)
                # one that was cancelled, because its GPUs were needed, did not fail
                self._used[replica] = self._used.get(replica, 0) + 1
                if is_back:
                    self._fleet.move(replica, ReplicaEvent.RESTART)
                    return
            if self._fleet.has_gpus(replica):
                tries = f"{self._attempts} restarts failed"
                self._recorder.emit(Advisory(f"replica {replica} stays away: {tries}"))
        finally:
            self._forget(replica, self._tasks[replica])

    def _forget(self, replica: str, task: asyncio.Task[None]) -> None:
        if self._tasks.get(replica) is task:
            del self._tasks[replica]
            self._fleet.unexpect(replica)

    async def _try_once(self, replica: str) -> bool:
        try:
            async with self._deadlines.call(f"restart of {replica}", self._deadline_s):
                # fenced first: nobody knows what a replica that was lost still holds or does
                await self._executor.kill([replica])
                await self._executor.restart([replica])
        except RECOVERABLE as error:
            self._recorder.emit(Advisory(f"replica {replica} did not restart: {error}"))
            return False
        return self._fleet.has_gpus(replica)

"""The bounded queue between rollout and training. It pushes back when full; it never drops."""

from __future__ import annotations

import asyncio
import enum
from collections import deque
from collections.abc import Callable

from swingshift.executors.runtime.changes import Changes
from swingshift.sdk.executor import Sample


class WaitOutcome(enum.StrEnum):
    """The four ends of every wait."""

    REACHED = "reached"
    EXHAUSTED = "exhausted"
    FAILED = "failed"
    DEADLINE = "deadline"


def _never() -> bool:
    return False


class MessageQueue:
    """Finished samples in the order they were finished."""

    def __init__(self, capacity: int, changes: Changes) -> None:
        """Make an empty queue.

        Args:
            capacity: Samples it holds at most, 1 or more.
            changes: Notified whenever what is buffered, or can still come, changed.
        """
        self.capacity = capacity
        self._changes = changes
        self.total_put = 0
        self._samples: deque[Sample] = deque()
        self._ended = False
        self._failure: str | None = None
        self._error: BaseException | None = None

    def __len__(self) -> int:
        """Return how many samples are buffered."""
        return len(self._samples)

    @property
    def ended(self) -> bool:
        """No sample will be put any more: the data came to its end."""
        return self._ended

    @property
    def failure(self) -> str | None:
        """Why production failed, or None."""
        return self._failure

    @property
    def error(self) -> BaseException | None:
        """The exception behind `failure`, where there was one."""
        return self._error

    @property
    def samples(self) -> tuple[Sample, ...]:
        """What is buffered, oldest first."""
        return tuple(self._samples)

    def try_put(self, sample: Sample) -> bool:
        """Buffer a sample; False, and no effect, when the queue is full."""
        if len(self._samples) >= self.capacity:
            return False
        self._samples.append(sample)
        self.total_put += 1
        self._changes.notify()
        return True

    async def put(self, sample: Sample) -> None:
        """Buffer a sample, waiting while the queue is full. The caller owns the deadline."""
        while not self.try_put(sample):
            await self._changes.wait()

    def take(self, count: int) -> tuple[Sample, ...]:
        """Remove and return the ``count`` oldest samples.

        Raises:
            ValueError: There are fewer.
        """
        if count > len(self._samples):
            raise ValueError(
                f"asked for {count} samples, {len(self._samples)} are buffered; wait first"
            )
        taken = tuple(self._samples.popleft() for _ in range(count))
        self._changes.notify()
        return taken

    def end(self) -> None:
        """Say that the data is exhausted: no further `put` will come. Idempotent."""
        self._ended = True
        self._changes.notify()

    def fail(self, reason: str, error: BaseException | None = None) -> None:
        """Say that production failed. The first reason stays; what is buffered stays too."""
        if self._failure is None:
            self._failure, self._error = reason, error
        self._changes.notify()

    async def wait_for(
        self, count: int, deadline_s: float, *, unless: Callable[[], bool] = _never
    ) -> WaitOutcome:
        """Wait until ``count`` samples are buffered.

        Args:
            count: Samples, up to `capacity`.
            deadline_s: Seconds from now.
            unless: Says that waiting on is pointless; asked at every change.

        Returns:
            REACHED; FAILED (see `failure`, or ``unless`` said so); EXHAUSTED when the data ended
            below ``count``; DEADLINE.
        """
        try:
            async with asyncio.timeout(deadline_s):
                while True:
                    if self._failure is not None:
                        return WaitOutcome.FAILED
                    if len(self._samples) >= count:
                        return WaitOutcome.REACHED
                    if self._ended:
                        return WaitOutcome.EXHAUSTED
                    if unless():
                        return WaitOutcome.FAILED
                    await self._changes.wait()
        except TimeoutError:
            return WaitOutcome.DEADLINE

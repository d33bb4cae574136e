"""An asyncio event loop on virtual time: when nothing is ready, the clock jumps to the next timer.

Callbacks run in the order they became ready; timers of one moment fire in the order they were set.
Nothing depends on the wall clock, on hashing or on memory addresses, so one seed gives one trace.
"""

from __future__ import annotations

import asyncio
import heapq
from asyncio import Handle, TimerHandle
from collections import deque
from collections.abc import Callable
from contextvars import Context
from typing import TypeVarTuple, Unpack

from swingshift.sdk.errors import SwingshiftError

_Ts = TypeVarTuple("_Ts")
_MIN_TIMERS_TO_COMPACT = 256


class VirtualDeadlockError(SwingshiftError):
    """Nothing is ready and no timer is set, but tasks wait: on a real clock, for ever."""


class VirtualLoop(asyncio.BaseEventLoop):
    """A loop without sockets, threads, signals or sleep."""

    def __init__(self) -> None:
        """Start at time 0 with nothing to do."""
        super().__init__()
        self._now_s = 0.0
        self._runnable: deque[Handle] = deque()
        # (time, order of setting, handle): plain tuples, so that heap operations compare without
        # calling Python
        self._timers: list[tuple[float, int, TimerHandle]] = []
        self._timers_set = 0
        self._timers_cancelled = 0

    def time(self) -> float:
        """Return virtual seconds since the loop was made."""
        return self._now_s

    def call_soon(
        self,
        callback: Callable[[Unpack[_Ts]], object],
        *args: *_Ts,
        context: Context | None = None,
    ) -> Handle:
        """Run a callback after those that are ready already."""
        handle = Handle(callback, args, self, context)
        self._runnable.append(handle)
        return handle

    def call_later(
        self,
        delay: float,
        callback: Callable[[Unpack[_Ts]], object],
        *args: *_Ts,
        context: Context | None = None,
    ) -> TimerHandle:
        """Run a callback ``delay`` virtual seconds from now."""
        return self.call_at(self._now_s + delay, callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[[Unpack[_Ts]], object],
        *args: *_Ts,
        context: Context | None = None,
    ) -> TimerHandle:
        """Run a callback at a virtual time."""
        handle = TimerHandle(when, callback, args, self, context)
        self._timers_set += 1
        heapq.heappush(self._timers, (when, self._timers_set, handle))
        return handle

    def call_soon_threadsafe(
        self,
        callback: Callable[[*_Ts], object],
        *args: *_Ts,
        context: Context | None = None,
    ) -> Handle:
        """Run a callback soon; there is one thread, and a signal handler interrupts it."""
        return self.call_soon(callback, *args, context=context)

    def close(self) -> None:
        """Forget what is left to do."""
        self._runnable.clear()
        self._timers.clear()
        super().close()

    def _timer_handle_cancelled(self, handle: TimerHandle) -> None:
        self._timers_cancelled += 1
        cancelled = self._timers_cancelled
        if cancelled > _MIN_TIMERS_TO_COMPACT and cancelled > len(self._timers) // 2:
            self._timers = [timer for timer in self._timers if not timer[2].cancelled()]
            heapq.heapify(self._timers)
            self._timers_cancelled = 0

    def _run_once(self) -> None:
        """Run what is ready; `run_forever` of the base class calls this until told to stop."""
        runnable = self._runnable
        if not runnable:
            self._advance()
        for _ in range(len(runnable)):
            handle = runnable.popleft()
            if not handle.cancelled():
                handle._run()  # noqa: SLF001  # how every asyncio loop runs a handle

    def _advance(self) -> None:
        timers = self._timers
        while timers and timers[0][2].cancelled():
            heapq.heappop(timers)
            self._timers_cancelled -= 1
        if not timers:
            raise VirtualDeadlockError(self._who_waits())
        when = timers[0][0]
        self._now_s = max(self._now_s, when)
        while timers and timers[0][0] == when:
            handle = heapq.heappop(timers)[2]
            if handle.cancelled():
                self._timers_cancelled -= 1
            else:
                self._runnable.append(handle)

    def _who_waits(self) -> str:
        waiting = sorted(
            f"{task.get_name()} at {_position(task)}" for task in asyncio.all_tasks(self)
        )
        return (
            f"at virtual time {self._now_s:g} s nothing is ready and no timer is set; waiting: "
            f"{'; '.join(waiting) or 'nobody'}"
        )


def _position(task: asyncio.Task[object]) -> str:
    stack = task.get_stack()
    if not stack:
        return "its first step"
    frame = stack[-1]
    return f"{frame.f_code.co_qualname} line {frame.f_lineno}"

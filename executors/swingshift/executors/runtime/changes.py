"""Waking whoever waits for something to change: waits react to events, they never poll."""

from __future__ import annotations

import asyncio


class Changes:
    """A broadcast without memory: `notify` wakes every task that is in `wait` at that moment."""

    __slots__ = ("_waiters",)

    def __init__(self) -> None:
        """Start with nobody waiting."""
        self._waiters: list[asyncio.Future[None]] = []

    def notify(self) -> None:
        """Wake all present waiters, in the order they came."""
        if self._waiters:
            waiters, self._waiters = self._waiters, []
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(None)

    async def wait(self) -> None:
        """Return after the next `notify`.

        Check the condition before: a change already past is not seen.
        """
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter in self._waiters:
                self._waiters.remove(waiter)
            raise

"""SIGINT and SIGTERM: the first one ends a run in order, the second one ends the process."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from types import FrameType

INTERRUPTED_STATUS = 130
"""Exit status of a run that was interrupted, by either signal."""

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_Handler = Callable[[int, FrameType | None], object] | int | signal.Handlers | None


class Interrupts:
    """A context manager in whose body the two signals are handled, in the main thread.

    A signal that this process was started to ignore stays ignored.

    Attributes:
        received: The first signal; None before it.
        has_cancelled: Whether it cancelled the task.
    """

    def __init__(self, *, on_first: Callable[[], None], before_leaving: Callable[[], None]) -> None:
        """Bind what happens beside the ending itself.

        Args:
            on_first: Called on the run's loop after the first signal.
            before_leaving: Called from the signal handler before the process ends at the second;
                must be quick and take no lock.
        """
        self.received: signal.Signals | None = None
        self.has_cancelled = False
        self._on_first = on_first
        self._before_leaving = before_leaving
        self._task: asyncio.Task[object] | None = None
        self._is_held = False
        self._before: dict[signal.Signals, _Handler] = {}

    def cancel_on_signal(self, task: asyncio.Task[object]) -> None:
        """Let the first signal cancel a task; call it on the task's loop.

        It is cancelled at once if the signal has come already.
        """
        self._task = task
        if self.received is not None:
            self._interrupt()

    def hold(self) -> None:
        """Let the first signal cancel nothing from now on: the run is ending."""
        self._is_held = True

    def __enter__(self) -> Interrupts:
        for number in _SIGNALS:
            before = signal.getsignal(number)
            if before is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        if self.received is not None:
            self._before_leaving()
            os._exit(INTERRUPTED_STATUS)
        self.received = signal.Signals(number)
        if self._task is not None and not self._task.done():
            # wakes a loop that sleeps in the operating system
            self._task.get_loop().call_soon_threadsafe(self._interrupt)

    def _interrupt(self) -> None:
        self._on_first()
        if self._task is not None and not self._is_held:
            self.has_cancelled = True
            self._task.cancel()

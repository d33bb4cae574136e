"""Stamps events with sequence and time and hands them to everything that listens."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from swingshift.sdk.events import Event, EventSink


class Recorder:
    """One per run. `emit` is on the hot path of every request."""

    __slots__ = ("_loop", "_sequence", "_writes")

    def __init__(self, sinks: Iterable[EventSink]) -> None:
        """Bind to the running loop, whose clock stamps the events.

        Args:
            sinks: Called in this order for each event.
        """
        self._loop = asyncio.get_running_loop()
        self._sequence = 0
        self._writes = tuple(sink.write for sink in sinks)

    def emit(self, event: Event) -> None:
        """Stamp an event and pass it on."""
        sequence = self._sequence
        self._sequence = sequence + 1
        now = self._loop.time()
        for write in self._writes:
            write(sequence, now, event)

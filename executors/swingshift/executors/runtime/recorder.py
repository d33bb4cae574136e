"""Stamps events with sequence and time and hands them to everything that listens."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from swingshift.sdk.events import Event, EventSink

_Write = Callable[[int, float, Event], None]


class Recorder:
    """One per run. `emit` is on the hot path of every request."""

    __slots__ = ("_loop", "_sequence", "_subscribers", "_writes")

    def __init__(self) -> None:
        """Bind to the running loop, whose clock stamps the events."""
        self._loop = asyncio.get_running_loop()
        self._sequence = 0
        self._subscribers: list[tuple[EventSink, frozenset[type[Event]]]] = []
        self._writes: dict[type[Event], tuple[_Write, ...]] = {}

    def subscribe(self, sink: EventSink, *kinds: type[Event]) -> None:
        """Hand events to a sink, after the sinks that came before it.

        Args:
            sink: Gets the events.
            kinds: Classes of the events it gets; all of them when none is named.
        """
        self._subscribers.append((sink, frozenset(kinds)))
        self._writes.clear()

    def emit(self, event: Event) -> None:
        """Stamp an event and pass it on."""
        sequence = self._sequence
        self._sequence = sequence + 1
        kind = type(event)
        writes = self._writes.get(kind)
        if writes is None:
            writes = self._writes[kind] = self._who_wants(kind)
        now_s = self._loop.time()
        for write in writes:
            write(sequence, now_s, event)

    def _who_wants(self, kind: type[Event]) -> tuple[_Write, ...]:
        return tuple(sink.write for sink, kinds in self._subscribers if not kinds or kind in kinds)

"""The recorder: numbers without gaps, the loop's time, each sink what it asked for."""

from __future__ import annotations

import asyncio

from tests.executors.support import ListSink, run_virtual

from swingshift.executors.runtime.recorder import Recorder
from swingshift.sdk.events import Advisory, ControllerMoved, Event


class Numbered:
    """A sink that keeps sequence numbers and kinds."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, str]] = []

    def write(self, sequence: int, t_s: float, event: Event) -> None:
        """Keep what came."""
        self.seen.append((sequence, event.kind))


def test_events_are_numbered_and_timed() -> None:
    """Numbers count from 0 in each run; times are the loop's."""

    async def main() -> ListSink:
        recorder, sink = Recorder(), ListSink()
        recorder.subscribe(sink)
        for text in ("a", "b"):
            recorder.emit(Advisory(text))
            await asyncio.sleep(2.5)
        recorder.emit(Advisory("c"))
        return sink

    sink = run_virtual(main())
    assert sink.events == [Advisory("a"), Advisory("b"), Advisory("c")]
    assert sink.times_s == [0.0, 2.5, 5.0]


def test_a_sink_gets_the_kinds_it_named() -> None:
    """Others do not reach it; the numbers are those of the run, so gaps show what it left out."""

    async def main() -> list[list[tuple[int, str]]]:
        recorder, some, everything = Recorder(), Numbered(), Numbered()
        recorder.subscribe(some, ControllerMoved)
        recorder.emit(Advisory("a"))
        recorder.subscribe(everything)
        recorder.emit(ControllerMoved("x", "y"))
        recorder.emit(Advisory("b"))
        return [some.seen, everything.seen]

    assert run_virtual(main()) == [
        [(1, "controller_moved")],
        [(1, "controller_moved"), (2, "advisory")],
    ]


def test_sinks_are_called_in_the_order_they_subscribed() -> None:
    """A sink may rely on what an earlier one has made of the event."""
    called: list[str] = []

    class Named:
        def __init__(self, name: str) -> None:
            self.name = name

        def write(self, sequence: int, t_s: float, event: Event) -> None:
            called.append(self.name)

    async def main() -> None:
        recorder = Recorder()
        for name in ("first", "second"):
            recorder.subscribe(Named(name))
        recorder.emit(Advisory("a"))

    run_virtual(main())
    assert called == ["first", "second"]

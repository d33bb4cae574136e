"""Notices replicas that fail at their work, before they attract all of it.

A replica whose requests fail at once is always the least loaded, so routing by load would send it
every request.
"""

from __future__ import annotations

from collections.abc import Callable

from swingshift.sdk.events import Event, RequestReturned

FAILURES_IN_A_ROW = 3
"""Requests that must fail on one replica, one after the other, before it is taken out."""

_LOST = "lost"
_FAILED = frozenset({"failed", "deadline"})


class Health:
    """An event sink for `RequestReturned` that counts failures by replica since the last success.

    It comes last among the sinks, since what it calls reports events of its own.
    """

    def __init__(
        self, epoch_of: Callable[[str], int | None], on_sick: Callable[[str, str], None]
    ) -> None:
        """Start with every replica healthy.

        Args:
            epoch_of: The epoch of a replica in routing. What comes back from an earlier one says
                nothing about the replica that is there now.
            on_sick: Called with a replica and why it is to be taken out: at the first request that
                says it is gone, or after `FAILURES_IN_A_ROW`.
        """
        self._epoch_of = epoch_of
        self._on_sick = on_sick
        self._failures: dict[str, int] = {}

    def write(self, sequence: int, t_s: float, event: Event) -> None:
        """Take one event."""
        if not isinstance(event, RequestReturned):
            return
        if event.reason != _LOST and event.reason not in _FAILED:
            if self._failures:
                self._failures.pop(event.replica, None)
        elif event.epoch == self._epoch_of(event.replica):
            self._count(event)

    def _count(self, event: RequestReturned) -> None:
        if event.reason == _LOST:
            self._take_out(event.replica, "a request found it gone")
            return
        failures = self._failures.get(event.replica, 0) + 1
        self._failures[event.replica] = failures
        if failures >= FAILURES_IN_A_ROW:
            self._take_out(event.replica, f"{failures} requests in a row failed on it")

    def _take_out(self, replica: str, reason: str) -> None:
        self._failures.pop(replica, None)
        self._on_sick(replica, reason)

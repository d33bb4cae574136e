"""Measured rollout rates by kind of replica, for the snapshots policies see."""

from __future__ import annotations

from typing import ClassVar

from swingshift.sdk.events import Event, RequestReturned, RoutingChanged, RunStarted, StalenessReset
from swingshift.sdk.executor import FinishReason, ReplicaKind

_FINISHED = frozenset({FinishReason.STOP.value, FinishReason.LENGTH.value})


class _Meter:
    """Responses finished and seconds served by the replicas of one kind, in the present window."""

    def __init__(self) -> None:
        self.serving = 0
        self.since_s = 0.0
        self.served_s = 0.0
        self.responses = 0
        self.latest: float | None = None

    def book(self, t_s: float) -> None:
        if self.serving:
            self.served_s += t_s - self.since_s
        self.since_s = t_s

    def rate(self) -> float | None:
        return self.responses / self.served_s if self.served_s > 0.0 else None


class RolloutRates:
    """An event sink that knows samples per second of all serving replicas of each kind together.

    Attributes:
        WANTS: The events it needs; others are ignored.
    """

    WANTS: ClassVar = (RequestReturned, RoutingChanged, StalenessReset, RunStarted)

    def __init__(self) -> None:
        """Start without observations."""
        self._meters = {kind: _Meter() for kind in ReplicaKind}
        self._by_replica: dict[str, _Meter] = {}
        self._responses_per_sample = 1

    def write(self, sequence: int, t_s: float, event: Event) -> None:
        """Take one event."""
        if isinstance(event, RequestReturned):
            if event.reason in _FINISHED:
                meter = self._by_replica.get(event.replica)
                if meter is not None:
                    meter.responses += 1
        elif isinstance(event, RoutingChanged):
            meter = self._by_replica[event.replica]
            meter.book(t_s)
            meter.serving += 1 if event.routed else -1
        elif isinstance(event, StalenessReset):
            self._next_window(t_s)
        elif isinstance(event, RunStarted):
            self._responses_per_sample = event.responses_per_prompt
            self._by_replica = {
                replica: self._meters[ReplicaKind(kind)]
                for replica, kind in event.replica_kinds.items()
            }

    def samples_per_s(self, kind: ReplicaKind) -> float | None:
        """Return the rate of the latest whole window in which replicas of this kind served.

        A window lies between two weight syncs. Responses count for the replica that finished them.

        Returns:
            Samples per second, None before there was such a window.
        """
        latest = self._meters[kind].latest
        return None if latest is None else latest / self._responses_per_sample

    def _next_window(self, t_s: float) -> None:
        for meter in self._meters.values():
            meter.book(t_s)
            rate = meter.rate()
            if rate is not None:
                meter.latest = rate
            meter.served_s, meter.responses = 0.0, 0

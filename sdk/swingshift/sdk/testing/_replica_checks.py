"""Checks of state machines, weights, routing and requests."""

from __future__ import annotations

from typing import ClassVar

import attrs

from swingshift.sdk.events import (
    ControllerMoved,
    ReplicaMoved,
    RequestReturned,
    RequestRouted,
    RoutingChanged,
    StalenessReset,
    WeightsSynced,
)
from swingshift.sdk.executor import FinishReason, SyncOutcome
from swingshift.sdk.lifecycle import (
    CONTROLLER_TABLE,
    IllegalTransitionError,
    ReplicaEvent,
    ReplicaState,
    ReplicaStatus,
    advance_replica,
)
from swingshift.sdk.testing._run_view import Check, Report, RunView

_CONTROLLER_STEPS = {(before.value, after.value) for (before, _), after in CONTROLLER_TABLE.items()}
_RESTARTS = frozenset({"lost", "failed", "deadline"})
_CANCELLED = "cancelled"


class ReplicaLifecycle(Check):
    """Each replica moves as its state machine allows, from where it was."""

    name: ClassVar[str] = "replica_lifecycle"

    def on_replica_moved(self, event: ReplicaMoved) -> None:
        """Look for a step that leads from the replica's status to the one reported."""
        known = self.view.states.get(event.replica)
        if known is None:
            self.fail(f"replica {event.replica!r} is not in the inventory")
        elif known != event.before:
            self.fail(f"{event.replica} left {event.before!r} but was {known!r}")
        elif not _is_step(known, self.view.weights[event.replica], event):
            self.fail(
                f"{event.replica} went from {known!r} with weights of version "
                f"{self.view.weights[event.replica]} to {event.after!r} with {event.version}; "
                "no lifecycle step does that"
            )


def _is_step(state: str, version: int | None, event: ReplicaMoved) -> bool:
    if not {state, event.after} <= set(ReplicaState):
        return False
    status = ReplicaStatus(state=ReplicaState(state), version=version)
    after = ReplicaStatus(state=ReplicaState(event.after), version=event.version)
    for step in ReplicaEvent:
        try:
            sent = event.version if step is ReplicaEvent.SYNC else None
            if advance_replica(status, step, version=sent) == after:
                return True
        except IllegalTransitionError:
            continue
    return False


class ControllerLifecycle(Check):
    """The controller moves as its state machine allows, from where it was."""

    name: ClassVar[str] = "controller_lifecycle"

    def on_controller_moved(self, event: ControllerMoved) -> None:
        """Look the step up in the table."""
        if event.before != self.view.controller:
            self.fail(f"it left {event.before!r} but was {self.view.controller!r}")
        elif (event.before, event.after) not in _CONTROLLER_STEPS:
            self.fail(f"it went from {event.before!r} to {event.after!r}; no lifecycle step does")


class WeightVersions(Check):
    """Versions come in order; what serves got its version from a sync, the latest once done."""

    name: ClassVar[str] = "weight_versions"

    def __init__(self, view: RunView, report: Report) -> None:
        """Begin with weights of unknown age everywhere."""
        super().__init__(view, report)
        # version that a weight sync brought to a replica, until it lost its weights
        self._brought: dict[str, int] = {}

    def on_weights_synced(self, event: WeightsSynced) -> None:
        """Compare with the version in use; a sync brings the next or repeats it."""
        if event.version not in (self.view.version, self.view.version + 1):
            self.fail(f"version {event.version} was sent while {self.view.version} is in use")
        for replica, outcome in event.outcomes.items():
            if outcome == SyncOutcome.SYNCED:
                self._brought[replica] = event.version

    def on_replica_moved(self, event: ReplicaMoved) -> None:
        """Look for the sync that brought a replica what it begins to serve."""
        if event.version is None:
            self._brought.pop(event.replica, None)
        begins = event.after == ReplicaState.SERVING and event.before != ReplicaState.SERVING
        if begins and self._brought.get(event.replica) != event.version:
            self.fail(f"{event.replica} serves version {event.version}, which no sync brought it")

    def on_staleness_reset(self, event: StalenessReset) -> None:
        """Look at whoever serves when the next version's window begins."""
        if event.version != self.view.version + 1:
            self.fail(f"version {event.version} began after {self.view.version}")
        for replica, state in self.view.states.items():
            version = self.view.weights[replica]
            if state == ReplicaState.SERVING and version != event.version:
                self.fail(f"{replica} serves version {version} when {event.version} begins")


class Routing(Check):
    """Requests go to replicas that are in routing, under the latest epoch, and SERVING."""

    name: ClassVar[str] = "routing"

    _last_epoch = 0

    def on_replica_moved(self, event: ReplicaMoved) -> None:
        """Whoever stops serving has left routing before."""
        if event.after != ReplicaState.SERVING and event.replica in self.view.routing:
            self.fail(f"{event.replica} became {event.after!r} while in routing")

    def on_routing_changed(self, event: RoutingChanged) -> None:
        """Entries are by SERVING replicas under new epochs; exits end the epoch of the entry."""
        replica, epoch = event.replica, self.view.routing.get(event.replica)
        if not event.routed:
            if epoch != event.epoch:
                self.fail(f"{replica} left routing under epoch {event.epoch}, not {epoch}")
            return
        if epoch is not None:
            self.fail(f"{replica} entered routing twice")
        if event.epoch <= self._last_epoch:
            self.fail(f"{replica} entered under epoch {event.epoch}, not above {self._last_epoch}")
        if self.view.states.get(replica) != ReplicaState.SERVING:
            self.fail(f"{replica} entered routing while {self.view.states.get(replica)!r}")
        self._last_epoch = max(self._last_epoch, event.epoch)

    def on_request_routed(self, event: RequestRouted) -> None:
        """Compare with routing and with the replica's state."""
        replica, view = event.replica, self.view
        if view.states.get(replica) != ReplicaState.SERVING:
            self.fail(f"{event.request} was routed to {replica}, {view.states.get(replica)!r}")
        elif view.routing.get(replica) != event.epoch:
            self.fail(
                f"{event.request} was routed to {replica} under epoch {event.epoch}; in routing "
                f"under {view.routing.get(replica)}"
            )


@attrs.define
class _Response:
    lease: tuple[str, int] | None = None
    attempts: int = 0
    tokens: int = 0
    # at the end of the latest turn
    finished_tokens: int = 0
    version: int | None = None


class Requests(Check):
    """Every attempt that is routed returns once, and resumes with what its response has.

    A response that ended a turn by itself may have another one; its attempts count on.
    """

    name: ClassVar[str] = "requests"

    def __init__(self, view: RunView, report: Report) -> None:
        """Begin without requests."""
        super().__init__(view, report)
        self._responses: dict[str, _Response] = {}

    def on_request_routed(self, event: RequestRouted) -> None:
        """Begin an attempt."""
        response = self._responses.setdefault(event.request, _Response())
        if response.lease is not None:
            self.fail(f"{event.request} was routed again while on {response.lease[0]}")
        response.attempts += 1
        if event.attempt != response.attempts:
            self.fail(f"{event.request} began attempt {event.attempt}, not {response.attempts}")
        version = self.view.weights.get(event.replica)
        if event.resumed_tokens == 0 and version != response.version:
            # where a response must be of one version, it begins again under another
            response.tokens = response.finished_tokens = 0
        response.version = version
        if event.resumed_tokens != response.tokens:
            self.fail(
                f"{event.request} resumes with {event.resumed_tokens} tokens; its attempts left "
                f"{response.tokens}"
            )
        response.lease = (event.replica, event.epoch)

    def on_request_returned(self, event: RequestReturned) -> None:
        """End an attempt, and the response unless it may go on."""
        response = self._responses.get(event.request)
        if response is None or response.lease != (event.replica, event.epoch):
            self.fail(
                f"{event.request} returned from {event.replica} under epoch {event.epoch}, where "
                "it is not"
            )
            return
        response.lease = None
        if event.reason in _RESTARTS:
            response.tokens = response.finished_tokens = 0
        elif event.reason == _CANCELLED:
            # whoever gives a turn up in the middle has what there was before it
            response.tokens = response.finished_tokens
        elif event.reason == FinishReason.LENGTH:
            del self._responses[event.request]
        else:
            response.tokens += event.new_tokens
            if event.reason == FinishReason.STOP:
                response.finished_tokens = response.tokens

    def end(self) -> None:
        """Look for attempts that never returned."""
        for request, response in self._responses.items():
            if response.lease is not None:
                self.fail(f"{request} was routed to {response.lease[0]} and never returned")

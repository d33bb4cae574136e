"""One checker for the event log of any run, on any executor.

Attach an `EventLogChecker` to a run as an event sink and call `EventLogChecker.assert_sound` when
the run has ended, or give a log that was kept to `check_event_log`. Every check has a name:

- ``bookends``: `RunStarted` is the first event and `RunEnded` the last, each once.
- ``sequence``, ``time``: numbers have no gap, and time does not run backwards.
- ``replica_lifecycle``, ``controller_lifecycle``: each step is one of `swingshift.sdk.lifecycle`
  and begins where the one before ended.
- ``weight_versions``: versions follow each other; whoever begins to serve got its version from a
  sync, and no replica serves an old one after the next.
- ``routing``: requests go to SERVING replicas in routing, under the latest epoch.
- ``requests``: every attempt returns, once, and resumes with what its response has.
- ``activation_order``, ``deactivation_order``: the steps of a switch, in order, for each replica.
- ``memory_returned``: lent GPUs have what training needs, measured, before the trainer gets them.
- ``training_place``: trainer GPUs compute only while none is lent.
- ``exclusion``: fit steps, weight syncs and switches do not overlap on the trainer's GPUs.
- ``samples``: each is submitted, queued and trained at most once, in this order; none is lost.
- ``counts``: counts of active and queued samples are the true ones.
- ``queue_bound``, ``staleness``, ``capacity``: the three bounds of what is queued, submitted since
  a sync and in flight. Beyond the staleness budget only what a collection lacks is allowed.
- ``policy_order``: each question comes in its turn, and switches follow the answers.
- ``gpu_ledger``: the states of each GPU sum to the wall clock.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import TypeAlias

from swingshift.sdk.events import EVENT_TYPES, Event, RunEnded, RunStarted
from swingshift.sdk.testing._policy_checks import GpuLedger, PolicyOrder
from swingshift.sdk.testing._replica_checks import (
    ControllerLifecycle,
    ReplicaLifecycle,
    Requests,
    Routing,
    WeightVersions,
)
from swingshift.sdk.testing._run_view import Check, RunView
from swingshift.sdk.testing._sample_checks import (
    Capacity,
    Counts,
    QueueBound,
    Samples,
    Staleness,
)
from swingshift.sdk.testing._switch_checks import (
    ActivationOrder,
    DeactivationOrder,
    Exclusion,
    MemoryReturned,
    TrainingPlace,
)
from swingshift.sdk.testing.violation import ContractViolation, Violation

_Handler: TypeAlias = Callable[[Event], None]

_CHECKS: tuple[type[Check], ...] = (
    ReplicaLifecycle,
    ControllerLifecycle,
    WeightVersions,
    Routing,
    Requests,
    ActivationOrder,
    DeactivationOrder,
    MemoryReturned,
    TrainingPlace,
    Exclusion,
    Samples,
    Counts,
    QueueBound,
    Staleness,
    Capacity,
    PolicyOrder,
    GpuLedger,
)

CHECKS = ("bookends", "sequence", "time", *(check.name for check in _CHECKS))
"""The names of all checks."""


class EventLogChecker:
    """An event sink that checks a run while it goes on; it never raises before it is asked.

    Its memory grows with the number of samples of the run.
    """

    def __init__(self) -> None:
        """Wait for the first event."""
        self._violations: list[Violation] = []
        self._sequence: int | None = None
        self._next_sequence = 0
        self._now_s = -math.inf
        self._view: RunView | None = None
        self._ended = False
        self._closed = False
        self._is_headless = False
        self._checks: tuple[Check, ...] = ()
        self._handlers: Mapping[str, tuple[_Handler, ...]] = {}

    def write(self, sequence: int, t_s: float, event: Event) -> None:
        """Check one event against all before it."""
        self._sequence = sequence
        if sequence != self._next_sequence:
            self._report("sequence", f"number {sequence} came; expected {self._next_sequence}")
        self._next_sequence = sequence + 1
        if not self._now_s <= t_s < math.inf:
            self._report("time", f"{t_s!r} s came after {self._now_s!r} s")
        else:
            self._now_s = t_s
        if self._view is None:
            self._begin(event)
            return
        if self._ended:
            self._report("bookends", f"{event.kind} came after run_ended")
        elif isinstance(event, RunStarted):
            self._report("bookends", "run_started came twice")
        self._view.now_s = self._now_s
        for handle in self._handlers[event.kind]:
            handle(event)
        self._ended = self._ended or isinstance(event, RunEnded)

    @property
    def found(self) -> tuple[Violation, ...]:
        """What was found so far; ask after any event to stop at the first violation."""
        return tuple(self._violations)

    def violations(self) -> tuple[Violation, ...]:
        """Return all that was found, what the end of the log shows included; call it at the end."""
        if not self._closed:
            self._closed = True
            self._sequence = None
            if not self._ended:
                self._report("bookends", "the log has no run_ended at its end")
            for check in self._checks:
                check.end()
        return tuple(self._violations)

    def assert_sound(self) -> None:
        """Return if the run kept every promise.

        Raises:
            ContractViolation: It did not; all violations are listed.
        """
        violations = self.violations()
        if violations:
            raise ContractViolation("the run", violations)

    def _begin(self, event: Event) -> None:
        if isinstance(event, RunStarted):
            view = RunView(event, self._now_s)
            self._view = view
            self._checks = tuple(check(view, self._report) for check in _CHECKS)
            self._handlers = {kind: self._handlers_of(kind, view) for kind in EVENT_TYPES}
        elif not self._is_headless:
            self._is_headless = True
            self._report("bookends", f"{event.kind} came before run_started; ignored until then")

    def _handlers_of(self, kind: str, view: RunView) -> tuple[_Handler, ...]:
        found = (
            *(getattr(check, f"on_{kind}", None) for check in self._checks),
            getattr(view, f"on_{kind}", None),
            *(getattr(check, f"after_{kind}", None) for check in self._checks),
        )
        return tuple(handler for handler in found if handler is not None)

    def _report(self, check: str, text: str) -> None:
        self._violations.append(
            Violation(check=check, sequence=self._sequence, t_s=self._now_s, text=text)
        )


def check_event_log(events: Iterable[tuple[int, float, Event]]) -> tuple[Violation, ...]:
    """Return every breach of the contract in a finished log, in the order it shows.

    Args:
        events: Sequence number, time in seconds and event, in the order of the log.
    """
    checker = EventLogChecker()
    for sequence, t_s, event in events:
        checker.write(sequence, t_s, event)
    return checker.violations()

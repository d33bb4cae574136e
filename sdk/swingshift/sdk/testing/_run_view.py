"""What is known of a run at one point of its event log, and the base of the checks that use it."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, TypeAlias

from swingshift.sdk.events import (
    BatchCollected,
    BatchTrained,
    ControllerMoved,
    GpuStateChanged,
    ReplicaMoved,
    RoutingChanged,
    RunStarted,
    SampleGivenUp,
    SampleQueued,
    SampleSubmitted,
    StalenessReset,
)
from swingshift.sdk.executor import ReplicaKind
from swingshift.sdk.lifecycle import ControllerState, ReplicaState
from swingshift.sdk.metrics import GpuState

_HYBRID_STATE, _STANDALONE_STATE = ReplicaState.ASLEEP.value, ReplicaState.STALE.value

Report: TypeAlias = Callable[[str, str], None]
"""Takes the name of a check and what it found."""


class RunView:
    """The state of a run as its events tell it; events are taken at their word.

    Attributes:
        started: The inventory and sizes of the run.
        now_s: Time of the event at hand.
        states: `ReplicaState` of each replica, as text.
        weights: Version of each replica's weights; None while absent or of unknown age.
        routing: Epoch of each replica in routing.
        controller: `ControllerState`, as text.
        training: Trainer GPUs that compute.
        version: Newest parameter version whose sync is done; -1 before the first.
        active: Samples submitted and neither queued nor given up.
        queued: Samples in the queue.
        given_up: Number of samples given up.
        batch: Samples of the batch collected last.
        trained: Number of samples trained.
    """

    def __init__(self, started: RunStarted, now_s: float) -> None:
        """Begin as every run does: hybrid replicas asleep, standalone ones stale."""
        self.started = started
        self.now_s = now_s
        self.states = {
            replica: (_HYBRID_STATE if kind == ReplicaKind.HYBRID.value else _STANDALONE_STATE)
            for replica, kind in started.replica_kinds.items()
        }
        self.weights: dict[str, int | None] = dict.fromkeys(self.states)
        self.routing: dict[str, int] = {}
        self.controller = ControllerState.STANDALONE_ONLY.value
        self.training: set[str] = set()
        self.version = -1
        self.active: set[int] = set()
        self.queued: set[int] = set()
        self.given_up = 0
        self.batch: tuple[int, ...] = ()
        self.trained = 0

    def is_hybrid(self, replica: str) -> bool:
        """Return whether a replica shares its GPUs with the trainer."""
        return self.started.replica_kinds.get(replica) == ReplicaKind.HYBRID.value

    @property
    def is_dynamic(self) -> bool:
        """Whether a policy decides."""
        return self.started.policy != "none"

    def on_replica_moved(self, event: ReplicaMoved) -> None:
        """Follow a replica."""
        self.states[event.replica] = event.after
        self.weights[event.replica] = event.version

    def on_routing_changed(self, event: RoutingChanged) -> None:
        """Follow routing."""
        if event.routed:
            self.routing[event.replica] = event.epoch
        else:
            self.routing.pop(event.replica, None)

    def on_controller_moved(self, event: ControllerMoved) -> None:
        """Follow the controller."""
        self.controller = event.after

    def on_gpu_state_changed(self, event: GpuStateChanged) -> None:
        """Follow which trainer GPUs compute."""
        if event.state == GpuState.TRAIN.value:
            self.training.update(event.gpus)
        else:
            self.training.difference_update(event.gpus)

    def on_staleness_reset(self, event: StalenessReset) -> None:
        """Follow the parameter version."""
        self.version = event.version

    def on_sample_submitted(self, event: SampleSubmitted) -> None:
        """Follow a sample into generation."""
        self.active.add(event.sample)

    def on_sample_queued(self, event: SampleQueued) -> None:
        """Follow a sample into the queue."""
        self.active.discard(event.sample)
        self.queued.add(event.sample)

    def on_sample_given_up(self, event: SampleGivenUp) -> None:
        """Follow a sample out of the run."""
        self.active.discard(event.sample)
        self.given_up += 1

    def on_batch_collected(self, event: BatchCollected) -> None:
        """Follow samples out of the queue."""
        self.queued.difference_update(event.samples)
        self.batch = event.samples

    def on_batch_trained(self, event: BatchTrained) -> None:
        """Follow samples into the weights."""
        self.trained += len(self.batch)


class Check:
    """One promise about event logs.

    A subclass names it and has a method ``on_KIND`` for each kind of event it looks at, called
    before `view` follows the event, and ``after_KIND``, called afterwards. The methods report and
    never raise.
    """

    name: ClassVar[str]

    def __init__(self, view: RunView, report: Report) -> None:
        """Bind to one log.

        Args:
            view: What is known so far.
            report: Where violations go.
        """
        self.view = view
        self._report = report

    def fail(self, text: str) -> None:
        """Report a violation by the event at hand."""
        self._report(self.name, text)

    def end(self) -> None:
        """Look at what is left at the end of the log."""

"""A sound event log made by hand, and ways to break it.

One standalone replica ``s0`` on GPU ``r0``, one hybrid ``h0`` on ``t0``. The policy lends at
version 0; sample 1 is aborted on ``h0`` and ends on ``s0``; sample 2 fails for good; samples 0 and
1 are trained; version 1 ends the run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeAlias

import attrs

from swingshift.sdk.events import (
    Advisory,
    BatchCollected,
    BatchTrained,
    CapacityChanged,
    ControllerMoved,
    CycleEnded,
    DataExhausted,
    Event,
    FitStepEnded,
    GpuStateChanged,
    LentWaitEnded,
    MemoryMeasured,
    PolicyDecided,
    Rebalanced,
    ReplicaMoved,
    RequestReturned,
    RequestRouted,
    RoutingChanged,
    RunEnded,
    RunStarted,
    SampleGivenUp,
    SampleQueued,
    SampleSubmitted,
    StalenessReset,
    SwitchStep,
    WeightsSynced,
)

Log: TypeAlias = list[tuple[float, Event]]
Break: TypeAlias = Callable[[Log], Log]

STARTED = RunStarted(
    run="by hand",
    policy="Example",
    hybrid_gpus=("t0",),
    standalone_gpus=("r0",),
    replicas={"s0": ("r0",), "h0": ("t0",)},
    replica_kinds={"s0": "standalone", "h0": "hybrid"},
    train_required_bytes={"t0": 90},
    required_samples=2,
    trigger_parameter_sync_step=1,
    max_required_samples=3,
    concurrent_samples_per_replica=2,
    responses_per_prompt=1,
    total_samples=3,
)


def decided(question: str, version: int, effective: bool | int | str | None) -> PolicyDecided:
    """Return the record of an answer the guard left alone."""
    return PolicyDecided(question, version, effective, effective, False, "policy", {})


def step(switch: str, name: str, *replicas: str) -> SwitchStep:
    """Return a step of a switch that succeeded."""
    return SwitchStep(switch, name, replicas, 1.0, "done")


def queued(sample: int, active: int, queue_size: int) -> SampleQueued:
    """Return a sample's entry into the queue; what it is like does not matter."""
    return SampleQueued(sample, active, queue_size, 5.0, 10, 100, 100, 0, 0, 0)


def collected(*samples: int) -> BatchCollected:
    """Return the collection of batch 0."""
    return BatchCollected(0, samples, 1.0, 0)


def trained(batch: int) -> BatchTrained:
    """Return the end of a fit step at version 0."""
    return BatchTrained(batch, 0, {"update_actor": 4.0}, {}, 0, 0, 0, 0, 2, 200)


def _first_sync() -> list[Event]:
    return [
        decided("should_activate_after_step", 0, True),
        GpuStateChanged(("t0", "r0"), "sync"),
        ReplicaMoved("s0", "stale", "stale", 0),
        WeightsSynced(0, "standalone", {"s0": "synced"}, 1.0),
        ReplicaMoved("s0", "stale", "serving", 0),
        GpuStateChanged(("r0",), "rollout"),
        RoutingChanged("s0", True, 1),
        CapacityChanged(1, 2),
    ]


def _activation() -> list[Event]:
    return [
        ControllerMoved("standalone_only", "activating"),
        GpuStateChanged(("t0",), "switch"),
        step("activate", "offload_optimizer_and_gradients"),
        ReplicaMoved("h0", "asleep", "waking", None),
        step("activate", "wake_weights", "h0"),
        ReplicaMoved("h0", "waking", "stale", None),
        ReplicaMoved("h0", "stale", "stale", 0),
        WeightsSynced(0, "hybrid", {"h0": "synced"}, 1.0),
        step("activate", "offload_parameters"),
        step("activate", "wake_kv_cache", "h0"),
        step("activate", "resume", "h0"),
        step("activate", "canary", "h0"),
        ReplicaMoved("h0", "stale", "serving", 0),
        RoutingChanged("h0", True, 2),
        CapacityChanged(2, 3),
        ControllerMoved("activating", "hybrid_active"),
        GpuStateChanged(("t0",), "rollout"),
        decided("request_rebalance", 0, "all"),
        step("rebalance", "abort", "s0"),
        Rebalanced("all", {"s0": 0}),
        StalenessReset(0, 0, 0, 0),
    ]


def _generation() -> list[Event]:
    return [
        SampleSubmitted(0, 0, 1, 1),
        RequestRouted("0/0", "s0", 1, 1, 0),
        SampleSubmitted(1, 0, 2, 2),
        RequestRouted("1/0", "h0", 2, 1, 0),
        SampleSubmitted(2, 0, 3, 3),
        RequestRouted("2/0", "s0", 1, 1, 0),
        DataExhausted(3),
        decided("should_deactivate", 0, True),
        decided("deactivate_wait_samples", 0, 1),
        RequestReturned("0/0", "s0", 1, "stop", 100),
        queued(0, 2, 1),
        LentWaitEnded("reached", 5.0, 1, 1),
    ]


def _deactivation() -> list[Event]:
    return [
        ControllerMoved("hybrid_active", "deactivating"),
        RoutingChanged("h0", False, 2),
        CapacityChanged(1, 2),
        ReplicaMoved("h0", "serving", "draining", 0),
        GpuStateChanged(("t0",), "switch"),
        RequestReturned("1/0", "h0", 2, "abort", 50),
        step("deactivate", "abort", "h0"),
        RequestRouted("1/0", "s0", 1, 2, 50),
        ReplicaMoved("h0", "draining", "sleeping", None),
        step("deactivate", "sleep", "h0"),
        ReplicaMoved("h0", "sleeping", "asleep", None),
        MemoryMeasured({"t0": 100}, {"t0": 90}),
        step("deactivate", "reload_parameters"),
        step("deactivate", "reload_optimizer_and_gradients"),
        GpuStateChanged(("t0",), "train_wait"),
        ControllerMoved("deactivating", "standalone_only"),
    ]


def _training() -> list[Event]:
    return [
        RequestReturned("2/0", "s0", 1, "lost", 0),
        RequestRouted("2/0", "s0", 1, 2, 0),
        RequestReturned("1/0", "s0", 1, "length", 50),
        queued(1, 1, 2),
        collected(0, 1),
        GpuStateChanged(("t0",), "train"),
        RequestReturned("2/0", "s0", 1, "failed", 0),
        SampleGivenUp(2, 0, "it failed twice"),
        trained(0),
        GpuStateChanged(("t0",), "train_wait"),
        decided("should_activate_after_step", 1, False),
        ReplicaMoved("s0", "serving", "serving", 1),
        WeightsSynced(1, "standalone", {"s0": "synced"}, 1.0),
        StalenessReset(1, 0, 0, 0),
        FitStepEnded(1, {"step": 20.0}, 10.0, 0),
        CycleEnded(1, {"timing_s/step": 20.0}),
        decided("should_deactivate", 1, False),
        Advisory("the data is at its end"),
        RunEnded("exhausted", "", 2, 1, 1),
    ]


def timed(events: Iterable[Event]) -> Log:
    """Return events one second apart."""
    return [(float(second), event) for second, event in enumerate(events)]


def sound_log() -> Log:
    """Return a log that keeps every promise."""
    return timed(
        [STARTED, *_first_sync(), *_activation(), *_generation(), *_deactivation(), *_training()]
    )


def failed_activation_log() -> Log:
    """Return a log that keeps every promise up to the end of the activation, where it fails."""
    activation = _activation()[:-4]
    return timed([STARTED, *_first_sync(), *activation, RunEnded("failed", "a bug", 0, 3, 0)])


def static_log(started: RunStarted, *events: Event) -> Log:
    """Return a log of a run without a policy, whose standalone replica serves, around events."""
    first_sync = _first_sync()[1:-1]
    servers = CapacityChanged(1, min(2, started.max_required_samples))
    begun = [*first_sync, servers, StalenessReset(0, 0, 0, 0)]
    return timed([attrs.evolve(started, policy="none"), *begun, *events])


def find(log: Log, kind: type[Event], number: int = 0) -> int:
    """Return where the event of a kind with this number (from 0, or from the end) is."""
    return [index for index, (_, event) in enumerate(log) if isinstance(event, kind)][number]


def find_step(log: Log, switch: str, name: str) -> int:
    """Return where a step of a switch is."""
    found = [
        index
        for index, (_, event) in enumerate(log)
        if isinstance(event, SwitchStep) and (event.switch, event.step) == (switch, name)
    ]
    return found[0]


def without(kind: type[Event], *numbers: int) -> Break:
    """Break a log by leaving events of a kind out."""

    def broken(log: Log) -> Log:
        gone = {find(log, kind, number) for number in numbers}
        return [entry for index, entry in enumerate(log) if index not in gone]

    return broken


def without_step(switch: str, name: str) -> Break:
    """Break a log by leaving a step out."""
    return lambda log: [e for i, e in enumerate(log) if i != find_step(log, switch, name)]


def changed(kind: type[Event], *numbers: int, **fields: object) -> Break:
    """Break a log by other fields in events of a kind."""

    def broken(log: Log) -> Log:
        log = list(log)
        for number in numbers:
            index = find(log, kind, number)
            t_s, event = log[index]
            log[index] = (t_s, attrs.evolve(event, **fields))  # type: ignore[arg-type]
        return log

    return broken


def with_before_end(*events: Event) -> Break:
    """Break a log by events that come right before its last."""
    return lambda log: [*log[:-1], *((log[-2][0], event) for event in events), log[-1]]


def with_after(kind: type[Event], number: int, *events: Event) -> Break:
    """Break a log by events that come right after one of a kind."""

    def broken(log: Log) -> Log:
        at = find(log, kind, number)
        return [*log[: at + 1], *((log[at][0], event) for event in events), *log[at + 1 :]]

    return broken


def swapped(first: Callable[[Log], int], second: Callable[[Log], int]) -> Break:
    """Break a log by two events that happen in each other's place."""

    def broken(log: Log) -> Log:
        log, a, b = list(log), first(log), second(log)
        (a_s, one), (b_s, other) = log[a], log[b]
        log[a], log[b] = (a_s, other), (b_s, one)
        return log

    return broken


def moved(what: Callable[[Log], int], before: Callable[[Log], int]) -> Break:
    """Break a log by an event that happens right before an earlier one."""

    def broken(log: Log) -> Log:
        at, to = what(log), before(log)
        entry = (log[to][0], log[at][1])
        return [*log[:to], entry, *log[to:at], *log[at + 1 :]]

    return broken


def event_at(kind: type[Event], number: int = 0) -> Callable[[Log], int]:
    """Return what finds an event of a kind, for `swapped`."""
    return lambda log: find(log, kind, number)


def step_at(switch: str, name: str) -> Callable[[Log], int]:
    """Return what finds a step, for `swapped`."""
    return lambda log: find_step(log, switch, name)


def all_of(*breaks: Break) -> Break:
    """Break a log in several ways, one after the other."""

    def broken(log: Log) -> Log:
        for one in breaks:
            log = one(log)
        return log

    return broken

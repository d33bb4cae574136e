"""The fleet: every move reported, routing in line with it, every GPU booked."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.executors.controlplane import Plane, gpu_states, plane
from tests.executors.support import HYBRID, ROLLOUT_GPUS, STANDALONE, TRAINER_GPUS, run_virtual

from swingshift.sdk.events import GpuStateChanged, ReplicaMoved, RoutingChanged
from swingshift.sdk.executor import ReplicaKind
from swingshift.sdk.lifecycle import (
    REPLICA_TABLE,
    IllegalTransitionError,
    ReplicaEvent,
    ReplicaState,
)
from swingshift.sdk.metrics import GpuState


def made() -> Plane:
    """Return a plane whose executor has started; nothing has moved yet."""
    return run_virtual(plane())


def serve(p: Plane, replica: str) -> None:
    """Bring a stale replica into service."""
    p.fleet.move(replica, ReplicaEvent.SYNC, version=0)
    p.fleet.move(replica, ReplicaEvent.ADMIT)


def test_replicas_begin_asleep_or_stale() -> None:
    """Hybrid ones sleep, standalone ones have weights of unknown age; nobody is in routing."""
    p = made()
    assert p.fleet.in_state(ReplicaState.ASLEEP) == HYBRID
    assert p.fleet.in_state(ReplicaState.STALE) == STANDALONE
    assert p.fleet.in_state(ReplicaState.STALE, kind=ReplicaKind.HYBRID) == ()
    assert p.fleet.serving() == p.balancer.replicas == ()
    assert p.fleet.kind("hybrid-0") is ReplicaKind.HYBRID
    assert p.fleet.gpus("standalone-1") == ("rollout-1",)


def test_a_replica_enters_routing_as_it_begins_to_serve() -> None:
    """State first, then the epoch; its GPUs are idle until a request comes."""
    p = made()
    told: list[int] = []
    p.fleet.on_serving = told.append
    serve(p, "standalone-1")
    assert p.balancer.replicas == p.fleet.serving() == ("standalone-1",)
    assert p.sink.events == [
        ReplicaMoved("standalone-1", "stale", "stale", 0),
        ReplicaMoved("standalone-1", "stale", "serving", 0),
        GpuStateChanged(("rollout-1",), "rollout_idle"),
        RoutingChanged("standalone-1", True, 1),
    ]
    assert told == [1]


def test_a_replica_leaves_routing_before_anything_else_happens_to_it() -> None:
    """Out of routing, then draining: no request can slip between."""
    p = made()
    told: list[int] = []
    p.fleet.on_serving = told.append
    serve(p, "standalone-0")
    before = p.mark()
    p.fleet.move("standalone-0", ReplicaEvent.DRAIN)
    assert p.sink.events[before:] == [
        RoutingChanged("standalone-0", False, 1),
        ReplicaMoved("standalone-0", "serving", "draining", 0),
    ]
    assert p.balancer.replicas == ()
    assert told == [1, 0]


def test_a_sync_of_a_serving_replica_leaves_it_in_routing() -> None:
    """The epoch goes on; only the version is new."""
    p = made()
    serve(p, "standalone-0")
    before = p.mark()
    p.fleet.move("standalone-0", ReplicaEvent.SYNC, version=1)
    assert p.sink.events[before:] == [ReplicaMoved("standalone-0", "serving", "serving", 1)]
    assert p.balancer.replicas == ("standalone-0",)


def test_a_forbidden_move_changes_nothing() -> None:
    """Neither state, nor routing, nor the log."""
    p = made()
    with pytest.raises(IllegalTransitionError):
        p.fleet.move("hybrid-0", ReplicaEvent.ADMIT)
    assert p.fleet.status("hybrid-0").state is ReplicaState.ASLEEP
    assert p.sink.events == []


def test_only_hybrid_means_no_standalone_replica_lives() -> None:
    """A stale one may serve again; a dead one may not."""
    p = made()
    assert not p.fleet.only_hybrid
    p.fleet.move("standalone-0", ReplicaEvent.LOSE)
    assert not p.fleet.only_hybrid
    p.fleet.move("standalone-1", ReplicaEvent.LOSE)
    assert p.fleet.only_hybrid


def test_gpus_are_booked_only_when_their_state_changes() -> None:
    """The log holds changes, all GPUs of one change together."""
    p = made()
    p.fleet.set_trainer(GpuState.TRAIN_WAIT)
    p.fleet.set_gpus(["trainer-0"], GpuState.TRAIN_WAIT)
    p.fleet.set_replicas(["hybrid-1"], GpuState.SWITCH)
    p.fleet.set_trainer(GpuState.SWITCH)
    assert p.sink.of(GpuStateChanged) == [
        GpuStateChanged(TRAINER_GPUS, "train_wait"),
        GpuStateChanged(("trainer-1",), "switch"),
        GpuStateChanged(("trainer-0",), "switch"),
    ]


def test_training_ends_also_when_it_fails() -> None:
    """GPUs compute within the context and wait after it, whatever ended it."""
    p = made()
    training = p.fleet.training()
    training.__enter__()
    assert gpu_states(p.sink) == dict.fromkeys(TRAINER_GPUS, "train")
    assert not training.__exit__(RuntimeError, RuntimeError(), None)
    assert gpu_states(p.sink) == dict.fromkeys(TRAINER_GPUS, "train_wait")


def test_serving_gpus_follow_their_requests() -> None:
    """Busy from the first lease, idle after the last; in any other state leases do not matter."""
    p = made()
    for name in STANDALONE:
        serve(p, name)
    first = p.balancer.try_acquire("x")
    assert first is not None
    assert gpu_states(p.sink) == {"rollout-0": "rollout", "rollout-1": "rollout_idle"}
    p.fleet.set_replicas(STANDALONE, GpuState.SYNC)
    p.balancer.release(first)
    p.balancer.try_acquire("y")
    assert gpu_states(p.sink) == dict.fromkeys(ROLLOUT_GPUS, "sync")
    p.fleet.set_rollout(STANDALONE)
    assert gpu_states(p.sink) == {"rollout-0": "rollout_idle", "rollout-1": "rollout"}


@given(
    st.lists(
        st.tuples(
            st.sampled_from([*STANDALONE, *HYBRID]),
            st.sampled_from(list(ReplicaEvent)),
            st.integers(0, 2),
        ),
        max_size=60,
    )
)
def test_routing_is_exactly_who_serves(steps: list[tuple[str, ReplicaEvent, int]]) -> None:
    """After any allowed steps: routing, states and the log agree, and nobody skipped a sync."""
    p = made()
    synced: set[str] = set()
    for replica, event, version in steps:
        if p.fleet.status(replica).state not in REPLICA_TABLE[event]:
            continue
        try:
            sent = version if event is ReplicaEvent.SYNC else None
            p.fleet.move(replica, event, version=sent)
        except IllegalTransitionError:
            continue
        state = p.fleet.status(replica).state
        if event is ReplicaEvent.SYNC:
            synced.add(replica)
        elif state in (ReplicaState.DEAD, ReplicaState.ASLEEP):
            synced.discard(replica)
        assert set(p.fleet.serving()) == set(p.balancer.replicas) <= synced
    routed = {event.replica: event.routed for event in p.sink.of(RoutingChanged)}
    assert {name for name, is_in in routed.items() if is_in} == set(p.fleet.serving())

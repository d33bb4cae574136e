"""The lifecycle tables: every state, every event, and what is said of a forbidden one."""

from __future__ import annotations

import re
from itertools import product

import pytest

from swingshift.sdk.lifecycle import (
    CONTROLLER_TABLE,
    REPLICA_TABLE,
    ControllerEvent,
    ControllerState,
    IllegalTransitionError,
    ReplicaEvent,
    ReplicaState,
    ReplicaStatus,
    advance_controller,
    advance_replica,
)


def test_a_missed_sync_makes_a_serving_replica_stale() -> None:
    """A replica that missed a sync serves again only after another."""
    serving = ReplicaStatus(state=ReplicaState.SERVING, version=3)
    missed = advance_replica(serving, ReplicaEvent.MISS_SYNC)
    assert missed == ReplicaStatus(state=ReplicaState.STALE)
    with pytest.raises(IllegalTransitionError, match="sync it first"):
        advance_replica(missed, ReplicaEvent.ADMIT)


def test_a_sync_keeps_the_state_and_sets_the_version() -> None:
    """A weight sync changes what a replica holds, not what it does."""
    for state in (ReplicaState.STALE, ReplicaState.SERVING):
        before = ReplicaStatus(state=state, version=1)
        after = advance_replica(before, ReplicaEvent.SYNC, version=2)
        assert after == ReplicaStatus(state=state, version=2)


def test_draining_keeps_the_version_until_sleep() -> None:
    """While requests leave, their tokens still have a version."""
    status = ReplicaStatus(state=ReplicaState.SERVING, version=2)
    status = advance_replica(status, ReplicaEvent.DRAIN)
    assert status == ReplicaStatus(state=ReplicaState.DRAINING, version=2)
    assert advance_replica(status, ReplicaEvent.SLEEP).version is None


@pytest.mark.parametrize(
    ("event", "version"), [(ReplicaEvent.SYNC, None), (ReplicaEvent.MISS_SYNC, 1)]
)
def test_only_a_sync_has_a_version(event: ReplicaEvent, version: int | None) -> None:
    """A sync without a version, or a version without a sync, is refused."""
    status = ReplicaStatus(state=ReplicaState.STALE)
    with pytest.raises(IllegalTransitionError, match="sync needs one, others none"):
        advance_replica(status, event, version=version)


def test_a_forbidden_replica_step_names_what_is_allowed() -> None:
    """The error says the state, the event and the events allowed there."""
    told = "replica in state 'asleep' got 'admit'; allowed here: wake, lose"
    with pytest.raises(IllegalTransitionError, match=re.escape(told)):
        advance_replica(ReplicaStatus(state=ReplicaState.ASLEEP), ReplicaEvent.ADMIT)


def test_every_pair_outside_the_replica_table_is_refused() -> None:
    """The table is the whole truth."""
    for event, state in product(ReplicaEvent, ReplicaState):
        if state not in REPLICA_TABLE[event]:
            with pytest.raises(IllegalTransitionError):
                advance_replica(ReplicaStatus(state=state, version=0), event)


def test_the_controller_follows_its_table_and_nothing_else() -> None:
    """Every listed step leads where the table says; every other is refused."""
    for state, event in product(ControllerState, ControllerEvent):
        following = CONTROLLER_TABLE.get((state, event))
        if following is not None:
            assert advance_controller(state, event) is following
        else:
            with pytest.raises(IllegalTransitionError):
                advance_controller(state, event)


def test_a_forbidden_controller_step_names_what_is_allowed() -> None:
    """The error says so too where nothing is allowed any more."""
    with pytest.raises(IllegalTransitionError, match="allowed here: activated, roll_back"):
        advance_controller(ControllerState.ACTIVATING, ControllerEvent.ACTIVATE)
    with pytest.raises(IllegalTransitionError, match="allowed here: nothing"):
        advance_controller(ControllerState.BLOCKED, ControllerEvent.ACTIVATE)

"""The lifecycle tables, explored to the end: every state, every event."""

from __future__ import annotations

import re
from collections import deque
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

STARTS = (ReplicaStatus(state=ReplicaState.ASLEEP), ReplicaStatus(state=ReplicaState.STALE))
VERSIONS = (0, 1)


def steps(
    status: ReplicaStatus,
) -> list[tuple[ReplicaEvent, ReplicaStatus]]:
    """Return every allowed step from a status."""
    allowed = []
    for event, version in product(ReplicaEvent, (None, *VERSIONS)):
        try:
            allowed.append((event, advance_replica(status, event, version=version)))
        except IllegalTransitionError:
            continue
    return allowed


def reachable() -> dict[tuple[ReplicaStatus, bool], None]:
    """Return every status a replica can reach, and whether it was synced since DEAD or ASLEEP."""
    seen = {(start, False): None for start in STARTS}
    pending = deque(seen)
    while pending:
        status, synced = pending.popleft()
        for event, after in steps(status):
            restarted = after.state in (ReplicaState.DEAD, ReplicaState.ASLEEP)
            node = (after, not restarted and (synced or event is ReplicaEvent.SYNC))
            if node not in seen:
                seen[node] = None
                pending.append(node)
    return seen


def test_every_replica_state_is_reached() -> None:
    """No state of the table is dead code."""
    assert {status.state for status, _ in reachable()} == set(ReplicaState)


def test_serving_means_synced_since_dead_or_asleep() -> None:
    """Over all event orders: no replica serves unless a weight sync came after its last rest."""
    serving = [node for node in reachable() if node[0].state is ReplicaState.SERVING]
    assert serving
    assert all(synced for _, synced in serving)


def test_serving_is_entered_only_from_stale_with_known_weights() -> None:
    """The one step into SERVING is ADMIT out of STALE, and the version is known there."""
    entries = [
        (status, event, after)
        for status, _ in reachable()
        for event, after in steps(status)
        if after.state is ReplicaState.SERVING and status.state is not ReplicaState.SERVING
    ]
    assert entries
    for status, event, after in entries:
        assert event is ReplicaEvent.ADMIT
        assert status.state is ReplicaState.STALE
        assert after.version == status.version is not None


def test_weights_at_rest_have_no_version() -> None:
    """Where weights are absent or of unknown age, no version is claimed."""
    absent = (
        ReplicaState.ASLEEP,
        ReplicaState.WAKING,
        ReplicaState.SLEEPING,
        ReplicaState.DEAD,
    )
    assert all(status.version is None for status, _ in reachable() if status.state in absent)


def test_every_replica_can_be_lost_and_a_dead_one_only_restarts() -> None:
    """LOSE is allowed everywhere; from DEAD the way back is RESTART to STALE."""
    for status, _ in reachable():
        assert (ReplicaEvent.LOSE, ReplicaStatus(state=ReplicaState.DEAD)) in steps(status)
    ways = dict(steps(ReplicaStatus(state=ReplicaState.DEAD)))
    assert set(ways) == {ReplicaEvent.LOSE, ReplicaEvent.RESTART}
    assert ways[ReplicaEvent.RESTART] == ReplicaStatus(state=ReplicaState.STALE)


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


def test_training_is_reached_again_only_through_deactivating() -> None:
    """However a lending ends, GPUs come back by DEACTIVATED; BLOCKED is final."""
    ways_back = [
        (state, event)
        for (state, event), after in CONTROLLER_TABLE.items()
        if after is ControllerState.STANDALONE_ONLY
    ]
    assert ways_back == [(ControllerState.DEACTIVATING, ControllerEvent.DEACTIVATED)]
    assert all(state is not ControllerState.BLOCKED for state, _ in CONTROLLER_TABLE)


def test_a_forbidden_controller_step_names_what_is_allowed() -> None:
    """The error says so too where nothing is allowed any more."""
    with pytest.raises(IllegalTransitionError, match="allowed here: activated, roll_back"):
        advance_controller(ControllerState.ACTIVATING, ControllerEvent.ACTIVATE)
    with pytest.raises(IllegalTransitionError, match="allowed here: nothing"):
        advance_controller(ControllerState.BLOCKED, ControllerEvent.ACTIVATE)

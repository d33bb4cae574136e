"""Both lifecycle machines over every order of events: word by word, and to a fixpoint.

A *walk* is the list of steps that one order of events makes. Refused events change nothing, so an
order with refused events makes the walk of the same order without them, and only allowed events
need be tried. Walks up to a length are looked at as wholes, each promise in its own words; the
fixpoint, which carries no more than a promise needs to remember, extends it to any length.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator
from itertools import pairwise, product
from typing import NamedTuple, TypeVar

import pytest

from swingshift.sdk import lifecycle
from swingshift.sdk.lifecycle import (
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

S = TypeVar("S", bound=Hashable)

STARTS = (ReplicaStatus(state=ReplicaState.ASLEEP), ReplicaStatus(state=ReplicaState.STALE))
VERSIONS = (0, 1)
# Longer than the way around: ASLEEP, WAKING, STALE, synced, SERVING, DRAINING, SLEEPING, ASLEEP.
REPLICA_WALK = 9
CONTROLLER_WALK = 12
RESTING = (ReplicaState.ASLEEP, ReplicaState.DEAD)
KNOWN = (ReplicaState.STALE, ReplicaState.SERVING, ReplicaState.DRAINING)
UNKNOWN = tuple(state for state in ReplicaState if state is not ReplicaState.SERVING)


class ReplicaStep(NamedTuple):
    """One step of a replica's walk; the first has no event."""

    event: ReplicaEvent | None
    status: ReplicaStatus


class ControllerStep(NamedTuple):
    """One step of the controller's walk; the first has no event."""

    event: ControllerEvent | None
    state: ControllerState


class Lent(NamedTuple):
    """The controller beside one hybrid replica."""

    controller: ControllerState
    replica: ReplicaStatus


def replica_steps(
    status: ReplicaStatus, versions: tuple[int, ...] = VERSIONS
) -> Iterator[ReplicaStep]:
    """Yield every allowed step from a status."""
    for event, version in product(ReplicaEvent, (None, *versions)):
        try:
            yield ReplicaStep(event, advance_replica(status, event, version=version))
        except IllegalTransitionError:
            continue


def controller_steps(state: ControllerState) -> Iterator[ControllerStep]:
    """Yield every allowed step from a state."""
    for event in ControllerEvent:
        try:
            yield ControllerStep(event, advance_controller(state, event))
        except IllegalTransitionError:
            continue


def fixpoint(starts: Iterable[S], following: Callable[[S], Iterable[S]]) -> list[S]:
    """Return everything that can be reached, breadth first."""
    seen = dict.fromkeys(starts)
    pending = list(seen)
    for node in pending:
        new = [after for after in following(node) if after not in seen]
        for after in dict.fromkeys(new):
            seen[after] = None
            pending.append(after)
    return pending


def replica_walks(start: ReplicaStatus, length: int) -> Iterator[list[ReplicaStep]]:
    """Yield every walk of so many steps."""
    walks = [[ReplicaStep(None, start)]]
    for _ in range(length):
        walks = [[*walk, step] for walk in walks for step in replica_steps(walk[-1].status, (0,))]
    yield from walks


def controller_walks(length: int) -> Iterator[list[ControllerState]]:
    """Yield the states of every walk of at most so many steps that can go no further."""
    pending = [[ControllerState.STANDALONE_ONLY]]
    while pending:
        walk = pending.pop()
        steps = list(controller_steps(walk[-1])) if len(walk) <= length else []
        pending += [[*walk, step.state] for step in steps]
        if not steps:
            yield walk


def following(status: ReplicaStatus) -> list[ReplicaStatus]:
    """Return what a replica can be one step later."""
    return [step.status for step in replica_steps(status)]


def fitness(status: ReplicaStatus, event: ReplicaEvent, after: ReplicaStatus, before: int) -> int:
    """Return how far a replica has come since its rest: 0 none, 1 STALE, 2 a sync after that."""
    if after.state in RESTING:
        return 0
    if event is ReplicaEvent.SYNC and status.state is ReplicaState.STALE and before:
        return 2
    return max(before, int(after.state is ReplicaState.STALE))


def unfit() -> list[ReplicaStatus]:
    """Return every SERVING status that is reached without STALE and a sync after it."""

    def grow(node: tuple[ReplicaStatus, int]) -> list[tuple[ReplicaStatus, int]]:
        status, fit = node
        return [
            (after, fitness(status, event, after, fit))
            for event, after in replica_steps(status)
            if event is not None
        ]

    starts = [(start, int(start.state is ReplicaState.STALE)) for start in STARTS]
    return [
        status
        for status, fit in fixpoint(starts, grow)
        if status.state is ReplicaState.SERVING and fit < 2
    ]


def since_rest(walk: list[ReplicaStep]) -> list[ReplicaStep]:
    """Return the end of a walk from its last rest on."""
    rests = [at for at, step in enumerate(walk) if step.status.state in RESTING]
    return walk[rests[-1] :] if rests else walk


@pytest.mark.parametrize("start", STARTS, ids=lambda start: start.state.value)
def test_walks_meet_every_state_with_every_knowledge_of_its_weights(start: ReplicaStatus) -> None:
    """They are long enough to meet all there is, and what there is is what the promise says.

    No state is dead code. Weights are of a known version only where they can be: absent or of
    unknown age they have none, and nothing serves without one.
    """
    met = {
        (step.status.state, step.status.version is not None)
        for walk in replica_walks(start, REPLICA_WALK)
        for step in walk
    }
    assert met == {(state, True) for state in KNOWN} | {(state, False) for state in UNKNOWN}
    assert met == {(node.state, node.version is not None) for node in fixpoint(STARTS, following)}


@pytest.mark.parametrize("start", STARTS, ids=lambda start: start.state.value)
def test_every_walk_to_serving_leads_through_stale_and_a_sync(start: ReplicaStatus) -> None:
    """Word by word: whoever was DEAD or ASLEEP is STALE, then synced, and only then serves."""
    served = 0
    for walk in replica_walks(start, REPLICA_WALK):
        for at, step in enumerate(walk):
            if step.status.state is not ReplicaState.SERVING:
                continue
            served += 1
            way = since_rest(walk[:at])
            syncs = [number for number, step in enumerate(way) if step.event is ReplicaEvent.SYNC]
            assert any(way[number - 1].status.state is ReplicaState.STALE for number in syncs)
    assert served > 1_000


def test_serving_means_stale_and_a_sync_since_the_last_rest() -> None:
    """The same for walks of any length."""
    assert unfit() == []


PLANTED = {
    "a restart serves at once": (ReplicaEvent.RESTART, ReplicaState.DEAD),
    "waking ends in service": (ReplicaEvent.WOKEN, ReplicaState.WAKING),
    "who sleeps is admitted": (ReplicaEvent.WAKE, ReplicaState.ASLEEP),
}


@pytest.mark.parametrize("fault", PLANTED)
def test_a_way_around_the_sync_would_be_found(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The exploration tells a table with a short cut from the one we have."""
    event, state = PLANTED[fault]
    monkeypatch.setitem(
        REPLICA_TABLE,
        event,
        {**REPLICA_TABLE[event], state: ReplicaState.SERVING},
    )
    assert unfit()


def test_a_version_kept_through_sleep_would_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Old weights that are still said to be known open the way that ADMIT guards."""
    monkeypatch.setattr(lifecycle, "_KEEPS_VERSION", frozenset(ReplicaEvent))
    assert unfit()


def test_serving_is_entered_only_from_stale_with_known_weights() -> None:
    """The one step into SERVING is ADMIT out of STALE, and the version is known there."""
    entries = [
        (status, event, after)
        for status in fixpoint(STARTS, following)
        for event, after in replica_steps(status)
        if after.state is ReplicaState.SERVING and status.state is not ReplicaState.SERVING
    ]
    assert entries
    for status, event, after in entries:
        assert event is ReplicaEvent.ADMIT
        assert status.state is ReplicaState.STALE
        assert after.version == status.version is not None


def test_from_everywhere_a_replica_can_serve_again_and_can_die() -> None:
    """No state is a trap, and a loss can come in any."""
    for status in fixpoint(STARTS, following):
        ahead = fixpoint([status], following)
        assert ReplicaState.SERVING in {node.state for node in ahead}
        assert ReplicaStatus(state=ReplicaState.DEAD) in following(status)


def test_a_dead_replica_only_restarts() -> None:
    """The way back from DEAD is RESTART to STALE; a second loss changes nothing."""
    ways = dict(replica_steps(ReplicaStatus(state=ReplicaState.DEAD)))
    assert set(ways) == {ReplicaEvent.LOSE, ReplicaEvent.RESTART}
    assert ways[ReplicaEvent.RESTART] == ReplicaStatus(state=ReplicaState.STALE)


def test_every_controller_state_is_met() -> None:
    """No state of the controller is dead code, and all but BLOCKED lead back to training."""
    met = {state for walk in controller_walks(CONTROLLER_WALK) for state in walk}
    assert met == set(ControllerState)
    for state in met - {ControllerState.BLOCKED}:
        ahead = fixpoint([state], lambda at: [step.state for step in controller_steps(at)])
        assert set(ahead) == set(ControllerState)


def test_every_controller_walk_keeps_the_order_of_a_lending() -> None:
    """Lent GPUs are lent through ACTIVATING and come back through DEACTIVATING, or never.

    The state before HYBRID_ACTIVE is ACTIVATING, the state before STANDALONE_ONLY and before
    BLOCKED is DEACTIVATING, and nothing comes after BLOCKED.
    """
    before: defaultdict[ControllerState, set[ControllerState]] = defaultdict(set)
    for walk in controller_walks(CONTROLLER_WALK):
        for state, after in pairwise(walk):
            before[after].add(state)
        assert ControllerState.BLOCKED not in walk[:-1]
    assert before == {
        ControllerState.STANDALONE_ONLY: {ControllerState.DEACTIVATING},
        ControllerState.ACTIVATING: {ControllerState.STANDALONE_ONLY},
        ControllerState.HYBRID_ACTIVE: {ControllerState.ACTIVATING},
        ControllerState.DEACTIVATING: {
            ControllerState.ACTIVATING,
            ControllerState.HYBRID_ACTIVE,
        },
        ControllerState.BLOCKED: {ControllerState.DEACTIVATING},
    }


def test_only_blocked_is_the_end() -> None:
    """Every other state has a way out."""
    ends = [state for state in ControllerState if not list(controller_steps(state))]
    assert ends == [ControllerState.BLOCKED]


def admits_only_while_lending(lent: Lent, event: ControllerEvent | ReplicaEvent) -> bool:
    """Allow ADMIT of a hybrid replica in ACTIVATING alone."""
    return event is not ReplicaEvent.ADMIT or lent.controller is ControllerState.ACTIVATING


def returns_only_at_rest(lent: Lent, event: ControllerEvent | ReplicaEvent) -> bool:
    """Allow DEACTIVATED only once the hybrid replica is ASLEEP or DEAD."""
    return event is not ControllerEvent.DEACTIVATED or lent.replica.state in RESTING


def trained_beside(
    *rules: Callable[[Lent, ControllerEvent | ReplicaEvent], bool],
) -> list[Lent]:
    """Return every pair in which a hybrid replica serves on GPUs that train, under some rules."""

    def grow(lent: Lent) -> Iterator[Lent]:
        for event, state in controller_steps(lent.controller):
            if event is not None and all(rule(lent, event) for rule in rules):
                yield Lent(state, lent.replica)
        for replica_event, status in replica_steps(lent.replica):
            if replica_event is not None and all(rule(lent, replica_event) for rule in rules):
                yield Lent(lent.controller, status)

    start = Lent(ControllerState.STANDALONE_ONLY, ReplicaStatus(state=ReplicaState.ASLEEP))
    pairs = fixpoint([start], grow)
    assert {pair.controller for pair in pairs} == set(ControllerState)
    return [
        pair
        for pair in pairs
        if pair.controller is ControllerState.STANDALONE_ONLY
        and pair.replica.state is ReplicaState.SERVING
    ]


def test_two_rules_keep_service_and_training_apart() -> None:
    """With both, no order of any other events lets a hybrid replica serve in STANDALONE_ONLY."""
    assert trained_beside(admits_only_while_lending, returns_only_at_rest) == []


def test_both_rules_are_needed() -> None:
    """Without either one there is an order of events that trains beside a serving replica."""
    assert trained_beside(admits_only_while_lending)
    assert trained_beside(returns_only_at_rest)

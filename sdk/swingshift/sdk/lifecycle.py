"""The two state machines of lending, as pure functions.

The control plane owns one `ControllerState` and one `ReplicaStatus` per replica and changes them
only through `advance_controller` and `advance_replica`, which refuse whatever the tables below do
not list. One property follows from the tables alone: a replica that was DEAD or ASLEEP serves
again only through STALE and a weight sync.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping

import attrs

from swingshift.sdk.errors import SwingshiftError


class IllegalTransitionError(SwingshiftError):
    """A state machine was asked for a step its table does not allow."""


class ControllerState(enum.StrEnum):
    """Where the trainer's GPUs are: with the trainer, lent to rollout, or on their way."""

    STANDALONE_ONLY = "standalone_only"
    ACTIVATING = "activating"
    HYBRID_ACTIVE = "hybrid_active"
    DEACTIVATING = "deactivating"
    BLOCKED = "blocked"


class ControllerEvent(enum.StrEnum):
    """What moves a `ControllerState`."""

    ACTIVATE = "activate"
    ACTIVATED = "activated"
    ROLL_BACK = "roll_back"
    DEACTIVATE = "deactivate"
    DEACTIVATED = "deactivated"
    MEMORY_WITHHELD = "memory_withheld"


class ReplicaState(enum.StrEnum):
    """What a replica can do; only SERVING replicas receive requests."""

    ASLEEP = "asleep"
    WAKING = "waking"
    STALE = "stale"
    SERVING = "serving"
    DRAINING = "draining"
    SLEEPING = "sleeping"
    DEAD = "dead"


class ReplicaEvent(enum.StrEnum):
    """What moves a `ReplicaStatus`."""

    WAKE = "wake"
    WOKEN = "woken"
    SYNC = "sync"
    MISS_SYNC = "miss_sync"
    ADMIT = "admit"
    DRAIN = "drain"
    SLEEP = "sleep"
    SLEPT = "slept"
    LOSE = "lose"
    RESTART = "restart"


@attrs.frozen(kw_only=True)
class ReplicaStatus:
    """The state of one replica and the weight version it holds.

    Attributes:
        state: Where the replica is in its life.
        version: Parameter version of its weights; None while they are absent or of unknown age.
    """

    state: ReplicaState
    version: int | None = None


CONTROLLER_TABLE: Mapping[tuple[ControllerState, ControllerEvent], ControllerState] = {
    (ControllerState.STANDALONE_ONLY, ControllerEvent.ACTIVATE): ControllerState.ACTIVATING,
    (ControllerState.ACTIVATING, ControllerEvent.ACTIVATED): ControllerState.HYBRID_ACTIVE,
    (ControllerState.ACTIVATING, ControllerEvent.ROLL_BACK): ControllerState.DEACTIVATING,
    (ControllerState.HYBRID_ACTIVE, ControllerEvent.DEACTIVATE): ControllerState.DEACTIVATING,
    (ControllerState.DEACTIVATING, ControllerEvent.DEACTIVATED): ControllerState.STANDALONE_ONLY,
    (ControllerState.DEACTIVATING, ControllerEvent.MEMORY_WITHHELD): ControllerState.BLOCKED,
}

REPLICA_TABLE: Mapping[ReplicaEvent, Mapping[ReplicaState, ReplicaState]] = {
    ReplicaEvent.WAKE: {ReplicaState.ASLEEP: ReplicaState.WAKING},
    ReplicaEvent.WOKEN: {ReplicaState.WAKING: ReplicaState.STALE},
    ReplicaEvent.SYNC: {
        ReplicaState.STALE: ReplicaState.STALE,
        ReplicaState.SERVING: ReplicaState.SERVING,
    },
    ReplicaEvent.MISS_SYNC: {
        ReplicaState.STALE: ReplicaState.STALE,
        ReplicaState.SERVING: ReplicaState.STALE,
    },
    ReplicaEvent.ADMIT: {ReplicaState.STALE: ReplicaState.SERVING},
    ReplicaEvent.DRAIN: {
        ReplicaState.SERVING: ReplicaState.DRAINING,
        ReplicaState.STALE: ReplicaState.DRAINING,
        ReplicaState.WAKING: ReplicaState.DRAINING,
    },
    ReplicaEvent.SLEEP: {ReplicaState.DRAINING: ReplicaState.SLEEPING},
    ReplicaEvent.SLEPT: {ReplicaState.SLEEPING: ReplicaState.ASLEEP},
    ReplicaEvent.LOSE: dict.fromkeys(ReplicaState, ReplicaState.DEAD),
    ReplicaEvent.RESTART: {ReplicaState.DEAD: ReplicaState.STALE},
}

_KEEPS_VERSION = frozenset({ReplicaEvent.ADMIT, ReplicaEvent.DRAIN})


def advance_controller(state: ControllerState, event: ControllerEvent) -> ControllerState:
    """Return the controller's next state.

    Raises:
        IllegalTransitionError: The event is not allowed in this state.
    """
    following = CONTROLLER_TABLE.get((state, event))
    if following is None:
        allowed = [known.value for at, known in CONTROLLER_TABLE if at is state]
        raise IllegalTransitionError(
            f"controller in state {state.value!r} got {event.value!r}; "
            f"allowed here: {', '.join(allowed) or 'nothing'}"
        )
    return following


def advance_replica(
    status: ReplicaStatus, event: ReplicaEvent, *, version: int | None = None
) -> ReplicaStatus:
    """Return the replica's next status.

    Args:
        status: What the replica is now.
        event: What happened to it.
        version: The parameter version, for SYNC only.

    Raises:
        IllegalTransitionError: The event is not allowed in this state, SYNC came without a
            version, or ADMIT came before a sync.
    """
    following = REPLICA_TABLE[event].get(status.state)
    if following is None:
        allowed = [known.value for known, rows in REPLICA_TABLE.items() if status.state in rows]
        raise IllegalTransitionError(
            f"replica in state {status.state.value!r} got {event.value!r}; "
            f"allowed here: {', '.join(allowed)}"
        )
    if (event is ReplicaEvent.SYNC) != (version is not None):
        raise IllegalTransitionError(
            f"replica got {event.value!r} with version {version}; sync needs one, others none"
        )
    if event is ReplicaEvent.ADMIT and status.version is None:
        raise IllegalTransitionError(
            "replica got 'admit' with weights of unknown age; sync it first"
        )
    if event is ReplicaEvent.SYNC:
        return ReplicaStatus(state=following, version=version)
    return ReplicaStatus(
        state=following, version=status.version if event in _KEEPS_VERSION else None
    )

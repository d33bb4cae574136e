"""What will go wrong in a simulated cluster: faults of verbs, and losses of replicas and GPUs.

A scenario says so below ``executor.faults``, by script (`Fault`: the n-th call of a verb) or by
seed (`RandomFaults`: any call, with a probability).
"""

from __future__ import annotations

import enum

import attrs

from swingshift.sdk.validators import InvalidValueError, finite, integer, optional, text


class FaultKind(enum.StrEnum):
    """What goes wrong with a call."""

    FAIL = "fail"
    """It raises and has no effect."""
    HANG = "hang"
    """It never returns and has no effect."""
    SLOW = "slow"
    """It takes longer and then does its work."""
    LATE = "late"
    """It does its work in time and answers later."""
    DIE = "die"
    """A replica dies meanwhile: the one named, else the first of the call."""
    ZOMBIE = "zombie"
    """It takes longer, and goes on after it was cancelled; the end of a replica that it is for ends
    it (calls that take memory of a replica's GPUs or change its weights alone)."""
    SHORT_MEMORY = "short_memory"
    """It does its work and reports no free memory (``sleep`` and ``kill`` alone)."""
    FALSE_MEMORY = "false_memory"
    """It does nothing and reports the memory free that training needs; a reload onto it fails
    (``sleep`` and ``kill`` alone)."""
    PARTIAL = "partial"
    """It does its work but for one replica, which it reports failed (``sync_weights`` alone)."""


class Verb(enum.StrEnum):
    """The calls that can go wrong; a canary is the ``generate`` that comes before any traffic."""

    START = "start"
    STOP = "stop"
    GENERATE = "generate"
    CANARY = "canary"
    ABORT = "abort"
    PAUSE = "pause"
    RESUME = "resume"
    WAKE_WEIGHTS = "wake_weights"
    WAKE_KV_CACHE = "wake_kv_cache"
    SLEEP = "sleep"
    OFFLOAD_OPTIMIZER_AND_GRADIENTS = "offload_optimizer_and_gradients"
    OFFLOAD_PARAMETERS = "offload_parameters"
    RELOAD_OPTIMIZER_AND_GRADIENTS = "reload_optimizer_and_gradients"
    RELOAD_PARAMETERS = "reload_parameters"
    SYNC_WEIGHTS = "sync_weights"
    KILL = "kill"
    RESTART = "restart"
    FIT_STEP = "fit_step"
    DISCARD = "discard"

    @property
    def is_of_trainer(self) -> bool:
        """Whether its calls name no replica."""
        return self.startswith(("start", "stop", "offload", "reload", "fit", "discard"))

    def can(self, kind: FaultKind) -> bool:
        """Return whether a kind of fault makes sense for this verb."""
        if kind in (FaultKind.SHORT_MEMORY, FaultKind.FALSE_MEMORY):
            return self in (Verb.SLEEP, Verb.KILL)
        if kind is FaultKind.ZOMBIE:
            return self in _DETACHABLE
        if kind is FaultKind.PARTIAL:
            return self is Verb.SYNC_WEIGHTS
        return kind is not FaultKind.DIE or self not in (Verb.START, Verb.STOP, Verb.KILL)


_DETACHABLE = (Verb.WAKE_WEIGHTS, Verb.WAKE_KV_CACHE, Verb.SYNC_WEIGHTS, Verb.RESTART)


@attrs.frozen(kw_only=True)
class Fault:
    """One scripted fault.

    Attributes:
        verb: Which call.
        kind: What goes wrong.
        call: The first call it strikes, counted from 1; with ``replica``, among the calls for that
            replica.
        times: How many calls in a row it strikes.
        replica: Strike only calls for this replica, None for any. Verbs of the trainer name none;
            ``die`` has to be told there who dies.
        seconds: Extra seconds of ``slow``, ``late`` and ``zombie``; with ``die``, seconds until the
            executor reports the loss.

    Raises:
        InvalidValueError: The verb cannot go wrong in this way, or it is not said who dies.
    """

    verb: Verb
    kind: FaultKind
    call: int = attrs.field(default=1, validator=integer(ge=1))
    times: int = attrs.field(default=1, validator=integer(ge=1))
    replica: str | None = attrs.field(default=None, validator=optional(text()))
    seconds: float = attrs.field(default=5.0, validator=finite(ge=0.0))

    def __attrs_post_init__(self) -> None:
        if not self.verb.can(self.kind):
            kinds = ", ".join(kind.value for kind in FaultKind if self.verb.can(kind))
            allowed = f"one of {kinds} for {self.verb.value}"
            raise InvalidValueError("kind", self.kind.value, allowed)
        if self.verb.is_of_trainer and (self.replica is None) is (self.kind is FaultKind.DIE):
            allowed = "the replica that dies" if self.replica is None else "none"
            raise InvalidValueError("replica", self.replica, f"{allowed} for {self.verb.value}")


@attrs.frozen(kw_only=True)
class Loss:
    """A replica or GPU that goes at a time, and may come back.

    What runs on a lost GPU dies with it. Nothing can be started there, nor trained while it is one
    of the trainer's, before it is back.

    Attributes:
        subject: Name of the replica or GPU.
        at_s: When it goes, seconds of the run's clock.
        back_after_s: Seconds until it is back; None when it stays away.
    """

    subject: str = attrs.field(validator=text())
    at_s: float = attrs.field(validator=finite(ge=0.0))
    back_after_s: float | None = attrs.field(default=None, validator=optional(finite(ge=0.0)))


@attrs.frozen(kw_only=True)
class RandomFaults:
    """Faults drawn by seed.

    Attributes:
        probability: For each call of a verb other than ``generate``, ``start`` and ``stop``.
        generate_probability: For each ``generate``, of which there are many more.
        kinds: Drawn from with equal weight, those that make sense for the verb.
        seconds: As in `Fault`.
        seed: Of the draws.
    """

    probability: float = attrs.field(default=0.0, validator=finite(ge=0.0, le=1.0))
    generate_probability: float = attrs.field(default=0.0, validator=finite(ge=0.0, le=1.0))
    kinds: tuple[FaultKind, ...] = (FaultKind.FAIL, FaultKind.SLOW)
    seconds: float = attrs.field(default=5.0, validator=finite(ge=0.0))
    seed: int = attrs.field(default=0, validator=integer(ge=0))


@attrs.frozen(kw_only=True)
class FaultPlan:
    """Everything that will go wrong in a run; nothing by default.

    Attributes:
        script: Faults of single calls; where several would strike one call, the first does.
        losses: Capacity that goes by itself.
        at_random: Faults of the calls that the script leaves alone; None for none.
    """

    script: tuple[Fault, ...] = ()
    losses: tuple[Loss, ...] = ()
    at_random: RandomFaults | None = None

    @property
    def is_empty(self) -> bool:
        """Whether nothing will go wrong."""
        return not self.script and not self.losses and self.at_random is None

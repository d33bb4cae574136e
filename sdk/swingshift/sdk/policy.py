"""The policy contract: five methods a policy answers with values, and the state it carries over."""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import ClassVar

import attrs

from swingshift.sdk.context import DynamicScheduleContext
from swingshift.sdk.errors import PolicyError
from swingshift.sdk.state import attributes_of, decode, encode
from swingshift.sdk.validators import instance_of


class RebalanceScope(enum.Enum):
    """Which requests in flight a rebalance moves."""

    ALL = "all"
    """Abort every request and route it anew."""

    EXCESS = "excess"
    """Move only what replicas hold above their fair share; each move costs a prefill."""


@attrs.frozen
class Rebalance:
    """The decision to spread requests in flight over replicas anew; the runtime carries it out.

    Attributes:
        scope: Which requests move.
    """

    scope: RebalanceScope = attrs.field(
        default=RebalanceScope.ALL, validator=instance_of(RebalanceScope)
    )


class DynamicSchedulePolicyBase(ABC):
    """Decide when a trainer's GPUs generate rollouts and when they go back to training.

    At every weight sync, version 0 before the first fit step included, a run asks once:

    1. `should_activate_after_step`: lend the GPUs for the coming cycle?
    2. `request_rebalance`, only after an activation: move requests to the new replicas?
    3. `update_after_step`: learn from the cycle that ended.

    and before every fit step in between:

    4. `should_deactivate`: take the GPUs back? While lent GPUs are wanted for training, ``False``
       means "not yet" and the question is asked again at each event.
    5. `deactivate_wait_samples`, once 4 said ``True``: after how many buffered samples?

    All but `update_after_step` are questions: asked twice they answer alike and leave
    `state_dict` as it was. Randomness, if any, is seeded in ``__init__`` and drawn in
    `update_after_step`. A policy never touches a cluster, a clock or a file, and needs no
    ``super().__init__()``.

    Every policy runs inside `swingshift.sdk.guard.GuardedPolicy`, which keeps this order and
    bounds every answer.

    Attributes:
        state_attributes: Names of the attributes that `state_dict` saves, ``None`` for all of
            them. Name them when some are configuration, which a resumed run may change.
    """

    state_attributes: ClassVar[tuple[str, ...] | None] = None

    @abstractmethod
    def should_deactivate(
        self, global_steps: int, is_hybrid_active: bool, ctx: DynamicScheduleContext
    ) -> bool:
        """Return whether hybrid replicas shall give their GPUs back to training.

        Asked before every fit step, and again at every event that changes the snapshot while
        the answer is ``False`` and hybrid replicas are active. A question.

        Args:
            global_steps: The current parameter version.
            is_hybrid_active: Whether hybrid replicas are lent at this moment.
            ctx: The snapshot.

        Returns:
            ``True`` to go on to `deactivate_wait_samples`; ``False`` to keep generating. It must
            be ``False`` when no hybrid replica is active.
        """

    @abstractmethod
    def deactivate_wait_samples(self, ctx: DynamicScheduleContext) -> int:
        """Return how many samples must be buffered before GPUs go back to training.

        Asked once per fit step, after `should_deactivate` said ``True`` and before any replica
        is touched. A question.

        Args:
            ctx: The snapshot that `should_deactivate` saw.

        Returns:
            Samples, from 0 (do not wait) to ``ctx.step_required_samples`` (a full cycle).
        """

    @abstractmethod
    def should_activate_after_step(
        self, global_steps: int, is_hybrid_active: bool, ctx: DynamicScheduleContext
    ) -> bool:
        """Return whether the trainer's GPUs shall generate at the start of the coming cycle.

        Asked once per cycle, after its last fit step and before any weights are synced. A
        question.

        Args:
            global_steps: The parameter version about to be synced, 0 at start-up.
            is_hybrid_active: Whether hybrid replicas are lent at this moment.
            ctx: The snapshot.

        Returns:
            ``True`` to sync weights to the hybrid replicas too and activate them; ``False`` to
            save both.
        """

    def request_rebalance(self, global_steps: int, ctx: DynamicScheduleContext) -> Rebalance | None:
        """Return how requests in flight shall be spread over the replicas just activated.

        Asked once after each activation that `should_activate_after_step` caused. A question.

        Args:
            global_steps: The parameter version just synced.
            ctx: The snapshot.

        Returns:
            A `Rebalance`, or ``None`` to leave requests where they are, as this base class does.
        """
        return None

    def update_after_step(  # noqa: B027  # learning is optional
        self, global_steps: int, ctx: DynamicScheduleContext
    ) -> None:
        """Learn from the cycle that just ended; this base class learns nothing.

        Called once per cycle, after the weight sync and the activation, if any. The only method
        that may change the policy.

        Args:
            global_steps: The parameter version just synced, 0 at start-up, when no cycle has run.
            ctx: The snapshot; its waits and durations are those of the cycle that ended.
        """

    def state_dict(self) -> dict[str, object]:
        """Return everything learned so far, as JSON-able values that share nothing with the policy.

        Called at checkpoints. This implementation saves the attributes in `state_attributes`:
        numbers, strings, booleans, ``None`` and lists, tuples, deques and string-keyed dicts of
        them. Override both methods for anything else.

        Returns:
            A dict for `load_state_dict` of a policy built with the same arguments.

        Raises:
            PolicyError: An attribute holds a value of another kind.
        """
        owner = type(self).__name__
        return {name: encode(f"{owner}.{name}", value) for name, value in self._saved().items()}

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Take over a saved state, so that every later answer is as the saved policy's would be.

        Called on a policy just built, before any question. It shares nothing with ``state``. When
        it raises, the policy is as it was.

        Args:
            state: What `state_dict` returned, possibly after a round trip through JSON.

        Raises:
            PolicyError: A key is missing, or is none of this policy's.
        """
        known = self._saved()
        owner = type(self).__name__
        unknown = [name for name in state if name not in known]
        missing = [name for name in known if name not in state]
        if unknown or missing:
            raise PolicyError(
                f"the state of {owner} is {_names(known)}; got {_names(state)}. It must come from"
                f" a {owner}, and every attribute must exist once __init__ has run"
            )
        restored = {name: decode(value) for name, value in state.items()}
        for name, value in restored.items():
            setattr(self, name, value)

    def _saved(self) -> dict[str, object]:
        if self.state_attributes is None:
            return attributes_of(self)
        return {name: getattr(self, name) for name in self.state_attributes}


def _names(names: Iterable[str]) -> str:
    return ", ".join(map(repr, names)) or "empty"

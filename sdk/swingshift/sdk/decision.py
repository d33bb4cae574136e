"""One question to a policy: ask it, judge the answer, record what holds."""

from __future__ import annotations

import logging
import reprlib
from collections.abc import Callable
from typing import Generic, TypeAlias, TypeGuard, TypeVar

import attrs

from swingshift.sdk.context import DynamicScheduleContext
from swingshift.sdk.errors import PolicyError
from swingshift.sdk.policy import DynamicSchedulePolicyBase, Rebalance

_logger = logging.getLogger(__name__)

_T = TypeVar("_T")

Answer: TypeAlias = bool | int | Rebalance | None
"""What a policy may answer to one of its questions."""


@attrs.frozen(kw_only=True)
class Decision:
    """One answer of a policy and what the run makes of it: a line of the decision log.

    Attributes:
        question: The method asked.
        global_steps: The parameter version it was asked at.
        answer: What the policy said; ``None`` also when it raised or said something unusable.
        effective: What holds.
        forced: Whether the guard decided instead of the policy.
        reason: Why: ``"policy"``, or the rule or the fault that made the guard decide.
        context: The snapshot the policy saw.
    """

    question: str
    global_steps: int
    answer: Answer
    effective: Answer
    forced: bool
    reason: str
    context: DynamicScheduleContext


@attrs.frozen
class Question(Generic[_T]):
    """What a policy's method may answer.

    Attributes:
        name: The method.
        allowed: The answers that can be used, in words.
        accepts: Says whether an answer is one of them.
        safe: The answer that holds where the policy gives none of them.
    """

    name: str
    allowed: str
    accepts: Callable[[object], TypeGuard[_T]]
    safe: _T


@attrs.frozen(kw_only=True)
class Reply(Generic[_T]):
    """What came back from one call of a policy.

    Attributes:
        question: The method called.
        global_steps: The parameter version it was called at.
        given: The answer as far as a `Decision` can hold it.
        value: The answer, or the safe one after a fault.
        fault: What was wrong with the policy, empty if nothing.
    """

    question: str
    global_steps: int
    given: Answer
    value: _T
    fault: str = ""

    def decision(self, effective: Answer, ctx: DynamicScheduleContext, rule: str = "") -> Decision:
        """Return the decision that comes of this reply.

        Args:
            effective: What holds.
            ctx: The snapshot it holds for.
            rule: Why, where ``effective`` is not the reply's value.
        """
        reasons = [self.fault] if self.fault else []
        if self.value != effective:
            reasons.append(rule)
        return Decision(
            question=self.question,
            global_steps=self.global_steps,
            answer=self.given,
            effective=effective,
            forced=bool(reasons),
            reason="; ".join(reasons) or "policy",
            context=ctx,
        )


def _is_bool(answer: object) -> TypeGuard[bool]:
    return isinstance(answer, bool)


def _is_false(answer: object) -> TypeGuard[bool]:
    return answer is False


def _is_count(answer: object) -> TypeGuard[int]:
    return isinstance(answer, int) and not isinstance(answer, bool)


def _is_rebalance(answer: object) -> TypeGuard[Rebalance | None]:
    return answer is None or isinstance(answer, Rebalance)


def _is_none(answer: object) -> TypeGuard[None]:
    return answer is None


# The safe answer to each question, for a policy that fails, is the one that trains.
DEACTIVATE = Question("should_deactivate", "True or False", _is_bool, True)
DEACTIVATE_NOTHING = Question(
    "should_deactivate", "False while no hybrid replica is active", _is_false, False
)
WAIT = Question("deactivate_wait_samples", "a number of samples as an int", _is_count, 0)
ACTIVATE = Question("should_activate_after_step", "True or False", _is_bool, False)
REBALANCE: Question[Rebalance | None] = Question(
    "request_rebalance", "a Rebalance or None", _is_rebalance, None
)
UPDATE: Question[None] = Question("update_after_step", "None", _is_none, None)


@attrs.frozen
class Interviewer:
    """Asks one policy and passes its answers on.

    Attributes:
        policy: The policy.
        strict: Whether a fault of the policy raises `PolicyError`.
        on_decision: Who listens, if anyone.
    """

    policy: DynamicSchedulePolicyBase
    strict: bool
    on_decision: Callable[[Decision], None] | None

    def ask(
        self,
        question: Question[_T],
        call: Callable[[], object],
        global_steps: int,
        ctx: DynamicScheduleContext,
    ) -> Reply[_T]:
        """Return the policy's answer, or the safe one where it gives none that can be used.

        Args:
            question: What is asked.
            call: Calls the method that answers it.
            global_steps: The parameter version, for the record.
            ctx: The snapshot, for the record.

        Raises:
            PolicyError: The policy raised or gave no usable answer, and ``strict`` is set.
        """
        answer: object = None
        cause: Exception | None = None
        try:
            answer = call()
        except Exception as error:
            cause = error
            what = f"raised {type(error).__name__}: {error}"
        else:
            if question.accepts(answer):
                return Reply(
                    question=question.name,
                    global_steps=global_steps,
                    given=_recordable(answer),
                    value=answer,
                )
            what = f"answered {reprlib.repr(answer)} ({type(answer).__name__})"
        fault = f"{type(self.policy).__name__}.{question.name} {what}"
        told = f"{fault} at global_steps {global_steps}; allowed: {question.allowed}"
        if self.strict:
            raise PolicyError(told) from cause
        _logger.error(
            "%s; going on with %r; snapshot: %r", told, question.safe, ctx, exc_info=cause
        )
        return Reply(
            question=question.name,
            global_steps=global_steps,
            given=_recordable(answer),
            value=question.safe,
            fault=fault,
        )

    def tell(self, decision: Decision) -> None:
        """Pass a decision on to whoever listens, and log it where the guard made it."""
        if decision.forced:
            _logger.info(
                "%s at global_steps %d: the policy said %r, %r holds: %s",
                decision.question,
                decision.global_steps,
                decision.answer,
                decision.effective,
                decision.reason,
            )
        if self.on_decision is not None:
            self.on_decision(decision)


def _recordable(answer: object) -> Answer:
    return answer if isinstance(answer, (int, Rebalance)) else None

"""Putting a bare policy through a history: ask in the order of the contract, note what it says."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol, TypeAlias, TypeVar

from swingshift.sdk.context import DynamicScheduleContext
from swingshift.sdk.decision import ACTIVATE, DEACTIVATE, REBALANCE, UPDATE, WAIT, Question
from swingshift.sdk.policy import DynamicSchedulePolicyBase, Rebalance
from swingshift.sdk.testing.history import Moment
from swingshift.sdk.testing.watchdog import within_limit

_T = TypeVar("_T")

Answers: TypeAlias = dict[str, object]
"""What a policy said in one moment, by question."""

ACTIVE = "should_deactivate while hybrid replicas are active"
IDLE = "should_deactivate while no hybrid replica is active"

FAULTS = (Exception, SystemExit)
"""What a policy may raise that is a fault of its own: it must not end the program either."""


class PolicyFault(Exception):  # noqa: N818  # the policy's, and no error of the kit
    """A policy raised, or gave an answer of a kind that cannot be used.

    Attributes:
        question: The method asked.
        kind: What it did, without what may differ from one time to the next.
    """

    def __init__(self, question: str, kind: str, words: str) -> None:
        """Word the message, and keep what identifies the fault."""
        super().__init__(f"{question} {words}")
        self.question = question
        self.kind = kind


class Ask(Protocol):
    """Puts one question to a policy."""

    def __call__(self, question: Question[_T], call: Callable[[], object], /) -> _T:
        """Return the answer.

        Raises:
            PolicyFault: There is none that can be used.
        """


def ask_once(question: Question[_T], call: Callable[[], object], /) -> _T:
    """Return the answer to one question.

    Args:
        question: What is asked.
        call: Calls the method that answers it.

    Raises:
        PolicyFault: The method raised, or its answer is of the wrong type.
        StuckError: The method does not come back.
    """
    try:
        answer = within_limit(question.name, call)
    except FAULTS as error:
        kind = f"raised {type(error).__name__}"
        raise PolicyFault(question.name, kind, f"{kind}: {error}") from error
    if not question.accepts(answer):
        kind = type(answer).__name__
        words = f"answered {reprlib.repr(answer)} ({kind}); allowed: {question.allowed}"
        raise PolicyFault(question.name, f"answered with {kind}", words)
    return answer


class Asked(DynamicSchedulePolicyBase):
    """A policy for the guard to ask: what goes wrong with the real one reaches it as a fault.

    With a strict guard that is a `PolicyError` whose cause is the `PolicyFault`.
    """

    def __init__(self, policy: DynamicSchedulePolicyBase) -> None:
        """Stand in for a policy.

        Args:
            policy: The bare policy.
        """
        self._policy = policy

    def should_deactivate(
        self, global_steps: int, is_hybrid_active: bool, ctx: DynamicScheduleContext
    ) -> bool:
        """Return its answer."""
        policy = self._policy
        return ask_once(
            DEACTIVATE, lambda: policy.should_deactivate(global_steps, is_hybrid_active, ctx)
        )

    def deactivate_wait_samples(self, ctx: DynamicScheduleContext) -> int:
        """Return its answer."""
        return ask_once(WAIT, lambda: self._policy.deactivate_wait_samples(ctx))

    def should_activate_after_step(
        self, global_steps: int, is_hybrid_active: bool, ctx: DynamicScheduleContext
    ) -> bool:
        """Return its answer."""
        policy = self._policy
        return ask_once(
            ACTIVATE, lambda: policy.should_activate_after_step(global_steps, is_hybrid_active, ctx)
        )

    def request_rebalance(self, global_steps: int, ctx: DynamicScheduleContext) -> Rebalance | None:
        """Return its answer."""
        return ask_once(REBALANCE, lambda: self._policy.request_rebalance(global_steps, ctx))

    def update_after_step(self, global_steps: int, ctx: DynamicScheduleContext) -> None:
        """Let it learn."""
        learn: Callable[..., object] = self._policy.update_after_step
        ask_once(UPDATE, lambda: learn(global_steps, ctx))


def at_sync(policy: DynamicSchedulePolicyBase, moment: Moment, ask: Ask = ask_once) -> Answers:
    """Ask what is asked at a weight sync, then let the policy learn.

    Args:
        policy: The bare policy.
        moment: When.
        ask: Puts each question; `update_after_step` is none.

    Raises:
        PolicyFault: The policy failed.
    """
    version, ctx = moment.version, moment.at_sync
    active = moment.is_hybrid_active
    answers: Answers = {}
    lends = ask(ACTIVATE, lambda: policy.should_activate_after_step(version, active, ctx))
    answers[ACTIVATE.name] = lends
    if lends or ctx.only_hybrid:
        answers[REBALANCE.name] = ask(REBALANCE, lambda: policy.request_rebalance(version, ctx))
    ask_once(UPDATE, lambda: _learn(policy, moment))
    return answers


def before_fit(policy: DynamicSchedulePolicyBase, moment: Moment, ask: Ask = ask_once) -> Answers:
    """Ask what is asked before a fit step, both with hybrid replicas active and without.

    Args:
        policy: The bare policy.
        moment: When.
        ask: Puts each question.

    Raises:
        PolicyFault: The policy failed.
    """
    version, ctx = moment.version, moment.before_fit
    answers: Answers = {
        IDLE: ask(DEACTIVATE, lambda: policy.should_deactivate(version, False, ctx))
    }
    returns = ask(DEACTIVATE, lambda: policy.should_deactivate(version, True, ctx))
    answers[ACTIVE] = returns
    if returns or ctx.only_hybrid:
        answers[WAIT.name] = ask(WAIT, lambda: policy.deactivate_wait_samples(ctx))
    return answers


def trace(
    policy: DynamicSchedulePolicyBase, moments: Iterable[Moment]
) -> Iterator[tuple[Moment, Answers]]:
    """Ask everything in each moment in turn, up to the policy's first fault.

    The fault itself is the last answer, so that two traces can be compared.
    """
    for moment in moments:
        try:
            answers = at_sync(policy, moment) | before_fit(policy, moment)
        except PolicyFault as fault:
            yield moment, {fault.question: fault.kind}
            return
        yield moment, answers


def difference(first: Answers, second: Answers) -> tuple[str, object, object] | None:
    """Return the first question answered differently, with both answers; ``None`` if there is none.

    A question not asked counts as answered ``None``.
    """
    for question in first | second:
        one, other = first.get(question), second.get(question)
        if one != other:
            return question, one, other
    return None


def _learn(policy: DynamicSchedulePolicyBase, moment: Moment) -> object:
    learn: Callable[..., object] = policy.update_after_step
    return learn(moment.version, moment.at_sync)

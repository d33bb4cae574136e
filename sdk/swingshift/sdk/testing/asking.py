"""Putting a bare policy through a history: ask in the order of the contract, note what it says."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol, TypeAlias, TypeVar

from swingshift.sdk.decision import ACTIVATE, DEACTIVATE, REBALANCE, UPDATE, WAIT, Question
from swingshift.sdk.policy import DynamicSchedulePolicyBase
from swingshift.sdk.testing.history import Moment

_T = TypeVar("_T")

Answers: TypeAlias = dict[str, object]
"""What a policy said in one moment, by question."""

ACTIVE = "should_deactivate while hybrid replicas are active"
IDLE = "should_deactivate while no hybrid replica is active"


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
    """
    try:
        answer = call()
    except Exception as error:
        kind = f"raised {type(error).__name__}"
        raise PolicyFault(question.name, kind, f"{kind}: {error}") from error
    if not question.accepts(answer):
        kind = type(answer).__name__
        words = f"answered {reprlib.repr(answer)} ({kind}); allowed: {question.allowed}"
        raise PolicyFault(question.name, f"answered with {kind}", words)
    return answer


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

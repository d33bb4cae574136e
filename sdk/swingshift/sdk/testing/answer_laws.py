"""Laws about single answers: a policy gives one to every question, of the right kind and range."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TypeVar

from hypothesis import strategies as st

from swingshift.sdk.context import DynamicScheduleContext
from swingshift.sdk.decision import WAIT, Question
from swingshift.sdk.policy import DynamicSchedulePolicyBase
from swingshift.sdk.testing.asking import (
    IDLE,
    Ask,
    PolicyFault,
    ask_once,
    at_sync,
    before_fit,
    trace,
)
from swingshift.sdk.testing.history import History, Moment
from swingshift.sdk.testing.law import Breach, Draw, Subject
from swingshift.sdk.testing.strategies import contexts, histories

_T = TypeVar("_T")


def total(subject: Subject, draw: Draw) -> None:
    """Judge that a policy never raises and answers with values of the right type.

    Any snapshot must do, also one that no history leads to: a resumed run begins there.
    """
    run = draw(histories() | contexts())
    if isinstance(run, History):
        moments = run.moments()
    else:
        moments = (_resumed(run, is_hybrid_active=draw(st.booleans())),)
    with subject.surroundings.still():
        policy = subject.new()
        for moment in moments:
            try:
                at_sync(policy, moment)
                before_fit(policy, moment)
            except PolicyFault as fault:
                alone = f"asked first at version {moment.version}"
                place = run.place(moment.version) if isinstance(run, History) else alone
                raise Breach(f"{place} {fault}", run) from fault


def pure_questions(subject: Subject, draw: Draw) -> None:
    """Judge that a question asked twice is answered alike and leaves the state as it was."""
    history = draw(histories())
    with subject.surroundings.still():
        policy = subject.new()
        for moment in history.moments():
            ask_twice = _asking_twice(policy, history, moment.version)
            try:
                at_sync(policy, moment, ask_twice)
                before_fit(policy, moment, ask_twice)
            except PolicyFault:
                return


def bounded_wait(subject: Subject, draw: Draw) -> None:
    """Judge that the wait is never below 0 nor above a full cycle."""
    history = draw(histories())
    most = history.step_required_samples
    with subject.surroundings.still():
        for moment, answers in trace(subject.new(), history.moments()):
            wait = answers.get(WAIT.name)
            if isinstance(wait, int) and not 0 <= wait <= most:
                place = history.place(moment.version)
                raise Breach(f"{place} the wait is {wait} (allowed 0..{most})", history)


def deactivates_only_active(subject: Subject, draw: Draw) -> None:
    """Judge that a policy does not take back what is not lent."""
    history = draw(histories())
    with subject.surroundings.still():
        for moment, answers in trace(subject.new(), history.moments()):
            if answers.get(IDLE) is True:
                raise Breach(f"{history.place(moment.version)} {IDLE} answered True", history)


def _resumed(ctx: DynamicScheduleContext, *, is_hybrid_active: bool) -> Moment:
    return Moment(
        version=ctx.expected_samples // ctx.step_required_samples,
        at_sync=ctx,
        before_fit=ctx,
        is_hybrid_active=is_hybrid_active,
    )


def _asking_twice(policy: DynamicSchedulePolicyBase, history: History, version: int) -> Ask:
    def ask_twice(question: Question[_T], call: Callable[[], object], /) -> _T:
        before = _state(policy)
        first, second = ask_once(question, call), ask_once(question, call)
        if first != second:
            what = f"answered {first} and, asked again, {second}"
            raise Breach(f"{history.place(version)} {question.name} {what}", history)
        after = _state(policy)
        changed = [name for name in before | after if before.get(name) != after.get(name)]
        if changed:
            what = ", ".join(f"{name} {before.get(name)} -> {after.get(name)}" for name in changed)
            what = f"{question.name} changed the state: {what}"
            raise Breach(f"{history.place(version)} {what}", history)
        return first

    return ask_twice


def _state(policy: DynamicSchedulePolicyBase) -> dict[str, str]:
    """Return each part of a policy's state as text; nothing where it cannot be had.

    That is a breach of another law.
    """
    try:
        return {key: json.dumps(value, default=repr) for key, value in policy.state_dict().items()}
    except Exception:
        return {}

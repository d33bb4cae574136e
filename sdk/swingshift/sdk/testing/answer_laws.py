"""Laws about single answers: a policy gives one to every question, of the right kind and range."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import TypeVar

import attrs
from hypothesis import strategies as st

from swingshift.sdk.decision import WAIT, Question
from swingshift.sdk.errors import PolicyError
from swingshift.sdk.guard import GuardedPolicy
from swingshift.sdk.policy import DynamicSchedulePolicyBase
from swingshift.sdk.testing.asking import (
    FAULTS,
    IDLE,
    Ask,
    Asked,
    PolicyFault,
    ask_once,
    at_sync,
    before_fit,
    trace,
)
from swingshift.sdk.testing.history import History, Moment
from swingshift.sdk.testing.law import Breach, Draw, Subject
from swingshift.sdk.testing.queue_model import EndlessWaitError, QueueModel
from swingshift.sdk.testing.strategies import contexts, histories, workloads
from swingshift.sdk.testing.watchdog import within_limit

_T = TypeVar("_T")


def total(subject: Subject, draw: Draw) -> None:
    """Judge that a policy never raises and answers with values of the right type.

    Also under the guard, where it is asked again as samples come.
    """
    for run in _runs(draw):
        with subject.still(run):
            policy = subject.new()
            for moment in run.moments:
                try:
                    at_sync(policy, moment)
                    before_fit(policy, moment)
                except PolicyFault as fault:
                    raise run.breach(moment, str(fault)) from fault
    workload = draw(workloads())
    with subject.still(workload):
        model = QueueModel(workload, GuardedPolicy(Asked(subject.new()), strict=True))
        try:
            model.run()
        except EndlessWaitError:
            return
        except PolicyError as error:
            if isinstance(error.__cause__, PolicyFault):
                place = f"before fit step {model.fit_steps + 1}"
                raise Breach(f"{place} {error.__cause__}", workload) from error


def pure_questions(subject: Subject, draw: Draw) -> None:
    """Judge that a question asked twice is answered alike and leaves the state as it was."""
    for run in _runs(draw):
        with subject.still(run):
            policy = subject.new()
            for moment in run.moments:
                ask_twice = _asking_twice(policy, run, moment)
                try:
                    at_sync(policy, moment, ask_twice)
                    before_fit(policy, moment, ask_twice)
                except PolicyFault:
                    break


def bounded_wait(subject: Subject, draw: Draw) -> None:
    """Judge that the wait is never below 0 nor above a full cycle."""
    for run in _runs(draw):
        with subject.still(run):
            for moment, answers in trace(subject.new(), run.moments):
                wait = answers.get(WAIT.name)
                most = moment.before_fit.step_required_samples
                if isinstance(wait, int) and not 0 <= wait <= most:
                    raise run.breach(moment, f"the wait is {wait} (allowed 0..{most})")


def deactivates_only_active(subject: Subject, draw: Draw) -> None:
    """Judge that a policy does not take back what is not lent."""
    for run in _runs(draw):
        with subject.still(run):
            for moment, answers in trace(subject.new(), run.moments):
                if answers.get(IDLE) is True:
                    raise run.breach(moment, f"{IDLE} answered True")


@attrs.frozen
class _Run:
    """What a policy is asked.

    Attributes:
        moments: When, and on which snapshots.
        drawn: What they were drawn from.
    """

    moments: tuple[Moment, ...]
    drawn: object

    def __str__(self) -> str:
        return str(self.drawn)

    def breach(self, moment: Moment, what: str) -> Breach:
        """Return the breach that came to light in a moment."""
        place = f"asked first at version {moment.version}"
        if isinstance(self.drawn, History):
            place = self.drawn.place(moment.version)
        return Breach(f"{place} {what}", self)


def _runs(draw: Draw) -> Iterator[_Run]:
    """Draw a history, then any snapshot, also one that no history leads to.

    A resumed run begins with such a one.
    """
    history = draw(histories())
    yield _Run(history.moments(), history)
    ctx = draw(contexts())
    resumed = Moment(
        version=ctx.expected_samples // ctx.step_required_samples,
        at_sync=ctx,
        before_fit=ctx,
        is_hybrid_active=draw(st.booleans()),
    )
    yield _Run((resumed,), ctx)


def _asking_twice(policy: DynamicSchedulePolicyBase, run: _Run, moment: Moment) -> Ask:
    def ask_twice(question: Question[_T], call: Callable[[], object], /) -> _T:
        before = _state(policy)
        first, second = ask_once(question, call), ask_once(question, call)
        if first != second:
            what = f"answered {first} and, asked again, {second}"
            raise run.breach(moment, f"{question.name} {what}")
        after = _state(policy)
        changed = [name for name in before | after if before.get(name) != after.get(name)]
        if changed:
            what = ", ".join(f"{name} {before.get(name)} -> {after.get(name)}" for name in changed)
            raise run.breach(moment, f"{question.name} changed the state: {what}")
        return first

    return ask_twice


def _state(policy: DynamicSchedulePolicyBase) -> dict[str, str]:
    """Return each part of a policy's state as text; nothing where it cannot be had.

    That is a breach of another law.
    """
    try:
        state = within_limit("state_dict", policy.state_dict)
        return {key: json.dumps(value, default=repr) for key, value in state.items()}
    except FAULTS:
        return {}

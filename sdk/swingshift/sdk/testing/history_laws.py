"""Laws about whole runs: a policy repeats itself, survives a restart, recovers and lets go."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence

import attrs
from hypothesis import strategies as st

from swingshift.sdk.decision import DEACTIVATE, WAIT, Decision
from swingshift.sdk.errors import PolicyError
from swingshift.sdk.guard import GuardedPolicy
from swingshift.sdk.policy import DynamicSchedulePolicyBase
from swingshift.sdk.testing.asking import (
    FAULTS,
    Answers,
    Asked,
    PolicyFault,
    at_sync,
    before_fit,
    difference,
    trace,
)
from swingshift.sdk.testing.history import Cycle, History, Moment, Regime
from swingshift.sdk.testing.law import Breach, Draw, Subject
from swingshift.sdk.testing.queue_model import EndlessWaitError, QueueModel
from swingshift.sdk.testing.strategies import cycles, histories, workloads
from swingshift.sdk.testing.watchdog import within_limit

RECOVERY_CYCLES = 51
"""Cycles with waits within which the wait comes back after a calm: the whole range in the smallest
steps of the specification's section 3.1, 1 / 0.02, and one more for rounding.
"""

FAST_RECOVERY_CYCLES = 11
"""The same where every sample was waited for, in its largest steps: 1 / 0.1, and one more."""

LONGEST_CALM = 200
"""Cycles without waits after which the wait must still come back."""


def deterministic_replay(subject: Subject, draw: Draw) -> None:
    """Judge that two policies answer one history alike, whatever else goes on.

    The second replay finds another clock and other global randomness than the first, and another
    policy is put through a history of its own in turn with it.
    """
    history, beside = draw(histories()), draw(histories(max_regimes=1))
    moments = history.moments()
    run = f"{history}; beside it, in the second replay, another policy: {beside}"
    with subject.still(run):
        first = list(trace(subject.new(), moments))
    with subject.elsewhere(run):
        # both are built before either learns
        policy, other = subject.new(), subject.new()
        in_turn = itertools.zip_longest(trace(policy, moments), trace(other, beside.moments()))
        second = [step for step, _ in in_turn if step is not None]
    found = _first_difference(first, second)
    if found is not None:
        version, question, one, two = found
        raise Breach(
            f"{history.place(version)} {question} gave {one} in one replay and {two} in another,"
            " at another time, with global randomness seeded otherwise and beside another policy"
            " of the class; a policy reads no clock, its randomness is seeded in __init__, and"
            " what it learns it keeps to itself",
            run,
        )


def state_round_trip(subject: Subject, draw: Draw) -> None:
    """Judge that a policy restored from saved state answers every later question alike."""
    history = draw(histories())
    saved_at = draw(st.integers(0, history.cycles))
    moments = history.moments()
    place = f"saved {history.place(saved_at)},"
    with subject.still(history):
        original = subject.new()
        if not _lives(original, moments[: saved_at + 1]):
            return
        try:
            state = within_limit("state_dict", original.state_dict)
            text = json.dumps(state, allow_nan=False)
        except FAULTS as error:
            what = f"state_dict fails: {type(error).__name__}: {error}"
            raise Breach(f"{place} {what}", history) from error
    with subject.still(history):
        expected = _rest(original, moments[saved_at:])
    if json.dumps(state) != text:
        what = "its state changed with the policy afterwards; it must share nothing with it"
        raise Breach(f"{place} {what}", history)
    with subject.still(history):
        restored = subject.new()
        try:
            within_limit("load_state_dict", lambda: restored.load_state_dict(json.loads(text)))
        except FAULTS as error:
            what = f"load_state_dict fails: {type(error).__name__}: {error}"
            raise Breach(f"{place} {what}", history) from error
    with subject.still(history):
        found = _first_difference(expected, _rest(restored, moments[saved_at:]))
    if found is not None:
        version, question, one, other = found
        what = f"{question} gives {one}, and {other} once restored"
        raise Breach(f"{place} then asked {history.place(version)}: {what}", history)


def no_wind_up(subject: Subject, draw: Draw) -> None:
    """Judge that a calm, however long, does not put the answer to the next shortage off.

    The wait is read on snapshots that differ in nothing but the version.
    """
    past = draw(histories(max_regimes=2))
    cycle = past.step_required_samples
    calm = Regime(
        times=draw(st.integers(1, LONGEST_CALM)), cycle=draw(_lendable(cycle, st.just(0)))
    )
    waiting = draw(_lendable(cycle, st.just(cycle) | st.integers(1, cycle)))
    recovery = FAST_RECOVERY_CYCLES if waiting.waited_samples == cycle else RECOVERY_CYCLES
    hard = Regime(times=recovery, cycle=waiting)
    history = attrs.evolve(past, regimes=(*past.regimes, calm, hard))
    with subject.still(history):
        try:
            waits = _waits(subject.new(), history)
        except PolicyFault:
            return
    if waits is None:
        return
    before, low, best = waits[past.cycles], waits[-recovery - 1], max(waits[-recovery:])
    if best < before:
        raise Breach(
            f"{history.place(past.cycles)} the wait is {before} (allowed 0..{cycle}); {calm} take"
            f" it to {low}, and then {hard} bring it back to {best} only",
            history,
        )


def liveness(subject: Subject, draw: Draw) -> None:
    """Judge, on the queue model, that a policy lets lent GPUs go before the guard has to."""
    workload = draw(workloads())

    def watch(decision: Decision) -> None:
        if decision.question == DEACTIVATE.name and decision.forced:
            raise Breach(
                f"before fit step {model.fit_steps + 1} {DEACTIVATE.name} answers False until the"
                f" guard takes the GPUs back: {model.queued} samples are queued and {_end(model)};"
                " a policy says True by itself once its queue holds ctx.attainable_samples",
                workload,
            )

    with subject.still(workload):
        guard = GuardedPolicy(Asked(subject.new()), strict=True, on_decision=watch)
        model = QueueModel(workload, guard)
        try:
            model.run()
        except EndlessWaitError as error:
            what = f"the run does not end: {model.queued} samples are queued and {_end(model)}"
            raise Breach(f"before fit step {model.fit_steps + 1} {what}", workload) from error
        except PolicyError:
            return


def _end(model: QueueModel) -> str:
    return "the data has ended" if model.data_ended else "no more can come before the next sync"


def _first_difference(
    first: Sequence[tuple[Moment, Answers]], second: Sequence[tuple[Moment, Answers]]
) -> tuple[int, str, object, object] | None:
    """Return the version, the question and both answers where two traces part."""
    for (moment, one), (_, other) in zip(first, second, strict=False):
        found = difference(one, other)
        if found is not None:
            return (moment.version, *found)
    return None


def _lives(policy: DynamicSchedulePolicyBase, moments: Sequence[Moment]) -> bool:
    """Put a policy through some moments; return whether it came through without a fault."""
    try:
        for moment in moments:
            at_sync(policy, moment)
            before_fit(policy, moment)
    except PolicyFault:
        return False
    return True


def _rest(
    policy: DynamicSchedulePolicyBase, moments: Sequence[Moment]
) -> list[tuple[Moment, Answers]]:
    """Return what a policy answers from a sync on, whose own questions are behind it."""
    now, *later = moments
    try:
        answers = before_fit(policy, now)
    except PolicyFault as fault:
        return [(now, {fault.question: fault.kind})]
    return [(now, answers), *trace(policy, later)]


def _lendable(cycle: int, waited_samples: st.SearchStrategy[int]) -> st.SearchStrategy[Cycle]:
    return cycles(cycle, waited_samples=waited_samples, only_hybrid=st.just(False))


def _waits(policy: DynamicSchedulePolicyBase, history: History) -> list[int] | None:
    """Return the wait after each version of a history; None where a policy says "not yet".

    Raises:
        PolicyFault: The policy failed.
    """
    waits = []
    for moment in history.moments():
        at_sync(policy, moment)
        neutral = history.snapshot(moment.version, Cycle())
        wait = before_fit(policy, attrs.evolve(moment, before_fit=neutral)).get(WAIT.name)
        if not isinstance(wait, int):
            return None
        waits.append(wait)
    return waits

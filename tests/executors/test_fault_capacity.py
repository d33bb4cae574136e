"""Replicas and GPUs that go, and come back, at any moment of a run."""

from __future__ import annotations

import functools
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.executors.faultworld import (
    DEADLINES,
    LENDING,
    NIGHTLY,
    WORLDS,
    Judged,
    World,
    came_back,
    judge,
)
from tests.executors.support import HYBRID, ROLLOUT_GPUS, STANDALONE, TRAINER_GPUS

from swingshift.executors.simulated.faults import FaultPlan, Loss
from swingshift.sdk.events import ControllerMoved, SwitchStep

pytestmark = pytest.mark.slow

PROMPTS = LENDING.config.rollout.total_rollout_steps
SOON, LATER, NEVER = 5.0, 40.0, None


@functools.cache
def moments() -> list[float]:
    """Return moments at and between the moves of the controller in a run without losses."""
    sink = judge(FaultPlan()).sink
    times_s = zip(sink.times_s, sink.events, strict=True)
    moves = sorted({0.0, *(t_s for t_s, event in times_s if isinstance(event, ControllerMoved))})
    between = [(one + other) / 2 for one, other in itertools.pairwise(moves)]
    every = sorted({*moves, *between})
    return every if NIGHTLY else every[::3]


@functools.cache
def lent_moments() -> list[float]:
    """Return a moment within each step of lending and returning, in a run without losses."""
    sink = judge(FaultPlan()).sink
    steps = zip(sink.times_s, sink.events, strict=True)
    within = {
        t_s - event.duration_s / 2
        for t_s, event in steps
        if isinstance(event, SwitchStep) and event.switch in ("activate", "deactivate")
    }
    every = sorted(within)
    return every if NIGHTLY else every[::3]


def loses(subject: str, at_s: float, back_after_s: float | None) -> Judged:
    """Run with one loss; whatever becomes of the run, it has to keep its promises."""
    loss = Loss(subject=subject, at_s=at_s, back_after_s=back_after_s)
    judged = judge(FaultPlan(losses=(loss,)))
    assert judged.problems == (), loss
    assert judged.report is not None
    return judged


@pytest.mark.parametrize("back_after_s", [SOON, LATER, NEVER])
@pytest.mark.parametrize("subject", [*STANDALONE, *ROLLOUT_GPUS, *HYBRID])
def test_a_lost_replica_costs_no_sample(subject: str, back_after_s: float | None) -> None:
    """Everything is trained, whenever it goes and whether it comes back or not."""
    for at_s in moments():
        report = loses(subject, at_s, back_after_s).report
        assert report is not None
        assert (report.trained_samples, report.given_up_samples) == (PROMPTS, 0), at_s


@pytest.mark.parametrize("subject", [*STANDALONE, *ROLLOUT_GPUS])
def test_lost_capacity_comes_back_into_routing(subject: str) -> None:
    """Through STALE and a sync, as the checker sees, while the run goes on."""
    judged = loses(subject, 10.0, SOON)
    assert came_back(judged.sink, f"standalone-{subject[-1]}")


@pytest.mark.parametrize("back_after_s", [SOON, LATER])
@pytest.mark.parametrize("subject", TRAINER_GPUS)
def test_a_trainer_gpu_lost_while_lent_is_waited_for(subject: str, back_after_s: float) -> None:
    """Whatever step of lending or returning it interrupts, everything is trained."""
    for at_s in lent_moments():
        report = loses(subject, at_s, back_after_s).report
        assert report is not None
        assert (report.reason, report.trained_samples) == ("", PROMPTS), at_s


@pytest.mark.parametrize("subject", TRAINER_GPUS)
def test_a_trainer_gpu_lost_at_any_moment_is_survived_or_named(subject: str) -> None:
    """A fit step that runs at that moment cannot go on without it."""
    for at_s in moments():
        report = loses(subject, at_s, SOON).report
        assert report is not None
        assert report.reason == "" or f"the trainer cannot act: {subject} lost" in report.reason


def test_a_trainer_gpu_that_stays_away_ends_the_run() -> None:
    """The wait for it has a deadline, and the reason names it."""
    report = loses("trainer-1", 30.0, NEVER).report
    assert report is not None
    wait_s = DEADLINES.wait_deadline_s
    assert f"lost trainer GPUs trainer-1 did not end within {wait_s:g} s" in report.reason


@given(
    world=st.sampled_from(WORLDS),
    drawn=st.lists(
        st.tuples(st.integers(0, 7), st.floats(0.0, 90.0), st.none() | st.floats(0.0, 60.0)),
        min_size=1,
        max_size=6,
    ),
)
def test_any_losses_are_survived_or_named(
    world: World, drawn: list[tuple[int, float, float | None]]
) -> None:
    """Several at once, again and again, of the same or of others."""
    standalone = () if world.config.only_hybrid else ROLLOUT_GPUS
    subjects = (*world.replicas, *TRAINER_GPUS, *standalone)
    losses = tuple(
        Loss(subject=subjects[number % len(subjects)], at_s=at_s, back_after_s=back_after_s)
        for number, at_s, back_after_s in drawn
    )
    assert judge(FaultPlan(losses=losses), world).problems == ()

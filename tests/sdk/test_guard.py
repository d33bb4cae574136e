"""The guard: order kept, answers bounded, faults contained."""

from __future__ import annotations

import logging

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.sdk.snapshots import SNAPSHOT, TELEMETRY

from swingshift.sdk.context import DynamicScheduleContext
from swingshift.sdk.errors import CallOrderError, PolicyError
from swingshift.sdk.guard import Decision, GuardedPolicy
from swingshift.sdk.policy import DynamicSchedulePolicyBase, Rebalance, RebalanceScope

CYCLE = SNAPSHOT.step_required_samples


class Scripted(DynamicSchedulePolicyBase):
    """Answers as told; an exception is raised instead of returned."""

    def __init__(
        self,
        *,
        deactivate: object = True,
        wait: object = 20,
        activate: object = True,
        rebalance: object = None,
        update: object = None,
    ) -> None:
        self.answers = {
            "should_deactivate": deactivate,
            "deactivate_wait_samples": wait,
            "should_activate_after_step": activate,
            "request_rebalance": rebalance,
            "update_after_step": update,
        }
        self.calls: list[str] = []

    def answer(self, question: str) -> object:
        self.calls.append(question)
        answer = self.answers[question]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def should_deactivate(
        self, global_steps: int, is_hybrid_active: bool, ctx: DynamicScheduleContext
    ) -> bool:
        return self.answer("should_deactivate")  # type: ignore[return-value]

    def deactivate_wait_samples(self, ctx: DynamicScheduleContext) -> int:
        return self.answer("deactivate_wait_samples")  # type: ignore[return-value]

    def should_activate_after_step(
        self, global_steps: int, is_hybrid_active: bool, ctx: DynamicScheduleContext
    ) -> bool:
        return self.answer("should_activate_after_step")  # type: ignore[return-value]

    def request_rebalance(self, global_steps: int, ctx: DynamicScheduleContext) -> Rebalance | None:
        return self.answer("request_rebalance")  # type: ignore[return-value]

    def update_after_step(self, global_steps: int, ctx: DynamicScheduleContext) -> None:
        self.answer("update_after_step")


@attrs.frozen
class Bench:
    """A guard whose first weight sync is behind it, with its policy and its later decisions."""

    policy: Scripted
    guard: GuardedPolicy
    decisions: list[Decision]

    def log(self) -> list[tuple[str, object, object, str]]:
        return [(d.question, d.answer, d.effective, d.reason) for d in self.decisions]


def bench(*, strict: bool = True, **answers: object) -> Bench:
    decisions: list[Decision] = []
    policy = Scripted(**answers)
    guard = GuardedPolicy(policy, strict=strict, on_decision=decisions.append)
    guard.should_activate_after_step(0, False, SNAPSHOT)
    guard.update_after_step(0, SNAPSHOT)
    policy.calls.clear()
    decisions.clear()
    return Bench(policy, guard, decisions)


def queued(samples: int, attainable: int | None = None) -> DynamicScheduleContext:
    """Return a snapshot with this many samples in the queue."""
    telemetry = attrs.evolve(TELEMETRY, queue_size=samples)
    return attrs.evolve(SNAPSHOT, telemetry=telemetry, attainable_samples=attainable)


def test_a_cycle_asks_in_the_order_of_the_contract() -> None:
    """Every answer that the policy may give itself passes unchanged."""
    scope = Rebalance(RebalanceScope.EXCESS)
    b = bench(rebalance=scope)

    assert b.guard.before_fit_step(0, True).evaluate(SNAPSHOT) == 20
    assert b.guard.should_activate_after_step(1, False, SNAPSHOT) is True
    assert b.guard.request_rebalance(1, SNAPSHOT) == scope
    b.guard.update_after_step(1, SNAPSHOT)

    assert b.policy.calls == list(b.policy.answers)
    assert [d.effective for d in b.decisions] == [True, 20, True, scope]
    assert all(d.reason == "policy" and not d.forced for d in b.decisions)
    assert [d.global_steps for d in b.decisions] == [0, 0, 1, 1]
    assert all(d.context is SNAPSHOT for d in b.decisions)


def test_not_yet_is_asked_again_and_the_wait_once() -> None:
    """``None`` until the policy agrees; its count then holds for the fit step."""
    b = bench(deactivate=False)
    reclaim = b.guard.before_fit_step(0, True)

    assert reclaim.evaluate(queued(1)) is None
    assert reclaim.evaluate(queued(2)) is None
    b.policy.answers["should_deactivate"] = True
    assert reclaim.evaluate(queued(3)) == 20
    b.policy.answers["deactivate_wait_samples"] = 50
    assert reclaim.evaluate(queued(4)) == 20

    assert b.policy.calls == ["should_deactivate"] * 3 + ["deactivate_wait_samples"]
    assert b.log() == [
        ("should_deactivate", False, False, "policy"),
        ("should_deactivate", True, True, "policy"),
        ("deactivate_wait_samples", 20, 20, "policy"),
    ]


def test_a_policy_that_never_agrees_is_overruled_when_nothing_more_can_come() -> None:
    """At what is attainable waiting longer gains nothing."""
    b = bench(deactivate=False)
    reclaim = b.guard.before_fit_step(0, True)

    assert reclaim.evaluate(queued(7, attainable=8)) is None
    assert reclaim.evaluate(queued(8, attainable=8)) == 0

    assert b.log()[-1] == ("should_deactivate", False, True, "attainable reached")
    assert b.decisions[-1].forced


def test_an_unknown_queue_counts_as_empty() -> None:
    """Without telemetry the guard overrules only where not one sample can come."""
    reclaim = bench(deactivate=False).guard.before_fit_step(0, True)

    assert reclaim.evaluate(attrs.evolve(SNAPSHOT, attainable_samples=1)) is None
    assert reclaim.evaluate(attrs.evolve(SNAPSHOT, attainable_samples=0)) == 0


def test_the_deadline_ends_every_wait() -> None:
    """Whether the policy says "not yet" or asks for samples that do not come."""
    undecided, counting = bench(deactivate=False), bench(wait=20)

    for b in (undecided, counting):
        reclaim = b.guard.before_fit_step(0, True)
        assert reclaim.evaluate(queued(3)) != 0
        assert reclaim.evaluate(queued(3), deadline_reached=True) == 0

    assert undecided.log()[-1] == ("should_deactivate", False, True, "deadline")
    assert counting.log()[-1] == ("deactivate_wait_samples", 20, 0, "deadline")


def test_the_wait_is_clamped_anew_at_every_event() -> None:
    """What is attainable may fall when data ends and rise when a replica returns."""
    b = bench(wait=40)
    reclaim = b.guard.before_fit_step(0, True)

    waits = [reclaim.evaluate(queued(3, attainable)) for attainable in (50, 30, 30, 45)]

    assert waits == [40, 30, 30, 40]
    assert b.log()[1:] == [
        ("deactivate_wait_samples", 40, 40, "policy"),
        ("deactivate_wait_samples", 40, 30, "clamped to [0, 30]"),
        ("deactivate_wait_samples", 40, 40, "policy"),
    ]


@given(
    wait=st.integers(-1_000, 1_000),
    attainable=st.none() | st.integers(0, 200),
    agrees=st.booleans(),
    only_hybrid=st.booleans(),
    late=st.booleans(),
)
def test_the_guard_never_asks_for_what_cannot_come(
    wait: int, attainable: int | None, agrees: bool, only_hybrid: bool, late: bool
) -> None:
    """Whatever the policy says, the wait is attainable, and the deadline ends it."""
    ctx = attrs.evolve(queued(5, attainable), only_hybrid=only_hybrid)
    reclaim = bench(deactivate=agrees, wait=wait).guard.before_fit_step(0, True)

    samples = reclaim.evaluate(ctx, deadline_reached=late)

    if late:
        assert samples == 0
    if samples is not None:
        assert 0 <= samples <= (CYCLE if attainable is None else attainable)
    else:
        assert not agrees
        assert not only_hybrid


@pytest.mark.parametrize(("deactivate", "wait"), [(True, 0), (False, 0), (True, CYCLE)])
def test_colocated_waits_for_the_full_cycle(deactivate: bool, wait: int) -> None:
    """What is not generated before the fit step is not generated at all."""
    b = bench(deactivate=deactivate, wait=wait)
    reclaim = b.guard.before_fit_step(0, True)

    assert reclaim.evaluate(attrs.evolve(SNAPSHOT, only_hybrid=True)) == CYCLE
    assert reclaim.evaluate(attrs.evolve(queued(3, 12), only_hybrid=True)) == 12

    assert [d.forced for d in b.decisions] == [not deactivate, wait != CYCLE, True]
    assert {d.reason for d in b.decisions if d.forced} == {"only_hybrid"}


def test_colocated_lends_at_every_sync() -> None:
    """Whatever the policy says, and also when it fails."""
    alone = attrs.evolve(SNAPSHOT, only_hybrid=True)
    for strict, answer, reason in (
        (True, False, "only_hybrid"),
        (True, True, "policy"),
        (False, ValueError("no"), "raised ValueError: no; only_hybrid"),
    ):
        b = bench(activate=answer, strict=strict)
        b.guard.before_fit_step(0, False)

        assert b.guard.should_activate_after_step(1, False, alone) is True
        assert b.decisions[-1].reason.endswith(reason)
        assert b.guard.request_rebalance(1, alone) is None


def test_nothing_lent_means_nothing_to_wait_for() -> None:
    """The policy is asked before every fit step all the same, once."""
    b = bench(deactivate=False)
    reclaim = b.guard.before_fit_step(0, False)

    assert [reclaim.evaluate(SNAPSHOT), reclaim.evaluate(SNAPSHOT)] == [0, 0]

    assert b.policy.calls == ["should_deactivate"]
    assert b.log() == [("should_deactivate", False, False, "policy")]


def test_deactivating_what_is_not_active_is_a_fault() -> None:
    """Strict: an error. Otherwise it is logged and has no effect."""
    with pytest.raises(
        PolicyError, match=r"answered True .*False while no hybrid replica is active"
    ):
        bench().guard.before_fit_step(0, False).evaluate(SNAPSHOT)

    b = bench(strict=False)
    assert b.guard.before_fit_step(0, False).evaluate(SNAPSHOT) == 0
    assert (b.decisions[0].answer, b.decisions[0].effective) == (True, False)
    assert b.decisions[0].forced


FAULTS: list[tuple[str, object]] = [
    ("should_deactivate", 1),
    ("should_deactivate", None),
    ("should_deactivate", ZeroDivisionError("x")),
    ("deactivate_wait_samples", 2.0),
    ("deactivate_wait_samples", True),
    ("deactivate_wait_samples", ValueError("x")),
    ("should_activate_after_step", "yes"),
    ("should_activate_after_step", KeyError("x")),
    ("request_rebalance", RebalanceScope.ALL),
    ("request_rebalance", RuntimeError("x")),
    ("update_after_step", RuntimeError("x")),
]


def run_cycle(guard: GuardedPolicy) -> tuple[object, ...]:
    wait = guard.before_fit_step(0, True).evaluate(SNAPSHOT)
    lends = guard.should_activate_after_step(1, False, SNAPSHOT)
    rebalance = guard.request_rebalance(1, SNAPSHOT) if lends else None
    guard.update_after_step(1, SNAPSHOT)
    return wait, lends, rebalance


@pytest.mark.parametrize(("question", "answer"), FAULTS)
def test_a_fault_raises_when_strict(question: str, answer: object) -> None:
    """The error names class, method, step and what was allowed, and keeps the cause."""
    b = bench()
    b.policy.answers[question] = answer

    with pytest.raises(PolicyError, match=rf"Scripted\.{question} .*allowed: ") as caught:
        run_cycle(b.guard)

    assert caught.value.__cause__ is (answer if isinstance(answer, Exception) else None)


@pytest.mark.parametrize(("question", "answer"), FAULTS)
def test_a_fault_gets_the_safe_answer_otherwise(
    question: str, answer: object, caplog: pytest.LogCaptureFixture
) -> None:
    """The run goes on, and the log holds the snapshot."""
    b = bench(strict=False)
    b.policy.answers[question] = answer

    with caplog.at_level(logging.ERROR):
        wait, lends, rebalance = run_cycle(b.guard)

    assert (wait, lends, rebalance) == (
        0 if question == "deactivate_wait_samples" else 20,
        question != "should_activate_after_step",
        None,
    )
    (record,) = caplog.records
    assert repr(SNAPSHOT) in record.getMessage()
    (fault,) = (d for d in b.decisions if d.forced)
    assert fault.question == question
    assert f"Scripted.{question}" in fault.reason


def test_a_forced_decision_is_logged_without_a_listener(caplog: pytest.LogCaptureFixture) -> None:
    """Nobody has to subscribe to find out that the guard decided."""
    guard = GuardedPolicy(Scripted(activate=False))

    with caplog.at_level(logging.INFO):
        guard.should_activate_after_step(0, False, attrs.evolve(SNAPSHOT, only_hybrid=True))

    assert "should_activate_after_step at global_steps 0: the policy said False" in caplog.text


def test_the_first_question_is_whether_to_lend() -> None:
    """Version 0 is synced before any fit step."""
    guard = GuardedPolicy(Scripted())

    for call in (
        lambda: guard.before_fit_step(0, False),
        lambda: guard.request_rebalance(0, SNAPSHOT),
        lambda: guard.update_after_step(0, SNAPSHOT),
    ):
        with pytest.raises(CallOrderError, match="may come now: should_activate_after_step"):
            call()


def test_calls_out_of_turn_are_refused() -> None:
    """After each step of a cycle only its successors may come."""
    guard = bench(activate=False).guard

    with pytest.raises(CallOrderError, match=r"before_fit_step$"):
        guard.should_activate_after_step(1, False, SNAPSHOT)
    guard.before_fit_step(0, False)
    guard.before_fit_step(0, False)
    with pytest.raises(CallOrderError, match=r"before_fit_step, should_activate_after_step$"):
        guard.update_after_step(1, SNAPSHOT)
    guard.should_activate_after_step(1, False, SNAPSHOT)
    with pytest.raises(CallOrderError, match="request_rebalance out of turn"):
        guard.request_rebalance(1, SNAPSHOT)
    guard.update_after_step(1, SNAPSHOT)


def test_a_rebalance_is_requested_once() -> None:
    """One activation, one rebalance."""
    guard = bench().guard
    guard.before_fit_step(0, False)
    guard.should_activate_after_step(1, False, SNAPSHOT)
    guard.request_rebalance(1, SNAPSHOT)

    with pytest.raises(CallOrderError, match=r"update_after_step$"):
        guard.request_rebalance(1, SNAPSHOT)


def test_an_old_fit_step_cannot_be_evaluated() -> None:
    """Its questions would come out of turn."""
    guard = bench().guard
    first = guard.before_fit_step(0, True)
    guard.before_fit_step(0, True)

    with pytest.raises(CallOrderError, match="this fit step is over"):
        first.evaluate(SNAPSHOT)


def test_state_passes_through() -> None:
    """A checkpoint holds the policy's state and nothing of the guard's."""
    policy, restored = Scripted(wait=7), Scripted()

    GuardedPolicy(restored).load_state_dict(GuardedPolicy(policy).state_dict())

    assert restored.answers == policy.answers
    assert GuardedPolicy(policy).policy is policy


def test_nothing_is_lent_once_production_has_ended() -> None:
    """Whatever the policy says; a full queue alone is no reason, the sync opens a new budget."""
    b = bench()
    full = queued(20, attainable=20)
    assert b.guard.before_fit_step(0, True).evaluate(full) == 20
    assert b.guard.should_activate_after_step(1, False, full) is True
    b.guard.update_after_step(1, full)
    assert b.guard.before_fit_step(1, True).evaluate(full) == 20
    assert b.guard.should_activate_after_step(2, False, full, has_ended=True) is False
    assert b.log()[-1] == ("should_activate_after_step", True, False, "nothing can come")

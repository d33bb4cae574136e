"""The shared checker of event logs: a sound log passes, and each broken one fails its check."""

from __future__ import annotations

import math

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.sdk.event_logs import (
    STARTED,
    Break,
    Log,
    all_of,
    changed,
    collected,
    decided,
    event_at,
    failed_activation_log,
    find,
    moved,
    queued,
    sound_log,
    static_log,
    step,
    step_at,
    swapped,
    timed,
    trained,
    with_after,
    with_before_end,
    without,
    without_step,
)

from swingshift.sdk.events import (
    Advisory,
    BatchCollected,
    BatchTrained,
    CapacityChanged,
    ControllerMoved,
    Event,
    FitStepEnded,
    GpuStateChanged,
    LentWaitEnded,
    MemoryMeasured,
    PolicyDecided,
    Rebalanced,
    ReplicaMoved,
    RequestReturned,
    RequestRouted,
    RoutingChanged,
    RunEnded,
    RunStarted,
    SampleGivenUp,
    SampleQueued,
    SampleSubmitted,
    StalenessReset,
    SwitchStep,
    ValidationStarted,
    WeightsSynced,
)
from swingshift.sdk.metrics import GpuSecondLedger, LedgerError
from swingshift.sdk.testing import (
    CHECKS,
    ContractViolation,
    EventLogChecker,
    Violation,
    check_event_log,
)


def failing(log: Log) -> list[str]:
    """Return the names of the checks that a log fails, each once, in order."""
    found = check_event_log((number, t_s, event) for number, (t_s, event) in enumerate(log))
    return list(dict.fromkeys(violation.check for violation in found))


def with_last_epoch(epoch: int) -> Break:
    """Put h0's stay in routing under another epoch, consistently."""
    return all_of(
        changed(RoutingChanged, 1, 2, epoch=epoch),
        changed(RequestRouted, 1, epoch=epoch),
        changed(RequestReturned, 1, epoch=epoch),
    )


def put_on_h0_while_draining(log: Log) -> Log:
    """Route the second attempt of sample 1 to the replica it was just aborted on."""
    return all_of(
        changed(RequestRouted, 3, replica="h0", epoch=2),
        changed(RequestReturned, 3, replica="h0", epoch=2),
    )(log)


CASES: dict[str, tuple[str, Break]] = {
    "nothing happened": ("bookends", lambda log: []),
    "no start": ("bookends", without(RunStarted, 0)),
    "two starts": ("bookends", with_after(RunStarted, 0, STARTED)),
    "no end": ("bookends", without(RunEnded, 0)),
    "two ends": ("bookends", with_before_end(RunEnded("exhausted", "", 2, 1, 1))),
    "time goes back": ("time", lambda log: [*log[:-1], (log[-2][0] - 0.5, log[-1][1])]),
    "time is no number": ("time", lambda log: [*log[:-1], (math.nan, log[-1][1])]),
    "time is infinite": ("time", lambda log: [*log[:-1], (math.inf, log[-1][1])]),
    # state machines and weights
    "leaves another state": ("replica_lifecycle", changed(ReplicaMoved, 8, before="draining")),
    "wakes with weights": ("replica_lifecycle", changed(ReplicaMoved, 2, version=5)),
    "unheard-of state": ("replica_lifecycle", changed(ReplicaMoved, 3, after="flying")),
    "out of an unheard-of state": (
        "replica_lifecycle",
        all_of(
            changed(ReplicaMoved, 3, after="flying"),
            changed(ReplicaMoved, 4, before="flying"),
        ),
    ),
    "unheard-of replica": (
        "replica_lifecycle",
        with_before_end(ReplicaMoved("h9", "asleep", "waking", None)),
    ),
    "controller elsewhere": ("controller_lifecycle", changed(ControllerMoved, 3, before="blocked")),
    "controller jumps": (
        "controller_lifecycle",
        with_before_end(ControllerMoved("standalone_only", "blocked")),
    ),
    "serves old weights": ("weight_versions", without(ReplicaMoved, -1)),
    "serves what no sync brought": ("weight_versions", without(WeightsSynced, 0)),
    "serves another version": ("weight_versions", changed(WeightsSynced, 0, version=-1)),
    "syncs old weights": ("weight_versions", changed(WeightsSynced, -1, version=-1)),
    "skips a version": (
        "weight_versions",
        all_of(changed(StalenessReset, 1, version=2), without(PolicyDecided, -1)),
    ),
    # routing and requests
    "routed before SERVING": (
        "routing",
        swapped(event_at(ReplicaMoved, 1), event_at(RoutingChanged, 0)),
    ),
    "drains in routing": ("routing", moved(event_at(ReplicaMoved, 6), event_at(RoutingChanged, 2))),
    "leaves another epoch": ("routing", changed(RoutingChanged, 2, epoch=9)),
    "enters an old epoch": ("routing", with_last_epoch(1)),
    "enters twice": ("routing", with_before_end(RoutingChanged("s0", True, 3))),
    "request of another epoch": (
        "routing",
        all_of(*(changed(kind, 0, epoch=7) for kind in (RequestRouted, RequestReturned))),
    ),
    "request to a draining replica": ("routing", put_on_h0_while_draining),
    "routed while routed": ("requests", without(RequestReturned, 1)),
    "never returns": ("requests", without(RequestReturned, -1)),
    "returns twice": (
        "requests",
        with_after(RequestReturned, 0, RequestReturned("0/0", "s0", 1, "stop", 100)),
    ),
    "returns from elsewhere": ("requests", changed(RequestReturned, 0, epoch=3)),
    "skips an attempt": ("requests", changed(RequestRouted, 3, attempt=3)),
    "loses a token": ("requests", changed(RequestRouted, 3, resumed_tokens=49)),
    "forgets what it has": ("requests", changed(RequestRouted, 3, resumed_tokens=0)),
    "resumes what was lost": ("requests", changed(RequestRouted, 4, resumed_tokens=10)),
    # switches
    "KV cache before offload": (
        "activation_order",
        swapped(step_at("activate", "wake_kv_cache"), step_at("activate", "offload_parameters")),
    ),
    "no offload": (
        "activation_order",
        without_step("activate", "offload_optimizer_and_gradients"),
    ),
    "no wake": ("activation_order", without_step("activate", "wake_weights")),
    "no second offload": ("activation_order", without_step("activate", "offload_parameters")),
    "no canary": ("activation_order", without_step("activate", "canary")),
    "sync after offload": (
        "activation_order",
        swapped(event_at(WeightsSynced, 1), step_at("activate", "offload_parameters")),
    ),
    "strange step": ("activation_order", with_after(SwitchStep, 0, step("activate", "bask", "h0"))),
    "wakes at home": ("activation_order", with_before_end(step("activate", "wake_weights", "h0"))),
    "rebalance step at home": (
        "activation_order",
        with_before_end(step("rebalance", "abort", "s0")),
    ),
    "rebalance at home": ("activation_order", with_before_end(Rebalanced("all", {}))),
    "hybrid sync at home": (
        "activation_order",
        with_before_end(WeightsSynced(1, "hybrid", {"h0": "synced"}, 1.0)),
    ),
    "reloads swapped": (
        "deactivation_order",
        swapped(
            step_at("deactivate", "reload_parameters"),
            step_at("deactivate", "reload_optimizer_and_gradients"),
        ),
    ),
    "no abort": ("deactivation_order", without_step("deactivate", "abort")),
    "no reload": ("deactivation_order", without_step("deactivate", "reload_parameters")),
    "measured too late": (
        "deactivation_order",
        swapped(event_at(MemoryMeasured), step_at("deactivate", "reload_parameters")),
    ),
    "left half asleep": ("deactivation_order", without(ReplicaMoved, 8)),
    "aborted in routing": (
        "deactivation_order",
        moved(step_at("deactivate", "abort"), event_at(RoutingChanged, 2)),
    ),
    "strange way back": (
        "deactivation_order",
        with_after(MemoryMeasured, 0, step("deactivate", "bask")),
    ),
    "sleeps at home": ("deactivation_order", with_before_end(step("deactivate", "sleep", "h0"))),
    "measured at home": (
        "deactivation_order",
        with_before_end(MemoryMeasured({"t0": 100}, {"t0": 90})),
    ),
    "not measured": ("memory_returned", without(MemoryMeasured, 0)),
    "too little memory": ("memory_returned", changed(MemoryMeasured, 0, free_bytes={"t0": 89})),
    "another GPU measured": ("memory_returned", changed(MemoryMeasured, 0, free_bytes={})),
    "trains while lent": (
        "training_place",
        with_after(StalenessReset, 0, GpuStateChanged(("t0",), "train")),
    ),
    "lends while training": (
        "training_place",
        with_after(CapacityChanged, 0, GpuStateChanged(("t0",), "train")),
    ),
    "syncs while training": (
        "exclusion",
        with_after(SampleGivenUp, 0, WeightsSynced(0, "catch_up", {"s0": "synced"}, 0.5)),
    ),
    "goes on training": ("exclusion", without(GpuStateChanged, -1)),
    "sync began while training": ("exclusion", changed(WeightsSynced, -1, duration_s=6.0)),
    "two syncs at once": ("exclusion", changed(WeightsSynced, 1, duration_s=10.0)),
    "offloads during a sync": ("exclusion", changed(SwitchStep, 2, duration_s=1.5)),
    # samples
    "submitted twice": (
        "samples",
        with_after(SampleGivenUp, 0, SampleSubmitted(0, 0, 1, 3), SampleGivenUp(0, 0, "again")),
    ),
    "queued out of nowhere": ("samples", with_before_end(queued(9, 0, 1))),
    "given up out of nowhere": ("samples", with_before_end(SampleGivenUp(9, 0, "who is it?"))),
    "trained unqueued": ("samples", changed(BatchCollected, 0, samples=(0, 1, 5))),
    "twice in a batch": ("samples", changed(BatchCollected, 0, samples=(0, 1, 1))),
    "another batch": ("samples", changed(BatchTrained, 0, batch=4)),
    "trained miscounted": ("samples", changed(RunEnded, 0, trained_samples=1)),
    "unused miscounted": ("samples", changed(RunEnded, 0, unused_samples=5)),
    "given up miscounted": ("samples", changed(RunEnded, 0, given_up_samples=0)),
    "one forgotten": (
        "samples",
        all_of(changed(RunStarted, 0, total_samples=4), changed(RunEnded, 0, unused_samples=2)),
    ),
    "active at submission": ("counts", changed(SampleSubmitted, 1, active=5)),
    "active when queued": ("counts", changed(SampleQueued, 1, active=0)),
    "queue size when queued": ("counts", changed(SampleQueued, 1, queue_size=1)),
    "active when given up": ("counts", changed(SampleGivenUp, 0, active=1)),
    "active at the sync": ("counts", changed(StalenessReset, 1, active=1)),
    "queued at the sync": ("counts", changed(StalenessReset, 1, queued=1)),
    "queue size after the wait": ("counts", changed(LentWaitEnded, 0, queue_size=0)),
    "queue size after the step": ("counts", changed(FitStepEnded, 0, mq_size=2)),
    "staleness miscounted": ("staleness", changed(SampleSubmitted, 2, staleness_samples=2)),
    "staleness reset wrongly": ("staleness", changed(StalenessReset, 1, staleness_samples=1)),
    "cap too high": ("capacity", changed(CapacityChanged, 1, capacity=4)),
    "servers miscounted": ("capacity", changed(CapacityChanged, 1, servers=1)),
    "above the cap": ("capacity", without(CapacityChanged, 1)),
    # the policy and the ledger
    "sync unasked": ("policy_order", without(PolicyDecided, 0)),
    "lends though told not to": ("policy_order", changed(PolicyDecided, 0, effective=False)),
    "returns though told not to": ("policy_order", changed(PolicyDecided, 2, effective=False)),
    "asked about another version": ("policy_order", changed(PolicyDecided, 2, global_steps=1)),
    "waits too long": ("policy_order", changed(PolicyDecided, 3, effective=4)),
    "waits for nothing known": ("policy_order", changed(PolicyDecided, 3, effective=None)),
    "rebalance of another version": ("policy_order", changed(PolicyDecided, 1, global_steps=1)),
    "trains unasked": ("policy_order", without(PolicyDecided, 2, 3)),
    "next sync unasked": ("policy_order", without(PolicyDecided, 4)),
    "asked before the fit steps": (
        "policy_order",
        with_before_end(decided("should_activate_after_step", 2, False)),
    ),
    "rebalance without lending": (
        "policy_order",
        with_before_end(decided("request_rebalance", 1, None)),
    ),
    "strange question": ("policy_order", with_before_end(decided("should_i_stay", 1, True))),
    "a policy where there is none": ("policy_order", changed(RunStarted, 0, policy="none")),
    "strange GPU": ("gpu_ledger", with_before_end(GpuStateChanged(("t9",), "idle"))),
    "strange GPU state": ("gpu_ledger", with_before_end(GpuStateChanged(("r0",), "dancing"))),
}


def test_sound_log_has_no_violations() -> None:
    """What a run ought to do is not reported."""
    assert failing(sound_log()) == []
    assert failing(failed_activation_log()) == []


def test_steps_may_fail_and_be_tried_again() -> None:
    """A step counts once it is done; a policy's failure to learn is a decision like any other."""
    canary = SwitchStep("activate", "canary", ("h0",), 1.0, "no answer")
    sleep = SwitchStep("deactivate", "sleep", ("h0",), 1.0, "it did not end")
    reloads = [
        attrs.evolve(step("deactivate", f"reload_{part}"), duration_s=0.0, outcome=outcome)
        for part, outcome in (("parameters", "done"), ("optimizer_and_gradients", "cancelled"))
    ]
    tried_again = all_of(
        with_after(SwitchStep, 4, canary),
        with_after(ReplicaMoved, 7, sleep),
        with_after(MemoryMeasured, 0, *reloads),
        with_before_end(decided("update_after_step", 1, None)),
    )

    assert failing(tried_again(sound_log())) == []


def test_a_response_of_one_version_may_begin_again_under_another() -> None:
    """What it had is forgotten with the weights that made it."""
    begun_again = all_of(
        with_after(RequestReturned, 1, ReplicaMoved("s0", "serving", "serving", 1)),
        changed(RequestRouted, 3, resumed_tokens=0),
    )

    assert failing(begun_again(sound_log())) == []


def with_second_turn(**routed: object) -> Break:
    """Give sample 0 a second turn, cancelled in the middle, and a third one."""
    third = RequestRouted("0/0", "s0", 1, 4, 100)
    return with_after(
        RequestReturned,
        0,
        RequestRouted("0/0", "s0", 1, 2, 100),
        RequestReturned("0/0", "s0", 1, "abort", 7),
        RequestRouted("0/0", "s0", 1, 3, 107),
        RequestReturned("0/0", "s0", 1, "cancelled", 0),
        attrs.evolve(third, **routed),  # type: ignore[arg-type]
        RequestReturned("0/0", "s0", 1, "length", 5),
    )


def test_an_episode_may_have_several_turns() -> None:
    """A response that stopped is routed again; what a turn did that was given up is gone."""
    assert failing(with_second_turn()(sound_log())) == []


@pytest.mark.parametrize("routed", [{"attempt": 1}, {"resumed_tokens": 107}, {"resumed_tokens": 0}])
def test_a_further_turn_goes_on_with_what_there_is(routed: dict[str, int]) -> None:
    """Attempts count on over the turns, and tokens are those of the finished ones."""
    assert failing(with_second_turn(**routed)(sound_log())) == ["requests"]


def test_a_response_at_its_budget_has_no_further_turn() -> None:
    """Whatever comes under its name counts as new."""
    again = RequestRouted("0/0", "s0", 1, 5, 105)
    returned = RequestReturned("0/0", "s0", 1, "stop", 1)
    further = all_of(with_second_turn(), with_after(RequestReturned, 3, again, returned))

    assert failing(further(sound_log())) == ["requests"]


def test_what_was_found_can_be_asked_after_every_event() -> None:
    """Whoever wants to stop at the first violation sees it at once, and at no earlier event."""
    checker, first = EventLogChecker(), None
    for number, (t_s, event) in enumerate(changed(RequestRouted, 3, attempt=3)(sound_log())):
        checker.write(number, t_s, event)
        if checker.found and first is None:
            first = event

    assert isinstance(first, RequestRouted)
    assert first.attempt == 3
    assert [violation.check for violation in checker.found] == ["requests"]


@pytest.mark.parametrize(("check", "broken"), CASES.values(), ids=CASES)
def test_broken_log_fails_its_check_and_no_other(check: str, broken: Break) -> None:
    """Each fault is found by the check that is named after it."""
    assert failing(broken(sound_log())) == [check]


def test_activation_needs_a_replica_in_routing_at_its_end() -> None:
    """HYBRID_ACTIVE without any hybrid replica that serves is a fault."""
    broken = all_of(
        without(RoutingChanged, 1), without(CapacityChanged, 1), without(ReplicaMoved, 5)
    )

    assert failing(broken(failed_activation_log())) == ["activation_order"]


UNTIL_LENT = [event for _, event in sound_log()[: find(sound_log(), ControllerMoved)]]
LENT = [
    ControllerMoved("standalone_only", "activating"),
    ControllerMoved("activating", "hybrid_active"),
    ControllerMoved("hybrid_active", "deactivating"),
    ControllerMoved("deactivating", "standalone_only"),
]


def lent_after(*events: Event) -> Log:
    """Return the log of a lending that was rolled back, and of a later one after some events."""
    rolled_back: list[Event] = [
        ControllerMoved("standalone_only", "activating"),
        ControllerMoved("activating", "deactivating"),
        ControllerMoved("deactivating", "standalone_only"),
        StalenessReset(0, 0, 0, 0),
        decided("should_deactivate", 0, False),
    ]
    return timed([*UNTIL_LENT, *rolled_back, *events, *LENT])


def test_a_lending_for_validation_needs_no_leave_of_the_policy() -> None:
    """Neither to begin nor to end, also where one of the policy's own was rolled back before."""
    assert "policy_order" not in failing(lent_after(ValidationStarted(0)))
    assert "policy_order" in failing(lent_after())


def test_a_leave_to_lend_that_came_to_nothing_does_not_outlive_its_cycle() -> None:
    """Where there was nothing to lend, a lending of another kind comes and goes by itself."""
    log = timed(
        [
            *UNTIL_LENT,
            StalenessReset(0, 0, 0, 0),
            decided("should_deactivate", 0, False),
            RoutingChanged("s0", False, 1),
            *LENT,
        ]
    )

    assert "policy_order" not in failing(log)


def test_replica_lost_while_lent_may_come_back() -> None:
    """A restart of one hybrid replica while the others are lent is no activation of its own."""
    returns = with_after(
        StalenessReset,
        0,
        RoutingChanged("h0", False, 2),
        CapacityChanged(1, 2),
        ReplicaMoved("h0", "serving", "dead", None),
        ReplicaMoved("h0", "dead", "stale", None),
        ReplicaMoved("h0", "stale", "stale", 0),
        WeightsSynced(0, "hybrid", {"h0": "synced"}, 1.0),
        ReplicaMoved("h0", "stale", "serving", 0),
        RoutingChanged("h0", True, 3),
        CapacityChanged(2, 3),
    )
    later = all_of(
        changed(RoutingChanged, -1, epoch=3),
        changed(RequestRouted, 1, epoch=3),
        changed(RequestReturned, 1, epoch=3),
    )

    assert failing(later(returns(sound_log()))) == []


def test_batch_trained_while_lent_is_found() -> None:
    """The fit step counts, whatever the GPUs are booked under."""
    log: Log = [
        (0.0, attrs.evolve(STARTED, policy="none")),
        (1.0, ControllerMoved("standalone_only", "activating")),
        (2.0, collected()),
        (3.0, trained(0)),
        (4.0, RunEnded("failed", "a bug", 0, 3, 0)),
    ]

    assert failing(log) == ["training_place"]


def test_queue_over_its_bound_is_found() -> None:
    """The bound holds also where a collection larger than it excuses the submissions."""
    started = attrs.evolve(STARTED, required_samples=10, max_required_samples=1, total_samples=2)
    events: list[Event] = [
        SampleSubmitted(0, 0, 1, 1),
        queued(0, 0, 1),
        SampleSubmitted(1, 0, 1, 2),
        queued(1, 0, 2),
        RunEnded("exhausted", "", 0, 2, 0),
    ]

    assert failing(static_log(started, *events)) == ["queue_bound"]


def test_submission_beyond_the_staleness_budget_is_found() -> None:
    """With a collection's worth in stock nothing excuses one more."""
    started = attrs.evolve(STARTED, required_samples=1, max_required_samples=1, total_samples=2)
    events: list[Event] = [
        SampleSubmitted(0, 0, 1, 1),
        queued(0, 0, 1),
        SampleSubmitted(1, 0, 1, 2),
        SampleGivenUp(1, 0, "it failed"),
        RunEnded("exhausted", "", 0, 2, 1),
    ]

    assert failing(static_log(started, *events)) == ["staleness"]


@given(st.lists(st.tuples(st.integers(0, 76), st.integers(0, 76)), max_size=20))
def test_whatever_the_order_faults_are_reported_and_not_raised(
    moves: list[tuple[int, int]],
) -> None:
    """Events that come too early, too late, twice or never: the checker looks on."""
    log = sound_log()
    for source, target in moves:
        log[target] = log[source]

    assert set(failing(log)) <= set(CHECKS)


def test_sequence_numbers_have_no_gap() -> None:
    """A lost event and a repeated one both show."""
    log = [(number, t_s, event) for number, (t_s, event) in enumerate(sound_log())]

    for broken in (
        [*log[:5], *((n + 1, t, e) for n, t, e in log[5:])],
        [(3, *log[0][1:]), *log[1:]],
    ):
        assert {violation.check for violation in check_event_log(broken)} == {"sequence"}


def test_ledger_that_does_not_balance_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the ledger says against its own books is a violation."""

    def unbalanced(ledger: GpuSecondLedger, t_s: float) -> None:
        raise LedgerError("a second is missing")

    monkeypatch.setattr(GpuSecondLedger, "check", unbalanced)
    assert failing(sound_log()) == ["gpu_ledger"]


def test_every_check_has_a_broken_double() -> None:
    """A check that nothing fails proves nothing."""
    elsewhere = {"sequence", "queue_bound"}

    assert {check for check, _ in CASES.values()} == set(CHECKS) - elsewhere


def test_assert_sound_lists_every_violation() -> None:
    """One error tells all: check, event, time and fault."""
    checker = EventLogChecker()
    log = all_of(changed(FitStepEnded, 0, mq_size=2), without(RequestReturned, -1))(sound_log())
    for number, (t_s, event) in enumerate(log):
        checker.write(number, t_s, event)

    with pytest.raises(ContractViolation, match="in 2 places") as caught:
        checker.assert_sound()
    assert [violation.check for violation in caught.value.violations] == ["counts", "requests"]
    assert "counts: at event 71 (72 s): 2 queued samples reported, 0 counted" in str(caught.value)
    assert "requests: at the end (76 s): 2/0 was routed to s0 and never returned" in str(
        caught.value
    )
    assert checker.violations() == caught.value.violations


def test_assert_sound_is_silent_about_a_sound_run() -> None:
    """Nothing is raised, and asking twice changes nothing."""
    checker = EventLogChecker()
    for number, (t_s, event) in enumerate(sound_log()):
        checker.write(number, t_s, event)

    checker.assert_sound()
    checker.assert_sound()


def test_events_before_the_first_are_reported_once() -> None:
    """Without an inventory nothing can be judged, and one line says so."""
    early: Log = [(0.0, Advisory("hello")), (0.0, Advisory("is anybody there?"))]

    found = check_event_log((n, t, e) for n, (t, e) in enumerate([*early, *sound_log()]))

    assert [(violation.check, violation.sequence) for violation in found] == [("bookends", 0)]


def test_violation_names_its_place() -> None:
    """A single one reads as a sentence."""
    violation = Violation(check="time", sequence=3, t_s=1.5, text="it stood still")

    error = ContractViolation("the clock", [violation])
    assert str(error) == (
        "the clock breaks its contract in 1 place:\n  time: at event 3 (1.5 s): it stood still"
    )

"""The modes of a run: colocated, static, without hybrids, with one version per response or more."""

from __future__ import annotations

import pytest
from tests.executors.support import ScriptedPolicy, run_training, small_config

from swingshift.sdk.events import (
    BatchTrained,
    ControllerMoved,
    CycleEnded,
    LentWaitEnded,
    PolicyDecided,
    RequestReturned,
    RequestRouted,
    RunStarted,
    SampleQueued,
    StalenessReset,
)
from swingshift.sdk.policy import DynamicSchedulePolicyBase
from swingshift.sdk.registry import build_policy


@pytest.mark.parametrize(
    "policy",
    [ScriptedPolicy(lend=False, wait=0), build_policy("static_fully_async", only_hybrid=True)],
    ids=["unwilling", "static_fully_async"],
)
def test_without_standalone_replicas_every_cycle_is_lent(
    policy: DynamicSchedulePolicyBase,
) -> None:
    """Whatever the policy says: lent at every sync, and taken back with the full cycle in stock.

    After the last cycle nothing can come any more, and nothing is lent.
    """
    ran = run_training(small_config(rollout_nodes=0, prompts=32), policy)

    lent = [event for event in ran.sink.of(ControllerMoved) if event.after == "hybrid_active"]
    waits = ran.sink.of(LentWaitEnded)
    assert ran.report.trained_samples == 32
    assert len(lent) == len(ran.sink.of(StalenessReset)) - 1 == 4
    assert [(wait.target_samples, wait.queue_size) for wait in waits[:4]] == [(8, 8)] * 4
    forced = [event.reason for event in ran.sink.of(PolicyDecided) if event.forced]
    assert set(forced[:-1]) <= {"only_hybrid"}
    assert forced[-1] in ("only_hybrid", "nothing can come")


def test_hybrids_alone_are_never_idle_while_lent() -> None:
    """Colocated, a cycle's generation and training take turns on the same GPUs."""
    ran = run_training(small_config(rollout_nodes=0, prompts=32), ScriptedPolicy())

    for cycle in ran.report.cycles:
        assert cycle["timing_s/wait_for_enough_samples"] > 0.0
        assert cycle["timing_s/gen"] == 0.0


def test_static_policy_never_lends() -> None:
    """Hybrid replicas are there and stay asleep."""
    ran = run_training(small_config(), build_policy("static_fully_async"))

    [started] = ran.sink.of(RunStarted)
    assert "hybrid" in started.replica_kinds.values()
    assert ran.sink.of(ControllerMoved) == []
    assert ran.report.trained_samples == 48


def test_static_policy_equals_a_run_without_hybrids() -> None:
    """Not lending costs nothing: both runs take the same time."""
    never = run_training(small_config(), build_policy("static_fully_async")).report
    without = run_training(small_config(dynamic=False)).report

    assert never.wall_clock_s == without.wall_clock_s
    assert never.cycles == without.cycles


def test_master_switch_off_has_no_hybrid_replicas() -> None:
    """The trainer's GPUs are in the books, but nothing can be lent."""
    ran = run_training(small_config(dynamic=False))

    [started] = ran.sink.of(RunStarted)
    assert set(started.replica_kinds.values()) == {"standalone"}
    assert started.policy == "none"
    assert started.hybrid_gpus == ("trainer-0", "trainer-1")
    assert ran.sink.of(PolicyDecided) == []


def spans_of(training: dict[str, bool], *, pause_keep: bool = True) -> tuple[int, int, int]:
    """Return trained responses of several versions, their longest span, and resumed attempts."""
    config = small_config(dynamic=False, prompts=64, training=training)
    sink = run_training(config, pause_keep=pause_keep).sink
    trained = sink.of(BatchTrained)
    return (
        sum(event.partial_trajectories for event in trained),
        max(event.max_partial_span for event in trained),
        sum(event.attempt > 1 for event in sink.of(RequestRouted)),
    )


def test_keeping_requests_through_a_sync_gives_several_versions() -> None:
    """A response in flight at a sync goes on under the new weights, in the same attempt."""
    partial, span, resumed = spans_of({"partial_rollout": True})

    assert partial > 0
    assert span >= 1
    assert resumed == 0


def test_engines_that_cannot_keep_resume_after_an_abort() -> None:
    """The response has the same versions in it, in more than one attempt."""
    partial, span, resumed = spans_of({"partial_rollout": True}, pause_keep=False)

    assert partial > 0
    assert span >= 1
    assert resumed > 0


def test_without_partial_rollout_a_response_has_one_version() -> None:
    """Responses in flight end before the sync."""
    assert spans_of({"partial_rollout": False}) == (0, 0, 0)


@pytest.mark.parametrize("rollout_nodes", [0, 1])
def test_lending_without_partial_rollout_keeps_versions_apart(rollout_nodes: int) -> None:
    """Requests of lent replicas end there or move, and never mix versions."""
    config = small_config(rollout_nodes=rollout_nodes, training={"partial_rollout": False})

    ran = run_training(config, ScriptedPolicy(wait=4))

    assert all(event.max_partial_span == 0 for event in ran.sink.of(BatchTrained))
    assert all(event.first_version == event.last_version for event in ran.sink.of(SampleQueued))
    reasons = {event.reason for event in ran.sink.of(RequestReturned)}
    assert ("abort" in reasons) == (rollout_nodes == 1)


def test_no_staleness_means_no_stock_at_a_sync() -> None:
    """With a threshold of 0 nothing is generated ahead of its cycle."""
    ran = run_training(small_config(training={"staleness_threshold": 0.0}))

    first, *later = ran.sink.of(StalenessReset)
    assert first.queued == 0
    assert {reset.staleness_samples for reset in later} == {0}
    assert all(event.stale_samples == 0 for event in ran.sink.of(BatchTrained))


def test_cycles_are_reported_once_and_in_order() -> None:
    """One set of metrics per weight sync after the first."""
    ran = run_training()

    assert [event.version for event in ran.sink.of(CycleEnded)] == [1, 2, 3, 4, 5, 6]
    assert tuple(event.metrics for event in ran.sink.of(CycleEnded)) == ran.report.cycles


@pytest.mark.parametrize("partial_rollout", [True, False])
def test_a_willing_policy_is_lent_to_in_every_cycle(partial_rollout: bool) -> None:
    """Also where every response ends before the sync: the sync itself opens the next budget."""
    config = small_config(prompts=80, training={"partial_rollout": partial_rollout})

    ran = run_training(config, ScriptedPolicy(wait=4))

    lent = [event for event in ran.sink.of(ControllerMoved) if event.after == "hybrid_active"]
    cycles = len(ran.sink.of(StalenessReset))
    assert cycles == 11
    assert len(lent) >= cycles - 2

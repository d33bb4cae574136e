"""Whole trainings of a tiny model on two devices, each with its event log checked."""

from __future__ import annotations

import pytest
from tests.executors.local_runs import (
    ROLLOUT_BOUND,
    LocalRun,
    local_config,
    run_local,
    train_locally,
)
from tests.executors.support import ScriptedPolicy

from swingshift.executors.runtime.run import RunOutcome
from swingshift.sdk.config import RunConfig
from swingshift.sdk.events import (
    BatchCollected,
    BatchTrained,
    ControllerMoved,
    FitStepEnded,
    RequestReturned,
    RequestRouted,
    StalenessReset,
)
from swingshift.sdk.policy import DynamicSchedulePolicyBase

KEPT, ABORTED = (f"async_training.partial_rollout={value}" for value in ("true", "false"))
COLOCATED = "rollout.nnodes=0"


def run(config: RunConfig, policy: DynamicSchedulePolicyBase | None = None) -> LocalRun:
    return run_local(train_locally(config, policy))


def routed_to(ran: LocalRun) -> set[str]:
    return {event.replica for event in ran.sink.of(RequestRouted)}


def expect_all_trained(ran: LocalRun) -> None:
    """Expect the whole data trained, each sample once, and every payload freed."""
    trained = [name for event in ran.sink.of(BatchCollected) for name in event.samples]
    assert (ran.report.outcome, ran.report.reason) == (RunOutcome.EXHAUSTED, "")
    assert sorted(trained) == list(range(48))
    assert ran.report.trained_samples == 48
    assert ran.report.unused_samples == ran.report.given_up_samples == 0
    assert ran.payloads == 0


@pytest.mark.slow
@pytest.mark.parametrize("partial", [KEPT, ABORTED])
@pytest.mark.parametrize("policy", ["default", "static_fully_async"])
@pytest.mark.parametrize("place", ["rollout.nnodes=1", COLOCATED])
def test_a_run_trains_all_of_its_data(place: str, policy: str, partial: str) -> None:
    """Under each policy, with and without devices of its own for rollout."""
    name = f"async_training.dynamic_schedule_policy={policy}"
    ran = run(local_config(place, partial, name, *ROLLOUT_BOUND))
    expect_all_trained(ran)
    lends = place == COLOCATED or policy == "default"
    assert ("hybrid-0" in routed_to(ran)) <= lends
    if place == COLOCATED:
        assert routed_to(ran) == {"hybrid-0"}


def test_without_dynamic_scheduling_there_is_no_hybrid_replica() -> None:
    """The plain asynchronous trainer: one process to train, one to generate."""
    ran = run(local_config(dynamic=False))
    expect_all_trained(ran)
    assert routed_to(ran) == {"standalone-0"}
    assert ran.sink.of(ControllerMoved) == []


def test_lent_devices_generate_and_go_back_to_training() -> None:
    """At every sync, if the policy says so; requests under way then are ended elsewhere."""
    ran = run(local_config(*ROLLOUT_BOUND), ScriptedPolicy(wait=1))
    expect_all_trained(ran)
    assert routed_to(ran) == {"standalone-0", "hybrid-0"}
    lent = [event for event in ran.sink.of(ControllerMoved) if event.after == "hybrid_active"]
    assert len(lent) >= len(ran.sink.of(StalenessReset)) - 2
    assert any(event.reason == "abort" for event in ran.sink.of(RequestReturned))


@pytest.mark.slow
def test_a_response_goes_on_under_new_weights_where_it_may() -> None:
    """And otherwise is of one version."""
    for partial in (KEPT, ABORTED):
        ran = run(local_config(partial, *ROLLOUT_BOUND, dynamic=False))
        expect_all_trained(ran)
        mixed = sum(event.partial_trajectories for event in ran.sink.of(BatchTrained))
        assert (mixed > 0) is (partial == KEPT)


def test_several_devices_of_each_kind() -> None:
    """Two ranks train together, and four replicas generate."""
    devices = ("trainer.n_gpus_per_node=2", "rollout.n_gpus_per_node=2")
    config = local_config(*devices, *ROLLOUT_BOUND)
    ran = run(config, ScriptedPolicy())
    expect_all_trained(ran)
    assert routed_to(ran) == {"standalone-0", "standalone-1", "hybrid-0", "hybrid-1"}


def test_a_run_reports_what_it_measured() -> None:
    """Seconds of each part of a step, those that have to be asked for too, and the reward."""
    learning = ("kl_coefficient=0.01", "critic=true", "old_log_prob=true")
    ran = run(local_config(*(f"executor.learning.{it}" for it in learning)))
    expect_all_trained(ran)
    parts = {"old_log_prob", "ref", "values", "adv", "update_critic", "update_actor"}
    for event in ran.sink.of(BatchTrained):
        assert 0.0 <= event.metrics["reward/mean"] <= 1.0
        assert event.timing_s.keys() == parts
    for step in ran.sink.of(FitStepEnded):
        assert parts | {"gen", "step"} <= step.timing_s.keys()
        assert sum(step.timing_s[part] for part in parts) <= step.timing_s["step"]

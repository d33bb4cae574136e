"""What policies see: the values of a snapshot, cycle by cycle, and measured rates."""

from __future__ import annotations

import pytest
from tests.executors.support import Ran, ScriptedPolicy, run_training, small_config

from swingshift.executors.runtime.measurement import Measurement
from swingshift.executors.runtime.rates import RolloutRates
from swingshift.sdk.context import DynamicScheduleContext, Telemetry
from swingshift.sdk.events import (
    BatchCollected,
    Event,
    RequestReturned,
    RoutingChanged,
    RunStarted,
    SampleQueued,
    StalenessReset,
)
from swingshift.sdk.executor import ReplicaKind

STARTED = RunStarted(
    run="run",
    policy="none",
    hybrid_gpus=("t",),
    standalone_gpus=("r",),
    replicas={"s": ("r",), "h": ("t",)},
    replica_kinds={"s": "standalone", "h": "hybrid"},
    train_required_bytes={"t": 1},
    required_samples=4,
    trigger_parameter_sync_step=2,
    max_required_samples=12,
    concurrent_samples_per_replica=4,
    responses_per_prompt=2,
    total_samples=48,
)


def observed(policy: ScriptedPolicy, prompts: int = 32) -> tuple[Ran, list[DynamicScheduleContext]]:
    """Return a run and the snapshots its policy learned from, one per version."""
    ran = run_training(small_config(prompts=prompts), policy=policy)
    assert [version for version, _ in policy.learned] == list(range(len(policy.learned)))
    return ran, [ctx for _, ctx in policy.learned]


def test_a_snapshot_counts_cycles_and_samples() -> None:
    """Expected is a cycle's samples for each that is done, 0 at start-up; buffer its share."""
    _, snapshots = observed(ScriptedPolicy())
    assert [ctx.expected_samples for ctx in snapshots] == [0, 8, 16, 24, 32]
    assert [ctx.buffer_samples for ctx in snapshots] == [0, 4, 8, 12, 16]
    assert {(ctx.required_samples, ctx.trigger_parameter_sync_step) for ctx in snapshots} == {
        (4, 2)
    }
    assert not any(ctx.only_hybrid for ctx in snapshots)


def test_generated_counts_what_was_queued() -> None:
    """At each sync: the samples queued before it, since training began."""
    ran, snapshots = observed(ScriptedPolicy())
    queued = [sum(isinstance(e, SampleQueued) for e in ran.sink.events)]
    assert snapshots[0].total_generated_samples == 0
    assert snapshots[-1].total_generated_samples == queued[0] == 32
    for ctx in snapshots[1:]:
        assert ctx.total_generated_samples >= ctx.expected_samples


def test_waits_are_those_of_the_cycle_just_ended() -> None:
    """One entry per collection, in order; none before the first cycle."""
    ran, snapshots = observed(ScriptedPolicy(lend=False))
    waits = [(event.wait_s, event.waited_samples) for event in ran.sink.of(BatchCollected)]
    assert (snapshots[0].step_wait_times, snapshots[0].step_wait_samples) == ((), ())
    for number, ctx in enumerate(snapshots[1:]):
        cycle = waits[2 * number : 2 * number + 2]
        assert list(zip(ctx.step_wait_times, ctx.step_wait_samples, strict=True)) == cycle


def test_attainable_never_exceeds_budget_or_data() -> None:
    """At most the budget; near the end what is left."""
    _, snapshots = observed(ScriptedPolicy(lend=False))
    assert all((ctx.attainable_samples or 0) <= 12 for ctx in snapshots)
    assert snapshots[-1].attainable_samples == 0


def telemetry(ctx: DynamicScheduleContext) -> Telemetry:
    """Return the telemetry that a run always has."""
    assert ctx.telemetry is not None
    return ctx.telemetry


def test_telemetry_measures_what_there_was_to_measure() -> None:
    """Rates, fit steps and syncs are unknown before the first, and known afterwards."""
    _, snapshots = observed(ScriptedPolicy())
    first, last = telemetry(snapshots[0]), telemetry(snapshots[-1])
    assert (first.standalone_samples_per_s, first.hybrid_samples_per_s) == (None, None)
    assert (first.fit_step_s, first.weight_sync_s) == ((), None)
    assert (first.serving_standalone_replicas, first.hybrid_replicas) == (0, 2)
    assert last.standalone_samples_per_s is not None
    assert last.standalone_samples_per_s > 0.0
    assert last.hybrid_samples_per_s is not None
    assert len(last.fit_step_s) == 8
    assert last.weight_sync_s is not None
    assert last.serving_standalone_replicas == 2
    assert last.loop_time_s > first.loop_time_s == 0.0


def test_telemetry_counts_each_serving_replica_once() -> None:
    """Also while hybrid ones serve, as the question about a rebalance sees it."""

    class Watching(ScriptedPolicy):
        def request_rebalance(self, global_steps: int, ctx: DynamicScheduleContext) -> None:
            seen.append(telemetry(ctx))

    seen: list[Telemetry] = []
    run_training(small_config(prompts=32), policy=Watching())
    counts = [(t.serving_standalone_replicas, t.serving_hybrid_replicas) for t in seen]
    assert set(counts) == {(2, 2)}
    assert all(t.hybrid_replicas == 2 for t in seen)
    assert any(t.tokens_in_flight > t.samples_in_flight > 0 for t in seen)


def test_without_standalone_nodes_the_snapshot_says_so() -> None:
    """And the guard lends at every sync, whatever the policy says."""
    policy = ScriptedPolicy(lend=False)
    ran = run_training(small_config(rollout_nodes=0, prompts=16), policy=policy)
    assert all(ctx.only_hybrid for _, ctx in policy.learned)
    assert ran.report.trained_samples == 16


def told(sink: RolloutRates | Measurement, *events: tuple[float, Event]) -> None:
    """Give events to a sink."""
    for number, (t_s, event) in enumerate(events):
        sink.write(number, t_s, event)


def test_rates_golden() -> None:
    """6 responses of 2 per sample in 10 s of service are 0.3 samples/s, for each kind alone."""
    rates = RolloutRates()
    ended = RequestReturned("x", "s", 1, "stop", 5)
    told(
        rates,
        (0.0, STARTED),
        (5.0, RoutingChanged("s", True, 1)),
        *[(6.0, ended)] * 5,
        (7.0, RequestReturned("x", "s", 1, "abort", 5)),
        (7.0, RequestReturned("x", "unknown", 1, "stop", 5)),
        (8.0, RequestReturned("x", "s", 1, "length", 5)),
    )
    assert rates.samples_per_s(ReplicaKind.STANDALONE) is None
    told(rates, (15.0, StalenessReset(1, 0, 0, 0)))
    assert rates.samples_per_s(ReplicaKind.STANDALONE) == pytest.approx(0.3)
    assert rates.samples_per_s(ReplicaKind.HYBRID) is None


def test_a_rate_is_that_of_the_latest_window_with_service() -> None:
    """A window without service leaves it as it was; one without responses is a rate of 0."""
    rates = RolloutRates()
    told(
        rates,
        (0.0, STARTED),
        (0.0, RoutingChanged("h", True, 1)),
        (5.0, RequestReturned("x", "h", 1, "stop", 5)),
        (10.0, RoutingChanged("h", False, 1)),
        (20.0, StalenessReset(1, 0, 0, 0)),
        (30.0, StalenessReset(2, 0, 0, 0)),
    )
    assert rates.samples_per_s(ReplicaKind.HYBRID) == pytest.approx(0.05)
    told(
        rates,
        (30.0, RoutingChanged("h", True, 2)),
        (40.0, StalenessReset(3, 0, 0, 0)),
    )
    assert rates.samples_per_s(ReplicaKind.HYBRID) == 0.0


def test_a_measurement_without_a_run_is_empty() -> None:
    """Before the first event there is no ledger and no time."""
    measurement = Measurement()
    assert measurement.gpu_seconds() == {}
    assert measurement.elapsed_s == 0.0


def test_a_measurement_recomputes_what_was_reported() -> None:
    """Fed with the same events, another one comes to the same metrics and the same ledger."""
    ran = run_training(small_config(prompts=24))
    again, cycles = Measurement(), []
    for number, (t_s, event) in enumerate(zip(ran.sink.times_s, ran.sink.events, strict=True)):
        again.write(number, t_s, event)
        if event.kind == "cycle_ended":
            cycles.append(again.cycle_metrics())
    assert tuple(cycles) == ran.report.cycles
    assert again.gpu_seconds() == ran.report.gpu_seconds

"""A whole run: what it refuses, what it reports, and what it leaves behind."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator

import pytest
from tests.executors.support import (
    ListSink,
    ScriptedExecutor,
    ScriptedPolicy,
    run_training,
    run_virtual,
    small_config,
    small_executor,
    small_task,
)

from swingshift.executors.runtime.run import RunOutcome, TrainingRun
from swingshift.sdk.context import DynamicScheduleContext
from swingshift.sdk.errors import ConfigError, PolicyError
from swingshift.sdk.events import PolicyDecided, RunEnded, RunStarted
from swingshift.sdk.executor import ExecutorError
from swingshift.sdk.metrics import GpuState
from swingshift.sdk.policy import Rebalance


class Raising(ScriptedPolicy):
    """A policy with a bug."""

    def should_activate_after_step(
        self, global_steps: int, is_hybrid_active: bool, ctx: DynamicScheduleContext
    ) -> bool:
        raise ValueError("bug")


def refused(*, dynamic: bool, policy: bool, lend: bool = True) -> str:
    """Return why a run was refused."""

    async def main() -> str:
        config = small_config(dynamic=dynamic)
        executor = small_executor(config)
        executor.lend = lend
        with pytest.raises(ConfigError) as caught:
            TrainingRun(config, executor, small_task(config), ScriptedPolicy() if policy else None)
        return str(caught.value)

    return run_virtual(main())


def test_a_policy_goes_with_the_master_switch() -> None:
    """One without the other is refused, naming the key and both values."""
    assert refused(dynamic=True, policy=False) == (
        "async_training.use_dynamic_resource_scheduling is True and the policy is NoneType; "
        "a policy goes with true, None with false"
    )
    assert "is False and the policy is ScriptedPolicy" in refused(dynamic=False, policy=True)


def test_lending_needs_an_executor_that_can() -> None:
    """The missing capability and the executor are named."""
    assert refused(dynamic=True, policy=True, lend=False) == (
        "async_training.use_dynamic_resource_scheduling needs the capability 'lend', which "
        "executor 'simulated' does not have; switch it off or choose another"
    )


def test_the_first_event_says_what_there_is() -> None:
    """Sizes and inventory, from which every metric can be computed."""
    (started,) = run_training(small_config(prompts=8)).sink.of(RunStarted)
    assert started == RunStarted(
        run="run",
        policy="ScriptedPolicy",
        hybrid_gpus=("trainer-0", "trainer-1"),
        standalone_gpus=("rollout-0", "rollout-1"),
        replicas={
            "standalone-0": ("rollout-0",),
            "standalone-1": ("rollout-1",),
            "hybrid-0": ("trainer-0",),
            "hybrid-1": ("trainer-1",),
        },
        replica_kinds={
            "standalone-0": "standalone",
            "standalone-1": "standalone",
            "hybrid-0": "hybrid",
            "hybrid-1": "hybrid",
        },
        train_required_bytes=dict.fromkeys(("trainer-0", "trainer-1"), int(12e9)),
        required_samples=4,
        trigger_parameter_sync_step=2,
        max_required_samples=12,
        concurrent_samples_per_replica=4,
        responses_per_prompt=2,
        total_samples=8,
    )


def test_without_dynamic_scheduling_there_is_no_policy() -> None:
    """No hybrid replica, no question, the same loop."""
    ran = run_training(small_config(dynamic=False, prompts=16))
    assert ran.sink.of(RunStarted)[0].policy == "none"
    assert not ran.sink.of(PolicyDecided)
    assert ran.report.trained_samples == 16


def test_the_report_agrees_with_the_last_event() -> None:
    """Outcome, reason, samples, and a ledger that sums to wall clock times GPUs."""
    ran = run_training(small_config(prompts=19))
    report = ran.report
    assert ran.sink.events[-1] == RunEnded("exhausted", "", 16, 3, 0)
    assert (report.outcome, report.reason) == (RunOutcome.EXHAUSTED, "")
    assert (report.trained_samples, report.unused_samples, report.given_up_samples) == (16, 3, 0)
    assert report.wall_clock_s == ran.sink.times_s[-1]
    assert sum(report.gpu_seconds.values()) == pytest.approx(4 * report.wall_clock_s)
    assert report.gpu_seconds[GpuState.TRAIN] > 0.0
    assert report.gpu_seconds[GpuState.DOWN] == 0.0


def test_one_seed_gives_one_trace() -> None:
    """Twice in one process: the same events at the same times; another seed gives others."""
    first, second = (run_training(policy=ScriptedPolicy(rebalance=Rebalance())) for _ in range(2))
    assert first.sink.events == second.sink.events
    assert first.sink.times_s == second.sink.times_s
    other = run_training(small_config(seed=1), policy=ScriptedPolicy(rebalance=Rebalance()))
    assert other.sink.times_s != first.sink.times_s


def test_decisions_are_in_the_log_with_what_the_policy_saw() -> None:
    """A rebalance by its scope, the snapshot as plain values."""
    ran = run_training(policy=ScriptedPolicy(rebalance=Rebalance()))
    decisions = ran.sink.of(PolicyDecided)
    assert {decision.question for decision in decisions} == {
        "should_activate_after_step",
        "request_rebalance",
        "should_deactivate",
        "deactivate_wait_samples",
    }
    rebalances = [d for d in decisions if d.question == "request_rebalance"]
    assert {(d.answer, d.effective, d.forced, d.reason) for d in rebalances} == {
        ("all", "all", False, "policy")
    }
    assert isinstance(decisions[0].context["telemetry"], dict)
    assert decisions[0].context["step_wait_times"] == ()


def test_a_strict_run_ends_with_the_policys_fault() -> None:
    """Tests and simulations want to know."""
    with pytest.raises(PolicyError, match="bug"):
        run_training(policy=Raising())


def test_a_lenient_run_goes_on_without_the_policy(caplog: pytest.LogCaptureFixture) -> None:
    """The fault is logged, nothing is lent, everything is trained."""
    with caplog.at_level(logging.ERROR):
        ran = run_training(policy=Raising(), strict=False)
    assert ran.report.trained_samples == 48
    assert "Raising.should_activate_after_step raised ValueError: bug" in caplog.text


def test_a_failure_is_logged_with_its_cause(caplog: pytest.LogCaptureFixture) -> None:
    """Whoever reads the log sees where it came from, and the run's name."""
    ran = run_training(faults=[("fit_step", "0", "fail", 1)], virtual_time=False)
    assert ran.report.outcome is RunOutcome.FAILED
    assert ran.sink.events[-1] == RunEnded("failed", ran.report.reason, 0, 48, 0)
    (record,) = [record for record in caplog.records if record.name.endswith("run")]
    assert record.message == "run run failed: fit_step of 0 was told to fail"
    assert record.exc_info is not None


@pytest.mark.parametrize(
    ("verb", "reason"),
    [
        ("resume", "sync: resume: OSError: rpc broke"),
        ("sync_weights", "weight sync of standalone-0, standalone-1: OSError: rpc broke"),
        ("fit_step", "fit step: OSError: rpc broke"),
        ("generate", "OSError: rpc broke"),
        (
            "events",
            "the recovery of lost capacity failed: "
            "the executor's events ended with OSError: rpc broke",
        ),
    ],
)
def test_what_an_adapter_should_not_raise_fails_the_run(
    verb: str, reason: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The report says which call raised what, and the log has the traceback."""

    async def broken(*_: object) -> None:
        raise OSError("rpc broke")

    async def broken_stream(_: object) -> AsyncIterator[None]:
        raise OSError("rpc broke")
        yield

    broken_verb = broken_stream if verb == "events" else broken
    monkeypatch.setattr(ScriptedExecutor, verb, broken_verb)
    with caplog.at_level(logging.ERROR):
        report = run_training().report
    assert (report.outcome, report.trained_samples) == (RunOutcome.FAILED, 0)
    assert report.reason.endswith(reason)
    assert "in broken" in caplog.text


@pytest.mark.parametrize("faults", [0, 1])
def test_the_executor_is_released_however_the_run_ends(faults: int) -> None:
    """Also when it could not start."""
    made: list[ScriptedExecutor] = []

    async def main() -> None:
        config = small_config(prompts=8)
        executor = small_executor(config)
        made.append(executor)
        executor.inject("start", "*", times=faults)
        await TrainingRun(config, executor, small_task(config), ScriptedPolicy()).run()

    if faults:
        with pytest.raises(ExecutorError):
            run_virtual(main())
    else:
        run_virtual(main())
    assert made[0].called("start", "stop") == [("start", ""), ("stop", "")]


@pytest.mark.parametrize("at_s", [0.0, 0.2, 3.0, 8.0, 20.0, 47.0, 150.0])
def test_a_cancelled_run_leaves_nothing_behind(at_s: float) -> None:
    """Wherever it is, in a sync, a switch, a wait or a fit: all tasks end, the executor stops."""

    async def main() -> tuple[ScriptedExecutor, ListSink]:
        config, sink = small_config(), ListSink()
        executor = small_executor(config)
        run = TrainingRun(
            config, executor, small_task(config), ScriptedPolicy(), event_sinks=[sink]
        )
        task = asyncio.create_task(run.run())
        await asyncio.sleep(at_s)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert task.cancelled()
        assert asyncio.all_tasks() == {asyncio.current_task()}
        return executor, sink

    executor, sink = run_virtual(main())
    assert executor.called("stop") or at_s == 0.0
    assert [(event.outcome, event.reason) for event in sink.of(RunEnded)] == [
        ("failed", "cancelled")
    ]

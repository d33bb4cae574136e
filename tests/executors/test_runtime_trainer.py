"""The fit loop: what it trains, what keeps it going, and how it ends."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from tests.executors.support import (
    Fault,
    Ran,
    ScriptedExecutor,
    ScriptedPolicy,
    run_training,
    small_config,
    small_task,
)

from swingshift.executors.app.run_log import RunLogWriter, read_run_log
from swingshift.executors.rl.task import SingleTurn
from swingshift.executors.runtime.deadlines import UnexpectedDeadlineError
from swingshift.executors.runtime.run import RunOutcome
from swingshift.sdk.config import RuntimeConfig
from swingshift.sdk.events import (
    Advisory,
    BatchCollected,
    BatchTrained,
    ControllerMoved,
    FitStepEnded,
    LentWaitEnded,
    SampleGivenUp,
    StalenessReset,
    WeightsSynced,
)
from swingshift.sdk.executor import Episode, FitBatch, FitResult, Prompt

NEVER = ScriptedPolicy(lend=False)


def failed(ran: Ran) -> str:
    """Return why a run failed."""
    assert ran.report.outcome is RunOutcome.FAILED
    return ran.report.reason


def faulty(*faults: tuple[str, str, Fault, int]) -> Ran:
    """Run with faults where deadlines may expire; GPUs are lent at no sync, the dead stay dead."""
    return run_training(
        small_config(runtime=RuntimeConfig(restart_attempts=0)),
        ScriptedPolicy(lend=False),
        faults=faults,
        virtual_time=False,
    )


def test_every_sample_is_trained_once_and_freed() -> None:
    """Batches are whole, in order, and payloads are freed after the step that used them."""
    ran = run_training(small_config(prompts=16))
    batches = ran.sink.of(BatchCollected)
    trained = [sample for batch in batches for sample in batch.samples]
    assert sorted(trained) == list(range(16))
    assert [batch.batch for batch in batches] == [0, 1, 2, 3]
    assert ran.report.trained_samples == 16
    freed = [handle for _, handle in ran.executor.called("discard")]
    assert sorted(freed) == sorted(f"{i}/{r}" for i in range(16) for r in range(2))


@pytest.mark.parametrize("prompts", [0, 1, 3, 5, 7, 8, 11])
def test_data_may_end_at_any_sample(prompts: int) -> None:
    """The run ends well; what is too short for a collection is reported as unused."""
    ran = run_training(small_config(prompts=prompts) if prompts else small_config(prompts=1))
    assert ran.report.outcome is RunOutcome.EXHAUSTED
    assert ran.report.trained_samples + ran.report.unused_samples == max(prompts, 1)
    assert ran.report.unused_samples == max(prompts, 1) % 4


def test_a_cycle_syncs_after_its_last_fit_step() -> None:
    """One version per cycle, version 0 before the first; only that step has a sync in it."""
    ran = run_training(small_config(prompts=24, steps=3), policy=NEVER)
    assert [event.version for event in ran.sink.of(WeightsSynced)] == [0, 1, 2]
    assert [event.version for event in ran.sink.of(StalenessReset)] == [0, 1, 2]
    assert [event.version for event in ran.sink.of(BatchTrained)] == [0, 0, 0, 1, 1, 1]
    synced = ["param_sync" in event.timing_s for event in ran.sink.of(FitStepEnded)]
    assert synced == [False, False, True, False, False, True]
    assert len(ran.report.cycles) == 2


def test_allocated_time_begins_after_the_lent_wait() -> None:
    """A step is lent wait, deactivation and what the trainer has its GPUs for."""
    ran = run_training(small_config(prompts=16), policy=ScriptedPolicy(wait=6))
    waits = [event.wait_s for event in ran.sink.of(LentWaitEnded)]
    steps = [event for event in ran.sink.of(FitStepEnded) if event.timing_s["gen"] >= 0.0]
    lent = [event.timing_s["wait_for_enough_samples"] for event in steps]
    assert [wait for wait in lent if wait] == [wait for wait in waits if wait]
    for event in steps:
        between = event.timing_s["step"] - event.allocated_s
        assert between >= event.timing_s["wait_for_enough_samples"]


def test_without_a_serving_replica_gpus_are_lent_mid_cycle() -> None:
    """Standalone replicas lost at the first sync do not end a run that has hybrid ones."""
    ran = faulty(("sync_weights", "standalone-0", "fail", 1))
    assert ran.report.outcome is RunOutcome.EXHAUSTED
    assert ran.report.trained_samples == 48
    first_fit = ran.sink.events.index(ran.sink.of(BatchTrained)[0])
    moves = [e.after for e in ran.sink.events[:first_fit] if isinstance(e, ControllerMoved)]
    assert moves == ["activating", "hybrid_active", "deactivating", "standalone_only"]


def test_without_any_replica_the_run_fails() -> None:
    """Also where hybrid ones cannot be lent; the reason says so."""
    lost: tuple[str, str, Fault, int] = ("sync_weights", "standalone-0", "fail", 1)
    ran = faulty(
        lost, ("wake_weights", "hybrid-0", "fail", 1), ("wake_weights", "hybrid-1", "fail", 1)
    )
    assert failed(ran) == "no replica serves and none can be lent"
    alone = small_config(dynamic=False, runtime=RuntimeConfig(restart_attempts=0))
    ran = run_training(alone, faults=[lost], virtual_time=False)
    assert failed(ran) == "no replica serves and none can be lent"
    assert ran.report.trained_samples == 0


def test_lending_mid_cycle_ends_with_the_data() -> None:
    """What is given up cannot come and is not waited for."""
    ran = run_training(
        small_config(prompts=6, runtime=RuntimeConfig(request_retries=0, restart_attempts=0)),
        policy=ScriptedPolicy(lend=False),
        faults=[("sync_weights", "standalone-0", "fail", 1), ("generate", "*", "fail", 2)],
        virtual_time=False,
    )
    assert ran.report.outcome is RunOutcome.EXHAUSTED
    assert ran.report.given_up_samples in (1, 2)
    assert ran.report.trained_samples == 4


def test_a_failing_fit_step_ends_the_run() -> None:
    """With the adapter's reason; the batch does not count as trained."""
    ran = faulty(("fit_step", "1", "fail", 1))
    assert failed(ran) == "fit_step of 1 was told to fail"
    assert ran.report.trained_samples == 4


def test_a_hanging_fit_step_ends_the_run_at_its_deadline() -> None:
    """The reason names the step and its seconds."""
    assert failed(faulty(("fit_step", "0", "hang", 1))) == "fit step did not end within 7200 s"


def test_payloads_of_a_sample_given_up_are_freed_too() -> None:
    """With the next batch: its finished responses, and what the failed ones had."""
    ran = run_training(
        small_config(prompts=24, runtime=RuntimeConfig(request_retries=0)),
        ScriptedPolicy(lend=False),
        faults=[("generate", "*", "fail", 1)],
        virtual_time=False,
    )
    assert ran.report.given_up_samples == 1
    freed = {handle for _, handle in ran.executor.called("discard")}
    trained = {f"{s}/{r}" for b in ran.sink.of(BatchCollected) for s in b.samples for r in (0, 1)}
    assert trained <= freed


@pytest.mark.parametrize("how", ["fail", "hang"])
def test_payloads_that_are_not_freed_do_not_end_the_run(how: Fault) -> None:
    """Memory of payloads is worth an advisory, not a run."""
    ran = faulty(("discard", "*", how, 1))
    assert ran.report.outcome is RunOutcome.EXHAUSTED
    assert ran.sink.of(Advisory)[0].text.startswith("payloads of batch 0 were not freed: ")


def test_production_that_fails_ends_the_run_with_its_cause() -> None:
    """What a task raises is the reason, not an end of data."""

    class Broken(SingleTurn):
        def __len__(self) -> int:
            return 48

        def prompt(self, index: int) -> Prompt:
            return Prompt(index, 16, str(index))

        async def score(self, prompt: Prompt, episodes: Sequence[Episode]) -> tuple[float, ...]:
            raise LookupError("no reference answer")

    for policy in (ScriptedPolicy(), ScriptedPolicy(lend=False)):
        ran = run_training(policy=policy, task=Broken())
        assert failed(ran).startswith("rollout failed: sample ")
        assert "LookupError: no reference answer" in failed(ran)
        assert ran.report.trained_samples == 0


def test_a_wait_that_meets_its_deadline_fails_the_run() -> None:
    """The reason says how many samples were waited for, and how long; lent GPUs went back."""
    runtime = RuntimeConfig(wait_deadline_s=3.0)
    ran = run_training(small_config(runtime=runtime), virtual_time=False)
    assert failed(ran) == "the wait for 4 samples did not end within 3 s"
    assert [event.outcome for event in ran.sink.of(LentWaitEnded)] == ["deadline"]


@pytest.mark.parametrize(
    ("runtime", "named"),
    [
        (RuntimeConfig(wait_deadline_s=3.0), "the wait for"),
        (RuntimeConfig(request_deadline_s=2.0), "request "),
        (RuntimeConfig(fit_deadline_s=0.5), "fit step"),
    ],
)
def test_on_modelled_time_a_deadline_raises(runtime: RuntimeConfig, named: str) -> None:
    """No fault was injected: the run does not end failed, the fault comes out."""
    with pytest.raises(UnexpectedDeadlineError, match=named):
        run_training(small_config(runtime=runtime))


def test_memory_that_is_withheld_ends_the_run() -> None:
    """Nothing is trained on GPUs whose memory is not shown free."""
    ran = run_training(withheld_bytes={"trainer-1": int(90e9)}, virtual_time=False)
    assert "trainer-1 has" in failed(ran)
    assert ran.sink.of(ControllerMoved)[-1].after == "blocked"
    assert not ran.sink.of(BatchTrained)


def test_samples_given_up_are_counted_and_replaced() -> None:
    """Every other sample is trained; the sum accounts for all."""
    runtime = RuntimeConfig(request_retries=0)
    ran = run_training(
        small_config(runtime=runtime),
        faults=[("generate", "*", "fail", 3)],
        virtual_time=False,
    )
    given_up = {event.sample for event in ran.sink.of(SampleGivenUp)}
    trained = {sample for batch in ran.sink.of(BatchCollected) for sample in batch.samples}
    assert 1 <= len(given_up) <= 3
    assert not given_up & trained
    assert ran.report.given_up_samples == len(given_up)
    assert ran.report.trained_samples + ran.report.unused_samples == 48


@pytest.mark.parametrize("rollout_nodes", [0, 1])
@pytest.mark.parametrize("pause_keep", [True, False])
def test_responses_may_be_kept_to_one_version(rollout_nodes: int, pause_keep: bool) -> None:
    """With ``partial_rollout`` off no response spans a sync, wherever it is moved."""
    config = small_config(rollout_nodes=rollout_nodes, training={"partial_rollout": False})
    ran = run_training(config, pause_keep=pause_keep)
    assert ran.report.trained_samples == 48
    assert sum(event.partial_trajectories for event in ran.sink.of(BatchTrained)) == 0


@pytest.mark.parametrize("pause_keep", [True, False])
def test_responses_may_span_versions(pause_keep: bool) -> None:
    """With it on they go on under new weights, kept in the engine or aborted and resumed."""
    ran = run_training(
        small_config(steps=1), policy=ScriptedPolicy(lend=False), pause_keep=pause_keep
    )
    assert ran.report.trained_samples == 48
    assert sum(event.partial_trajectories for event in ran.sink.of(BatchTrained)) > 0


def test_metrics_of_each_cycle_reach_metric_sinks() -> None:
    """Under the version that ended the cycle, as in the report."""
    logged: list[tuple[int, float]] = []

    class Steps:
        def log(self, step: int, metrics: object) -> None:
            assert isinstance(metrics, dict)
            logged.append((step, metrics["timing_s/step"]))

    ran = run_training(small_config(prompts=16), metric_sinks=[Steps()])
    assert logged == [
        (version, metrics["timing_s/step"])
        for version, metrics in enumerate(ran.report.cycles, start=1)
    ]


def diverge(monkeypatch: pytest.MonkeyPatch, *metrics: Mapping[str, float]) -> None:
    """Let the fit steps report these metrics, one after the other."""

    async def fit_step(_: ScriptedExecutor, batch: FitBatch) -> FitResult:
        return FitResult(timing_s={"update_actor": 1.0}, metrics=metrics[batch.batch_id])

    monkeypatch.setattr(ScriptedExecutor, "fit_step", fit_step)


def test_metrics_that_are_not_finite_are_left_out_and_told_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One advisory for each name in a run: the metric, its value and the first step that had it."""
    diverge(
        monkeypatch,
        {"loss": 0.5, "grad_norm": math.inf},
        {"loss": math.nan, "grad_norm": math.inf},
        {"loss": -math.inf, "grad_norm": 2.0},
    )
    ran = run_training(small_config(prompts=12))
    kept = [dict(event.metrics) for event in ran.sink.of(BatchTrained)]
    assert kept == [{"loss": 0.5}, {}, {"grad_norm": 2.0}]
    assert [event.text for event in ran.sink.of(Advisory)] == [
        "metric grad_norm is inf at fit step 1; values of it that are not finite are left out",
        "metric loss is nan at fit step 2; values of it that are not finite are left out",
    ]


def test_a_run_that_diverges_can_be_logged(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The log is written to its end, and read again, where a loss is no number."""
    diverge(monkeypatch, {"loss": math.nan}, {"loss": math.nan})
    with RunLogWriter(tmp_path / "run.jsonl") as log:
        ran = run_training(small_config(prompts=8), event_sinks=[log])
    assert ran.report.trained_samples == 8
    logged = [event for _, _, event in read_run_log(tmp_path / "run.jsonl")]
    assert logged == ran.sink.events


def test_the_task_bounds_the_run() -> None:
    """A data set shorter than the configured prompts is used up, not read beyond."""
    short = small_task(small_config(prompts=8))
    assert run_training(small_config(prompts=48), task=short).report.trained_samples == 8

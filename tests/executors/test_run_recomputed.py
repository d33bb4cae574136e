"""What a run reports can be computed again from its log, exactly."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from tests.executors.support import ScriptedPolicy, run_training, small_config

from swingshift.executors.app.run_log import RunLogWriter, read_run_log, recompute
from swingshift.sdk.config import RunConfig
from swingshift.sdk.events import BatchTrained, PolicyDecided
from swingshift.sdk.metrics import GpuState
from swingshift.sdk.policy import Rebalance
from swingshift.sdk.testing import check_event_log

RUNS = {
    "static": small_config(dynamic=False),
    "dynamic": small_config(),
    "hybrid alone": small_config(rollout_nodes=0),
    "one version": small_config(training={"partial_rollout": False}),
    "short": small_config(prompts=3),
}


@pytest.mark.parametrize("config", RUNS.values(), ids=RUNS)
def test_log_gives_the_reported_metrics_again(tmp_path: Path, config: RunConfig) -> None:
    """Every metric of every cycle, the ledger, the wall clock and the decisions are equal."""
    path = tmp_path / "run.jsonl"
    is_dynamic = config.async_training.use_dynamic_resource_scheduling
    policy = ScriptedPolicy(rebalance=Rebalance()) if is_dynamic else None
    with RunLogWriter(path, max_bytes=20_000) as log:
        ran = run_training(config, policy, event_sinks=[log])

    again = recompute(path)

    assert again.cycles == ran.report.cycles
    assert again.gpu_seconds == ran.report.gpu_seconds
    assert again.wall_clock_s == ran.report.wall_clock_s
    assert again.decisions == tuple(ran.sink.of(PolicyDecided))
    assert [event for _, _, event in read_run_log(path)] == ran.sink.events
    assert check_event_log(read_run_log(path)) == ()


def test_ledger_holds_every_second_of_every_gpu() -> None:
    """States sum to wall clock x GPUs, and training is what the timing keys say it is."""
    ran = run_training()

    seconds = ran.report.gpu_seconds
    trained_s = sum(sum(event.timing_s.values()) for event in ran.sink.of(BatchTrained))
    assert math.fsum(seconds.values()) == pytest.approx(4 * ran.report.wall_clock_s)
    assert seconds[GpuState.TRAIN] == pytest.approx(2 * trained_s)
    for state in (GpuState.ROLLOUT, GpuState.SWITCH, GpuState.SYNC):
        assert seconds[state] > 0.0
    assert seconds[GpuState.DOWN] == seconds[GpuState.VALIDATION] == 0.0

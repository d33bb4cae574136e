"""The checkpoint hook: what a run would need to go on elsewhere."""

from __future__ import annotations

import json

from tests.executors.support import run_virtual, small_config, small_executor, small_task

from swingshift.executors.runtime.checkpoint import RunState
from swingshift.executors.runtime.run import RunOutcome, TrainingRun
from swingshift.sdk.config import RunConfig
from swingshift.sdk.registry import build_policy


def states_of(config: RunConfig, *, withheld_bytes: int = 0) -> tuple[RunOutcome, list[RunState]]:
    states: list[RunState] = []

    async def main() -> RunOutcome:
        executor = small_executor(config)
        if withheld_bytes:
            executor.withheld_bytes = {"trainer-0": withheld_bytes}
        policy = build_policy("default", deactivate_ratio=0.5)
        run = TrainingRun(config, executor, small_task(config), policy, checkpoint=states.append)
        return (await run.run()).outcome

    return run_virtual(main()), states


def test_every_cycle_is_checkpointed_and_every_sample_is_somewhere() -> None:
    """Trained, queued, in flight, given up and not yet submitted samples add up to the data."""
    config = small_config()
    outcome, states = states_of(config)
    assert outcome is RunOutcome.EXHAUSTED
    assert [state.version for state in states] == [1, 2, 3, 4, 5, 6]
    for state in states:
        known = state.trained_samples + len(state.queue) + len(state.in_flight) + state.given_up
        assert known == state.next_sample
        assert state.global_step == 2 * state.version


def test_a_state_is_json() -> None:
    """It can be written as it is, policy and queue included."""
    _, states = states_of(small_config())
    text = json.dumps([state.state_dict() for state in states])
    first = json.loads(text)[0]
    assert first["reason"] == "sync"
    assert "deactivate_ratio" in first["policy"]


def test_a_blocked_run_is_checkpointed_before_it_ends() -> None:
    """Memory that does not come back costs no finished sample."""
    outcome, states = states_of(small_config(), withheld_bytes=10**15)
    assert outcome is RunOutcome.FAILED
    assert "bytes free" in states[-1].reason

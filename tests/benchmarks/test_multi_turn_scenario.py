"""The packaged scenario of episodes with several turns keeps every promise of an event log."""

from __future__ import annotations

import pytest

from swingshift.benchmarks.scenario import ScenarioRun, load_scenario
from swingshift.executors.app.assembly import execute
from swingshift.executors.runtime.run import RunOutcome
from swingshift.sdk.events import Event, RequestRouted
from swingshift.sdk.testing import EventLogChecker

SCENARIO = load_scenario("multi_turn", ["rollout.total_rollout_steps=128"])


class Routed:
    """Counts the attempts at each response."""

    def __init__(self) -> None:
        self.attempts: dict[str, int] = {}

    def write(self, sequence: int, t_s: float, event: Event) -> None:
        if isinstance(event, RequestRouted):
            self.attempts[event.request] = event.attempt


@pytest.mark.parametrize("run", SCENARIO.runs, ids=lambda run: run.name)
def test_a_run_of_the_scenario_is_sound(run: ScenarioRun) -> None:
    """Every sample is trained, in episodes of about four turns."""
    checker, routed = EventLogChecker(), Routed()
    report = execute(run.config, event_sinks=(checker, routed))

    checker.assert_sound()
    assert (report.outcome, report.trained_samples) == (RunOutcome.EXHAUSTED, 128)
    assert len(routed.attempts) == 128 * 16
    assert sum(routed.attempts.values()) / len(routed.attempts) == pytest.approx(4.0, rel=0.2)

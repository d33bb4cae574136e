"""Replicas that fail at their work leave routing before they attract all of it."""

from __future__ import annotations

import attrs
import pytest
from tests.executors.support import Fault, ScriptedPolicy, run_training, small_config

from swingshift.executors.runtime.health import FAILURES_IN_A_ROW, Health
from swingshift.executors.runtime.run import RunOutcome
from swingshift.sdk.config import RuntimeConfig
from swingshift.sdk.events import Advisory, RequestReturned


def returned(reason: str, *, epoch: int = 1) -> RequestReturned:
    return RequestReturned("0/0", "standalone-0", epoch, reason, 0)


def taken_out(*events: RequestReturned) -> list[str]:
    """Return the reasons for which the replica, in its first epoch, was taken out."""
    reasons: list[str] = []
    health = Health(lambda _: 1, lambda _, reason: reasons.append(reason))
    for number, event in enumerate(events):
        health.write(number, 0.0, event)
    return reasons


def test_one_request_is_enough_to_find_a_replica_gone() -> None:
    """The executor said so."""
    assert taken_out(returned("lost")) == ["a request found it gone"]


def test_failures_in_a_row_take_a_replica_out() -> None:
    """A success between begins the count anew; deadlines count as failures."""
    fails = [returned("failed")] * (FAILURES_IN_A_ROW - 1)
    assert not taken_out(*fails, returned("stop"), *fails)
    assert len(taken_out(*fails, returned("deadline"))) == 1


def test_what_an_earlier_epoch_returns_says_nothing() -> None:
    """The replica that is there now has done nothing wrong."""
    assert not taken_out(*[returned("lost", epoch=0)] * 5)


@pytest.mark.parametrize("how", ["lose", "fail"])
def test_a_dead_replica_does_not_eat_the_data(how: Fault) -> None:
    """It is restarted, and where that does not help the run fails; it is no good end."""
    runtime = RuntimeConfig(restart_attempts=2)
    ran = run_training(
        small_config(prompts=200, runtime=runtime),
        ScriptedPolicy(lend=False),
        faults=[("generate", "standalone-0", how, 10**6)],
        virtual_time=False,
    )
    assert any("standalone-0" in event.text for event in ran.sink.of(Advisory))
    assert ran.report.given_up_samples < 20


def test_a_run_that_gives_everything_up_has_failed() -> None:
    """The end of the data and a failure are different ends."""
    runtime = attrs.evolve(RuntimeConfig(), request_retries=0, restart_attempts=100)
    ran = run_training(
        small_config(prompts=200, runtime=runtime),
        ScriptedPolicy(lend=False),
        faults=[("generate", "*", "fail", 10**6)],
        virtual_time=False,
    )
    assert ran.report.outcome is RunOutcome.FAILED
    assert "samples in a row were given up" in ran.report.reason

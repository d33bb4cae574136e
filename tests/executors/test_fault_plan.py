"""What a scenario file may say about faults, and what becomes of it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import attrs
import pytest
from tests.executors.support import run_virtual, small_config, small_options

from swingshift.executors.app.configuration import structure_section
from swingshift.executors.simulated.adapter import SimulatedAdapter
from swingshift.executors.simulated.executor import SimulatedExecutor
from swingshift.executors.simulated.faults import (
    Fault,
    FaultKind,
    FaultPlan,
    Loss,
    RandomFaults,
    Verb,
)
from swingshift.executors.simulated.faulty import FaultyExecutor
from swingshift.sdk.errors import ConfigError
from swingshift.sdk.executor import Executor
from swingshift.sdk.validators import InvalidValueError


def built(plan: FaultPlan) -> Executor:
    """Return what the adapter builds for a plan."""

    async def main() -> Executor:
        options = attrs.evolve(small_options(), faults=plan)
        return SimulatedAdapter().build(small_config(), options)[0]

    return run_virtual(main())


def refusal(mapping: Mapping[str, object]) -> str:
    """Return the message with which a section is refused."""
    with pytest.raises(ConfigError) as caught:
        structure_section(FaultPlan, mapping, "executor.faults")
    return str(caught.value)


def test_a_file_says_it_in_plain_words() -> None:
    """Faults by script and by seed, and losses."""
    plan = structure_section(
        FaultPlan,
        {
            "script": [{"verb": "sync_weights", "kind": "hang", "call": 3}],
            "losses": [{"subject": "rollout-0", "at_s": 60, "back_after_s": 30}],
            "at_random": {"probability": 0.01, "kinds": ["fail", "late"], "seed": 7},
        },
        "executor.faults",
    )
    assert plan == FaultPlan(
        script=(Fault(verb=Verb.SYNC_WEIGHTS, kind=FaultKind.HANG, call=3),),
        losses=(Loss(subject="rollout-0", at_s=60.0, back_after_s=30.0),),
        at_random=RandomFaults(probability=0.01, kinds=(FaultKind.FAIL, FaultKind.LATE), seed=7),
    )


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (
            {"verb": "doze", "kind": "fail"},
            "script[0].verb: 'doze' is not allowed; expected one of",
        ),
        ({"verb": "sleep", "kind": "dye"}, "script[0].kind: 'dye' is not allowed; expected one of"),
        ({"verb": "sleep", "kind": ["fail"]}, "script[0].kind: ['fail'] is not allowed"),
        ({"verb": "sleep", "kind": "fail", "call": 0}, "script[0].call: 0 is not allowed"),
        (
            {"verb": "wake_weights", "kind": "partial"},
            "script[0].kind: 'partial' is not allowed; expected one of fail, hang, slow, late, "
            "die, zombie for wake_weights",
        ),
        (
            {"verb": "fit_step", "kind": "die"},
            "script[0].replica: null is not allowed; expected the replica that dies for fit_step",
        ),
        (
            {"verb": "fit_step", "kind": "fail", "replica": "hybrid-0"},
            "script[0].replica: 'hybrid-0' is not allowed; expected none for fit_step",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(fault: Mapping[str, object], message: str) -> None:
    """With the full key, the value, and what may stand there."""
    assert f"executor.faults.{message}" in refusal({"script": [fault]})


def test_kill_does_not_die() -> None:
    """A replica that is killed is dead already."""
    kinds = "one of fail, hang, slow, late, short_memory, false_memory"
    with pytest.raises(InvalidValueError, match=kinds):
        Fault(verb=Verb.KILL, kind=FaultKind.DIE)


@pytest.mark.parametrize("verb", [Verb.START, Verb.STOP])
def test_start_and_stop_go_wrong_by_script_alone(verb: Verb) -> None:
    """No replica dies there, and chance spares them: a run that does not begin shows little."""
    with pytest.raises(InvalidValueError, match="one of fail, hang, slow, late for"):
        Fault(verb=verb, kind=FaultKind.DIE, replica="hybrid-0")

    async def main() -> None:
        options = attrs.evolve(
            small_options(), faults=FaultPlan(at_random=RandomFaults(probability=1.0))
        )
        executor, _ = SimulatedAdapter().build(small_config(), options)
        await executor.start()
        await executor.stop()

    run_virtual(main())


def test_without_faults_nothing_is_wrapped() -> None:
    """A deadline that expires is then a fault of the control plane."""
    executor = built(FaultPlan())
    assert type(executor) is SimulatedExecutor
    assert executor.capabilities.virtual_time


@pytest.mark.parametrize(
    "plan",
    [
        FaultPlan(script=(Fault(verb=Verb.SLEEP, kind=FaultKind.HANG),)),
        FaultPlan(losses=(Loss(subject="hybrid-0", at_s=1.0),)),
        FaultPlan(at_random=RandomFaults()),
    ],
)
def test_with_faults_a_deadline_may_expire(plan: FaultPlan) -> None:
    """All else that the executor can do stays."""
    executor = built(plan)
    assert isinstance(executor, FaultyExecutor)
    assert executor.capabilities == attrs.evolve(
        built(FaultPlan()).capabilities, virtual_time=False
    )


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (
            FaultPlan(script=(Fault(verb=Verb.SLEEP, kind=FaultKind.FAIL, replica="hybrid-9"),)),
            "executor.faults.script[0].replica: there is no 'hybrid-9'; expected one of hybrid-0, "
            "hybrid-1, standalone-0, standalone-1",
        ),
        (
            FaultPlan(losses=(Loss(subject="trainer-7", at_s=1.0),)),
            "executor.faults.losses[0].subject: there is no 'trainer-7'; expected one of hybrid-0, "
            "hybrid-1, rollout-0, rollout-1, standalone-0, standalone-1, trainer-0, trainer-1",
        ),
    ],
)
def test_what_there_is_not_is_refused_at_the_start(plan: FaultPlan, message: str) -> None:
    """Before anything runs, with the names there are."""

    async def main() -> None:
        options = attrs.evolve(small_options(), faults=plan)
        executor, _ = SimulatedAdapter().build(small_config(), options)
        try:
            await executor.start()
        finally:
            await executor.stop()
            assert asyncio.all_tasks() == {asyncio.current_task()}

    with pytest.raises(ConfigError) as caught:
        run_virtual(main())
    assert str(caught.value) == message

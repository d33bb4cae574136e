"""An executor is brought up and released within its deadlines, whatever else becomes of a run."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

import pytest
from tests.executors.support import (
    Fault,
    ScriptedExecutor,
    ScriptedPolicy,
    run_virtual,
    small_config,
    small_executor,
    small_task,
)

from swingshift.executors.runtime.deadlines import DeadlineExpiredError, UnexpectedDeadlineError
from swingshift.executors.runtime.embedded import EmbeddedController, LoopCounts
from swingshift.executors.runtime.run import RunOutcome, RunReport, TrainingRun
from swingshift.sdk.config import RuntimeConfig

CONFIG = small_config(prompts=8, runtime=RuntimeConfig(start_deadline_s=70.0, stop_deadline_s=30.0))


class IdleSide:
    """The rollout side of a loop that does nothing."""

    def counts(self) -> LoopCounts:
        return LoopCounts(queue_size=0, total_generated_samples=0, finished_cycles=0)

    async def drain(self) -> None:
        """Have nothing in flight."""

    def resume_submission(self) -> None:
        """Have nothing to submit."""


async def run(executor: ScriptedExecutor) -> RunReport | None:
    """Train."""
    return await TrainingRun(CONFIG, executor, small_task(CONFIG), ScriptedPolicy()).run()


async def embed(executor: ScriptedExecutor) -> RunReport | None:
    """Start a controller and stop it."""
    async with EmbeddedController(CONFIG, executor, ScriptedPolicy(), IdleSide()):
        return None


def under(
    use: Callable[[ScriptedExecutor], Awaitable[RunReport | None]], verb: str, how: Fault
) -> tuple[RunReport | None, Exception | None, ScriptedExecutor, float]:
    """Use an executor one of whose verbs goes wrong; return what came of it, and the seconds."""

    async def main() -> tuple[RunReport | None, Exception | None, ScriptedExecutor, float]:
        executor = small_executor(CONFIG)
        executor.inject(verb, "*", how)
        report, raised = None, None
        try:
            report = await use(executor)
        except Exception as error:
            raised = error
        assert asyncio.all_tasks() == {asyncio.current_task()}
        return report, raised, executor, asyncio.get_running_loop().time()

    return run_virtual(main())


uses = pytest.mark.parametrize("use", [run, embed])


@uses
def test_a_start_that_hangs_ends_at_its_deadline(
    use: Callable[[ScriptedExecutor], Awaitable[RunReport | None]],
) -> None:
    """With an error that names it, and the executor is stopped."""
    report, error, executor, ended_s = under(use, "start", "hang")
    assert isinstance(error, DeadlineExpiredError)
    assert str(error) == "start of the executor did not end within 70 s"
    assert (report, ended_s) == (None, 70.0)
    assert executor.calls == [("start", ""), ("stop", "")]


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("hang", "stop of the executor did not end within 30 s"),
        ("fail", "stop of  was told to fail"),
    ],
)
def test_a_stop_that_fails_hides_no_report(
    how: Fault, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    """What was trained was trained; the log says that the executor was not released."""
    with caplog.at_level(logging.ERROR):
        report, error, *_ = under(run, "stop", how)
    assert error is None
    assert report is not None
    assert (report.outcome, report.trained_samples) == (RunOutcome.EXHAUSTED, 8)
    messages = [record.getMessage() for record in caplog.records]
    assert messages == [f"the executor was not released: {words}"]


def test_an_embedded_controller_whose_executor_does_not_stop_ends_all_the_same() -> None:
    """At the deadline, without an error that would hide what the loop raised."""
    _, error, _, ended_s = under(embed, "stop", "hang")
    assert (error, ended_s) == (None, 30.0)


@pytest.mark.parametrize("verb", ["start", "stop"])
def test_on_modelled_time_a_hang_is_a_fault_of_the_executor(verb: str) -> None:
    """As everywhere where no fault was injected."""

    async def modelled(executor: ScriptedExecutor) -> RunReport | None:
        executor.virtual_time = True
        return await run(executor)

    _, error, *_ = under(modelled, verb, "hang")
    assert isinstance(error, UnexpectedDeadlineError)

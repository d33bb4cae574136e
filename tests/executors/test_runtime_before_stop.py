"""What is done with the executor between the end of a run and its stop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable

import pytest
from tests.executors.support import (
    ScriptedExecutor,
    ScriptedPolicy,
    run_virtual,
    small_config,
    small_executor,
    small_task,
)

from swingshift.executors.runtime.adapter import SavesModel
from swingshift.executors.runtime.run import RunOutcome, RunReport, TrainingRun


def run_with(
    before_stop: Callable[[ScriptedExecutor], Awaitable[None]],
    *,
    fault: tuple[str, str] | None = None,
    cancel_after_s: float | None = None,
) -> tuple[RunReport | None, list[str]]:
    """Return the report of a run, None if it was cancelled, and the calls from the hook on."""
    config = small_config()

    async def main() -> tuple[RunReport | None, list[str]]:
        executor = small_executor(config)
        if fault is not None:
            executor.inject(*fault)

        async def hook() -> None:
            executor.calls.append(("hook", ""))
            await before_stop(executor)
            executor.calls.append(("hook done", ""))

        run = TrainingRun(config, executor, small_task(config), ScriptedPolicy(), before_stop=hook)
        report = None
        try:
            async with asyncio.timeout(cancel_after_s):
                report = await run.run()
        except TimeoutError:
            pass
        verbs = [verb for verb, _ in executor.calls]
        return report, verbs[verbs.index("hook") :] if "hook" in verbs else verbs

    return run_virtual(main())


async def quick(_executor: ScriptedExecutor) -> None:
    """Take a moment."""
    await asyncio.sleep(1.0)


@pytest.mark.parametrize("fault", [None, ("fit_step", "1")])
def test_it_is_awaited_once_before_the_stop(fault: tuple[str, str] | None) -> None:
    """Whether the run ended well or failed."""
    report, calls = run_with(quick, fault=fault)

    assert calls == ["hook", "hook done", "stop"]
    assert report is not None
    assert report.outcome is (RunOutcome.EXHAUSTED if fault is None else RunOutcome.FAILED)


def test_it_is_awaited_after_a_cancellation() -> None:
    """The cancellation goes on to whoever asked for it."""
    assert run_with(quick, cancel_after_s=60.0) == (None, ["hook", "hook done", "stop"])


@pytest.mark.parametrize("cancel_after_s", [5.0 * moment for moment in range(1, 40)])
def test_lent_gpus_are_back_by_then(cancel_after_s: float) -> None:
    """Whenever the run is cancelled, the training state is where it can be read."""

    async def main() -> None:
        executor = small_executor()

        async def hook() -> None:
            assert not executor._offloaded
            assert not executor._on_trainer_gpus
            executor.calls.append(("whole", ""))

        run = TrainingRun(
            small_config(), executor, small_task(small_config()), ScriptedPolicy(), before_stop=hook
        )
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(cancel_after_s):
                await run.run()
        assert executor.called("whole")

    run_virtual(main())


def test_a_cancellation_while_it_runs_ends_it() -> None:
    """The executor is stopped all the same."""

    async def wait(_executor: ScriptedExecutor) -> None:
        await asyncio.sleep(1_000_000.0)

    report, calls = run_with(wait, cancel_after_s=2_000.0)
    assert (report, calls) == (None, ["hook", "stop"])


def test_it_has_no_place_where_the_executor_did_not_start() -> None:
    """There is nothing to be done with it."""
    config, called = small_config(), list[str]()

    async def hook() -> None:
        called.append("hook")

    async def main() -> None:
        executor = small_executor(config)
        executor.inject("start", "")
        run = TrainingRun(config, executor, small_task(config), ScriptedPolicy(), before_stop=hook)
        with pytest.raises(Exception, match="start of  was told to fail"):
            await run.run()

    run_virtual(main())
    assert called == []


async def fail(_executor: ScriptedExecutor) -> None:
    """Fail as a full disk does."""
    raise OSError("no space left")


async def hang(_executor: ScriptedExecutor) -> None:
    """Do not return."""
    await asyncio.get_running_loop().create_future()


@pytest.mark.parametrize(
    ("hook", "words"), [(fail, "no space left"), (hang, "did not end within 1800 s")]
)
def test_its_failure_is_told_and_changes_nothing(
    hook: Callable[[ScriptedExecutor], Awaitable[None]],
    words: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Neither the report nor the stop."""
    with caplog.at_level(logging.ERROR):
        report, calls = run_with(hook)

    assert report is not None
    assert (report.outcome, report.trained_samples) == (RunOutcome.EXHAUSTED, 48)
    assert calls == ["hook", "stop"]
    assert [record.getMessage() for record in caplog.records] == [f"before run run stops: {words}"]


def test_saving_is_an_offer() -> None:
    """Executors are asked whether they make it."""

    async def main() -> bool:
        return isinstance(small_executor(), SavesModel)

    assert not run_virtual(main())

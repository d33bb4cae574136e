"""Bringing an executor up and releasing it, each under its deadline."""

from __future__ import annotations

import logging

from swingshift.executors.runtime.deadlines import Deadlines, UnexpectedDeadlineError
from swingshift.sdk.config import RuntimeConfig
from swingshift.sdk.executor import Executor, Inventory

_log = logging.getLogger(__name__)


async def start_executor(
    executor: Executor, deadlines: Deadlines, config: RuntimeConfig
) -> Inventory:
    """Bring an executor up; whoever calls this calls `stop_executor` too, whatever it raises.

    Raises:
        ExecutorError: It failed; so do the other errors that the adapter raises at its start.
        DeadlineExpiredError: It did not end in time.
    """
    async with deadlines.step("start of the executor", config.start_deadline_s):
        return await executor.start()


async def stop_executor(executor: Executor, deadlines: Deadlines, config: RuntimeConfig) -> None:
    """Release an executor; what goes wrong is logged, since it changes nothing about the run.

    Raises:
        UnexpectedDeadlineError: On modelled time it did not end.
    """
    try:
        async with deadlines.step("stop of the executor", config.stop_deadline_s):
            await executor.stop()
    except UnexpectedDeadlineError:
        raise
    except Exception as error:
        words = str(error) or type(error).__name__
        _log.error("the executor was not released: %s", words, exc_info=error)

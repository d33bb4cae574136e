"""From configuration to an executor: what the entry points of ``swingshift.executors`` name."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, runtime_checkable

from swingshift.executors.rl.task import Task
from swingshift.sdk.config import RunConfig
from swingshift.sdk.executor import Executor


class ExecutorAdapter(Protocol):
    """One way to run. Stateless; made once per process by calling the entry point.

    Attributes:
        options_type: attrs class of the adapter's own keys below ``executor:``.
    """

    options_type: type

    def build(self, config: RunConfig, options: object) -> tuple[Executor, Task]:
        """Make the executor and the task of one run.

        Args:
            config: The whole configuration.
            options: An instance of ``options_type``.

        Raises:
            ConfigError: The options do not fit the configuration.
        """
        ...

    def loop_factory(self) -> Callable[[], asyncio.AbstractEventLoop]:
        """Return what makes the event loop that a run of this adapter lives on."""
        ...


@runtime_checkable
class SavesModel(Protocol):
    """What an executor may offer beside its verbs: to save the model it trains."""

    async def save(self, directory: Path) -> None:
        """Write the model of the last fit step that was finished.

        Called at most once, after the run ended and before `Executor.stop`, with the training state
        on the trainer's GPUs. A fit step may have been cancelled half-way and may still go on.

        Args:
            directory: Where; made if missing.

        Raises:
            ExecutorError: The trainer is gone.
            OSError: The folder cannot be written to.
        """
        ...

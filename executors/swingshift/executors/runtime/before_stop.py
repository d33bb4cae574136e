"""What is done with a living executor between the end of a run and its stop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeAlias

from swingshift.sdk.executor import Executor, Inventory, ReplicaKind, TrainingPart

_log = logging.getLogger(__name__)

BeforeStop: TypeAlias = Callable[[], Awaitable[None]]
"""For example, saves the model. See `TrainingRun`."""

# Long enough to write a large model to a slow disk, short enough for a night.
_DEADLINE_S = 1800.0


async def await_before_stop(
    hook: BeforeStop, executor: Executor, inventory: Inventory, *, run: str
) -> None:
    """Bring the training state back, and await a hook; what goes wrong is logged.

    Args:
        hook: What to await.
        executor: Of a run that ended.
        inventory: Its replicas.
        run: Name of the run.
    """
    timeout = asyncio.timeout(_DEADLINE_S)
    try:
        async with timeout:
            await _take_training_back(executor, inventory)
            await hook()
    except Exception as error:
        late = f"did not end within {_DEADLINE_S:g} s"
        words = late if timeout.expired() else str(error) or type(error).__name__
        _log.error("before run %s stops: %s", run, words, exc_info=error)


async def _take_training_back(executor: Executor, inventory: Inventory) -> None:
    """Undo a lending that the end of the run left as it was, half-way included."""
    hybrid = [replica.id for replica in inventory.of_kind(ReplicaKind.HYBRID)]
    if not hybrid:
        return
    # nothing generates any more, so that they need not be put to sleep
    await executor.kill(hybrid)
    for part in (TrainingPart.PARAMETERS, TrainingPart.OPTIMIZER_AND_GRADIENTS):
        await executor.reload_training(part)

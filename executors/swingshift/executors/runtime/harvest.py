"""The wait for what lent GPUs bring in, before they go back to training."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import attrs

from swingshift.executors.runtime.deadlines import Deadlines
from swingshift.executors.runtime.fleet import Fleet
from swingshift.executors.runtime.message_queue import WaitOutcome
from swingshift.executors.runtime.recorder import Recorder
from swingshift.executors.runtime.workload import Workload
from swingshift.sdk.context import DynamicScheduleContext
from swingshift.sdk.events import LentWaitEnded
from swingshift.sdk.guard import Reclaim


@attrs.frozen(kw_only=True)
class LentWait:
    """How the wait for the lent GPUs' harvest ended before a fit step.

    Attributes:
        wait_s: Seconds waited while GPUs were lent; 0.0 when none were.
        outcome: One of the four ends of a wait; FAILED also where no replica serves any more.
    """

    wait_s: float = 0.0
    outcome: WaitOutcome = WaitOutcome.REACHED


async def wait_for_harvest(
    reclaim: Reclaim,
    snapshot: Callable[[], DynamicScheduleContext],
    workload: Workload,
    fleet: Fleet,
    recorder: Recorder,
    deadlines: Deadlines,
    *,
    deadline_s: float,
) -> LentWait:
    """Wait until the policy's count is buffered, as the guard bounds it at every event.

    Args:
        reclaim: The guard's part in this fit step.
        snapshot: Takes a new snapshot.
        workload: Knows the buffer, and when anything changed.
        fleet: Knows whether anybody serves.
        recorder: Hears how the wait ended.
        deadlines: Rule for a wait that does not end.
        deadline_s: Seconds from now.
    """
    loop = asyncio.get_running_loop()
    started_s = loop.time()
    until_s = started_s + deadline_s
    expired = False
    while True:
        size = workload.queue_size()
        target = reclaim.evaluate(snapshot(), queue_size=size, deadline_reached=expired)
        is_reached = target is not None and size >= target
        ended = workload.ended()
        if is_reached or ended is WaitOutcome.FAILED:
            break
        if not fleet.serving():
            # nothing comes of waiting; the loop around lends anew or ends the run
            break
        try:
            async with asyncio.timeout_at(until_s):
                await workload.changed()
        except TimeoutError:
            deadlines.expired("the wait for samples on lent GPUs", deadline_s)
            expired = True
    wait_s = loop.time() - started_s
    if expired:
        outcome = WaitOutcome.DEADLINE
    elif is_reached:
        outcome = WaitOutcome.REACHED if ended is None else ended
    else:
        outcome = WaitOutcome.FAILED
    recorder.emit(LentWaitEnded(outcome.value, wait_s, target or 0, size))
    return LentWait(wait_s=wait_s, outcome=outcome)

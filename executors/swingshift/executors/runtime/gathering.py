"""Waiting for several pieces of work as for one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import TypeVar

_T = TypeVar("_T")


async def gather_or_cancel(
    loop: asyncio.AbstractEventLoop,
    work: Sequence[Coroutine[object, object, _T]],
    *,
    on_orphan: Callable[[_T], None] | None = None,
) -> list[_T]:
    """Run coroutines concurrently and return their results in order.

    When one fails, or the caller is cancelled, the others are cancelled and have ended before the
    error is passed on: nothing runs on unwatched.

    Args:
        loop: The running loop; asking for it costs a system call on Python 3.11.
        work: What to run.
        on_orphan: Called, after an error, with each result that nobody will get.
    """
    tasks = [loop.create_task(piece) for piece in work]
    try:
        return await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if on_orphan is not None:
            for task in tasks:
                if not task.cancelled() and task.exception() is None:
                    on_orphan(task.result())
        raise

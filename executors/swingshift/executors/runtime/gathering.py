"""Waiting for several pieces of work as for one."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import TypeVar

_T = TypeVar("_T")


async def gather_or_cancel(
    loop: asyncio.AbstractEventLoop, work: Sequence[Coroutine[object, object, _T]]
) -> list[_T]:
    """Run coroutines concurrently and return their results in order.

    When one fails, or the caller is cancelled, the others are cancelled and have ended before the
    error is passed on: nothing runs on unwatched.

    Args:
        loop: The running loop; asking for it costs a system call on Python 3.11.
        work: What to run.
    """
    tasks = [loop.create_task(piece) for piece in work]
    try:
        return await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise

"""Changes: a broadcast that is not remembered, and leaves nothing behind when cancelled."""

from __future__ import annotations

import asyncio

import pytest
from tests.executors.support import run_virtual

from swingshift.executors.runtime.changes import Changes


async def settle() -> None:
    """Let every task that can go on do so."""
    for _ in range(5):
        await asyncio.sleep(0)


def test_notify_wakes_everybody_in_the_order_they_came() -> None:
    """Waiters that are present wake, first come first served."""

    async def main() -> list[int]:
        changes, woken = Changes(), list[int]()

        async def wait(number: int) -> None:
            await changes.wait()
            woken.append(number)

        tasks = [asyncio.create_task(wait(number)) for number in range(4)]
        await settle()
        changes.notify()
        await asyncio.gather(*tasks)
        return woken

    assert run_virtual(main()) == [0, 1, 2, 3]


def test_a_change_that_is_past_is_not_seen() -> None:
    """Whoever comes after a notification waits for the next one."""

    async def main() -> list[bool]:
        changes = Changes()
        changes.notify()
        late = asyncio.create_task(changes.wait())
        await settle()
        before = late.done()
        changes.notify()
        await settle()
        return [before, late.done()]

    assert run_virtual(main()) == [False, True]


def test_a_cancelled_waiter_is_forgotten() -> None:
    """Cancelling one wait neither leaks it nor disturbs the others."""

    async def main() -> tuple[bool, bool, int]:
        changes = Changes()
        first = asyncio.create_task(changes.wait())
        second = asyncio.create_task(changes.wait())
        await settle()
        first.cancel()
        await settle()
        left = len(changes._waiters)
        changes.notify()
        await second
        return first.cancelled(), second.done(), left

    assert run_virtual(main()) == (True, True, 1)


def test_cancellation_and_notification_at_one_moment() -> None:
    """A waiter cancelled when it has just been woken is cancelled, and nothing is left of it."""

    async def main() -> int:
        changes = Changes()
        waiter = asyncio.create_task(changes.wait())
        await settle()
        changes.notify()
        waiter.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiter
        return len(changes._waiters)

    assert run_virtual(main()) == 0


def test_a_waiter_cancelled_first_is_skipped_by_notify() -> None:
    """Between a cancellation and its delivery a notification does not touch the waiter."""

    async def main() -> bool:
        changes = Changes()
        waiter = asyncio.create_task(changes.wait())
        await settle()
        waiter.cancel()
        changes.notify()
        await settle()
        return waiter.cancelled()

    assert run_virtual(main())

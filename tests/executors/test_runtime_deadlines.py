"""Deadlines: one rule for what an expired one means, and a watchdog for the many."""

from __future__ import annotations

import asyncio

import pytest
from tests.executors.support import run_virtual

from swingshift.executors.runtime.deadlines import (
    AdapterFaultError,
    DeadlineExpiredError,
    Deadlines,
    UnexpectedDeadlineError,
    Watchdog,
)
from swingshift.sdk.executor import ExecutorError


async def hang() -> None:
    """Wait for what never comes."""
    await asyncio.get_running_loop().create_future()


def test_a_step_that_ends_in_time_is_left_alone() -> None:
    """A deadline that does not expire costs nothing and changes nothing."""

    async def main() -> float:
        async with Deadlines(expiry_is_fault=True).step("step", 10.0):
            await asyncio.sleep(9.0)
        return asyncio.get_running_loop().time()

    assert run_virtual(main()) == 9.0


def test_an_expired_step_is_an_error_to_recover_from() -> None:
    """Where faults happen, the error names the step and its seconds."""

    async def main() -> float:
        with pytest.raises(DeadlineExpiredError, match="sleep of x did not end within 10 s"):
            async with Deadlines(expiry_is_fault=False).step("sleep of x", 10.0):
                await hang()
        return asyncio.get_running_loop().time()

    assert run_virtual(main()) == 10.0


def test_on_modelled_time_an_expired_step_is_a_fault() -> None:
    """Nothing was injected, so the wait itself is wrong; nobody recovers from that."""

    async def main() -> None:
        async with Deadlines(expiry_is_fault=True).step("step", 10.0):
            await hang()

    with pytest.raises(UnexpectedDeadlineError, match="no fault was injected") as raised:
        run_virtual(main())
    assert (raised.value.what, raised.value.seconds) == ("step", 10.0)
    assert not issubclass(UnexpectedDeadlineError, DeadlineExpiredError)


@pytest.mark.parametrize(
    ("raised", "seen"),
    [
        (ExecutorError("gone"), ExecutorError("gone")),
        (OSError("rpc broke"), AdapterFaultError("sleep of x: OSError: rpc broke")),
        (TimeoutError(), AdapterFaultError("sleep of x: TimeoutError: ")),
    ],
)
def test_what_no_contract_names_is_a_fault_of_the_adapter(
    raised: Exception, seen: Exception
) -> None:
    """With the call, the type and the words of what it raised; a named error stays what it is."""

    async def main() -> None:
        async with Deadlines(expiry_is_fault=True).call("sleep of x", 10.0):
            raise raised

    with pytest.raises(type(seen)) as caught:
        run_virtual(main())
    assert str(caught.value) == str(seen)


def test_a_timeout_of_the_step_itself_is_passed_on() -> None:
    """What a verb raises is its own affair, also when it looks like a deadline."""

    async def main() -> None:
        async with Deadlines(expiry_is_fault=True).step("step", 10.0):
            raise TimeoutError("of the socket")

    with pytest.raises(TimeoutError, match="of the socket"):
        run_virtual(main())


def test_a_cancelled_step_is_cancelled() -> None:
    """Cancellation from outside is not mistaken for an expiry."""

    async def main() -> bool:
        async def step() -> None:
            async with Deadlines(expiry_is_fault=False).step("step", 10.0):
                await hang()

        task = asyncio.create_task(step())
        await asyncio.sleep(1.0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return task.cancelled()

    assert run_virtual(main())


def test_a_watch_expires_after_its_seconds() -> None:
    """Each watch of a watchdog has its own expiry, at one length from its own beginning."""

    async def main() -> list[float]:
        watchdog, loop = Watchdog(10.0), asyncio.get_running_loop()

        async def watched(delay_s: float) -> float:
            await asyncio.sleep(delay_s)
            watch = watchdog.watch()
            with pytest.raises(TimeoutError), watch:
                await hang()
            assert watch.is_expired
            return loop.time()

        return await asyncio.gather(*(watched(delay_s) for delay_s in (0.0, 3.0, 3.0, 8.0)))

    assert run_virtual(main()) == [10.0, 13.0, 13.0, 18.0]


def test_a_watch_that_ends_in_time_is_forgotten() -> None:
    """One timer serves all; it goes on for whoever is still being watched, and then stops."""

    async def main() -> list[float]:
        watchdog, loop = Watchdog(10.0), asyncio.get_running_loop()
        with watchdog.watch() as nothing:
            await asyncio.sleep(9.0)
        assert nothing is None
        with watchdog.watch():
            await asyncio.sleep(9.0)
        with pytest.raises(TimeoutError), watchdog.watch():
            await hang()
        ended_s = loop.time()
        await asyncio.sleep(100.0)
        return [ended_s, float(len(watchdog._watches))]

    assert run_virtual(main()) == [28.0, 0.0]


def test_a_watched_task_can_be_cancelled() -> None:
    """Cancellation from outside passes through a watch, also one that expires with it."""

    async def main() -> list[bool]:
        watchdog = Watchdog(10.0)

        async def watched() -> None:
            with watchdog.watch():
                await hang()

        early, late = asyncio.create_task(watched()), asyncio.create_task(watched())
        await asyncio.sleep(1.0)
        early.cancel()
        asyncio.get_running_loop().call_at(10.0, late.cancel)
        await asyncio.gather(early, late, return_exceptions=True)
        return [early.cancelled(), late.cancelled()]

    assert run_virtual(main()) == [True, True]


def test_a_closed_watchdog_leaves_no_timer() -> None:
    """After a run nothing of it fires; closing twice does no harm."""

    async def main() -> bool:
        watchdog = Watchdog(10.0)
        with watchdog.watch():
            await asyncio.sleep(1.0)
        watchdog.close()
        watchdog.close()
        return watchdog._timer is None

    assert run_virtual(main())


def test_a_watch_needs_a_task() -> None:
    """Outside a task there is nothing to cancel."""

    async def main() -> list[BaseException]:
        watchdog, caught = Watchdog(10.0), list[BaseException]()

        def outside() -> None:
            try:
                watchdog.watch()
            except RuntimeError as error:
                caught.append(error)

        asyncio.get_running_loop().call_soon(outside)
        await asyncio.sleep(1.0)
        return caught

    assert "inside one" in str(run_virtual(main())[0])

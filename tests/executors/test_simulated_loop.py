"""The virtual loop: time jumps, order is fixed, and a wait that nothing ends is an error."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.executors.support import run_training, run_virtual, small_config

from swingshift.executors.runtime.deadlines import UnexpectedDeadlineError
from swingshift.executors.simulated.loop import VirtualDeadlockError, VirtualLoop
from swingshift.sdk.config import RuntimeConfig


def test_time_jumps_to_the_next_timer() -> None:
    """A year of waiting takes no time, and the clock says exactly what was waited for."""

    async def main() -> list[float]:
        loop = asyncio.get_running_loop()
        times_s = [loop.time()]
        for wait_s in (0.5, 31_536_000.0, 0.0):
            await asyncio.sleep(wait_s)
            times_s.append(loop.time())
        return times_s

    assert run_virtual(main()) == [0.0, 0.5, 31_536_000.5, 31_536_000.5]


@given(st.lists(st.integers(0, 5), max_size=30), st.sets(st.integers(0, 29)))
def test_timers_fire_in_order_of_time_then_of_setting(delays_s: list[int], gone: set[int]) -> None:
    """Cancelled ones never fire."""

    async def main() -> list[int]:
        loop = asyncio.get_running_loop()
        fired: list[int] = []
        timers = [loop.call_later(delay_s, fired.append, i) for i, delay_s in enumerate(delays_s)]
        for number in gone & set(range(len(timers))):
            timers[number].cancel()
        await asyncio.sleep(6)
        return fired

    expected = [i for i in sorted(range(len(delays_s)), key=delays_s.__getitem__) if i not in gone]
    assert run_virtual(main()) == expected


def test_callbacks_run_in_the_order_they_became_ready() -> None:
    """Those of one moment in the order they were asked for; cancelled ones not at all."""

    async def main() -> str:
        loop = asyncio.get_running_loop()
        said: list[str] = []
        loop.call_soon(said.append, "a")
        loop.call_soon(said.append, "never").cancel()
        loop.call_soon(loop.call_soon, said.append, "c")
        loop.call_soon(said.append, "b")
        await asyncio.sleep(1.0)
        return "".join(said)

    assert run_virtual(main()) == "abc"


def test_timer_cancelled_at_its_own_moment_does_not_fire() -> None:
    """Also when another timer of the same moment cancels it."""

    async def main() -> list[str]:
        loop = asyncio.get_running_loop()
        fired: list[str] = []
        timers: list[asyncio.TimerHandle] = []

        def cancel() -> None:
            timers[0].cancel()

        loop.call_at(1.0, cancel)
        timers.append(loop.call_at(1.0, fired.append, "late"))
        await asyncio.sleep(2.0)
        return fired

    assert run_virtual(main()) == []


def test_cancelled_timers_are_forgotten() -> None:
    """Deadlines that never expire do not pile up, and the rest keep their order."""

    async def main() -> tuple[int, list[int]]:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        fired: list[int] = []
        for number in (3, 1, 2):
            loop.call_later(number, fired.append, number)
        for _ in range(10_000):
            async with asyncio.timeout(3_600.0):
                await asyncio.sleep(0)
        pending = len(loop._timers)
        await asyncio.sleep(4.0)
        return pending, fired

    pending, fired = run_virtual(main())

    assert pending < 1_000
    assert fired == [1, 2, 3]


def test_timeouts_expire_in_virtual_time() -> None:
    """asyncio's own time-outs work on this loop."""

    async def main() -> float:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(100.0):
                await asyncio.sleep(1_000.0)
        return asyncio.get_running_loop().time()

    assert run_virtual(main()) == 100.0


def test_deadlock_raises_and_names_who_waits() -> None:
    """Nothing ready and no timer left: the error names each task and the line it waits at."""

    async def wait_for_ever() -> None:
        await asyncio.get_running_loop().create_future()

    async def main() -> None:
        await asyncio.sleep(5.0)
        waiter = asyncio.create_task(wait_for_ever(), name="the waiter")
        await waiter

    with pytest.raises(VirtualDeadlockError, match="at virtual time 5 s") as caught:
        run_virtual(main())
    assert "the waiter at" in str(caught.value)
    assert "wait_for_ever line" in str(caught.value)


def test_deadlock_before_the_first_step_of_a_task() -> None:
    """A loop that was asked to run with nothing to do says so too."""
    loop = VirtualLoop()
    with pytest.raises(VirtualDeadlockError, match="waiting: nobody"):
        loop.run_forever()
    loop.close()


def test_timer_cancelled_in_the_callback_before_it_is_skipped() -> None:
    """A cancelled timer at the head of the queue does not move the clock."""

    async def main() -> float:
        loop = asyncio.get_running_loop()
        loop.call_at(1.0, loop.stop).cancel()
        await asyncio.sleep(3.0)
        return loop.time()

    assert run_virtual(main()) == 3.0


def test_finished_run_leaves_nothing_behind() -> None:
    """Closing forgets timers that were never reached."""
    loop = VirtualLoop()
    loop.call_later(1.0, loop.stop)
    loop.call_later(9.0, loop.stop)
    loop.run_forever()
    assert loop.time() == 1.0

    loop.close()

    assert loop.is_closed()
    assert not loop._timers


@pytest.mark.parametrize(
    ("runtime", "what"),
    [
        (RuntimeConfig(fit_deadline_s=0.01), "fit step"),
        (RuntimeConfig(sync_deadline_s=0.01), "weight sync of standalone-0, standalone-1"),
        (RuntimeConfig(wait_deadline_s=0.01), "the wait for samples on lent GPUs"),
        (RuntimeConfig(switch_step_deadline_s=0.01), "activate: offload_optimizer_and_gradients"),
    ],
    ids=["fit", "sync", "wait", "switch"],
)
def test_deadline_without_a_fault_raises(runtime: RuntimeConfig, what: str) -> None:
    """On modelled time nothing is late by accident: a time-out is a bug, and the run says which."""
    with pytest.raises(UnexpectedDeadlineError, match=f"{what}.*no fault was injected"):
        run_training(small_config(runtime=runtime))

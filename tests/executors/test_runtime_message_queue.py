"""The queue: bounded, never drops, and every wait for it has four ends."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.executors.support import run_virtual, sample

from swingshift.executors.runtime.changes import Changes
from swingshift.executors.runtime.message_queue import MessageQueue, WaitOutcome


def queue_of(capacity: int, *, filled: int = 0) -> MessageQueue:
    """Return a queue with samples 0 to ``filled - 1``."""
    queue = MessageQueue(capacity, Changes())
    for number in range(filled):
        assert queue.try_put(sample(number))
    return queue


def test_samples_come_out_in_the_order_they_went_in() -> None:
    """First in, first out, and the total counts what ever went in."""
    queue = queue_of(3, filled=3)
    assert [taken.sample_id for taken in queue.take(2)] == [0, 1]
    assert queue.try_put(sample(3))
    assert [taken.sample_id for taken in queue.take(2)] == [2, 3]
    assert (len(queue), queue.total_put) == (0, 4)


def test_a_full_queue_pushes_back() -> None:
    """A sample that does not fit is not taken, and nothing is dropped for it."""
    queue = queue_of(2, filled=2)
    assert queue.try_put(sample(2)) is False
    assert (len(queue), queue.total_put) == (2, 2)
    assert [taken.sample_id for taken in queue.take(2)] == [0, 1]


def test_put_waits_for_room() -> None:
    """Producers wait as long as the queue is full, and then go in the order they came."""

    async def main() -> list[int]:
        queue = queue_of(1, filled=1)
        producers = [asyncio.create_task(queue.put(sample(number))) for number in (1, 2)]
        out = []
        for _ in range(3):
            await asyncio.sleep(1.0)
            assert len(queue) == 1
            out.append(queue.take(1)[0].sample_id)
        await asyncio.gather(*producers)
        return out

    assert run_virtual(main()) == [0, 1, 2]


def test_taking_more_than_there_is_is_refused() -> None:
    """A short batch would be trained as if it were whole."""
    queue = queue_of(4, filled=1)
    with pytest.raises(ValueError, match="asked for 2 samples, 1 are buffered"):
        queue.take(2)
    assert len(queue) == 1


def test_a_wait_ends_when_enough_is_buffered() -> None:
    """REACHED, at the moment of the sample that completes it."""

    async def main() -> tuple[WaitOutcome, float]:
        queue = queue_of(4, filled=1)
        loop = asyncio.get_running_loop()
        for number in (1, 2, 3):
            loop.call_later(number, queue.try_put, sample(number))
        return await queue.wait_for(3, 100.0), loop.time()

    assert run_virtual(main()) == (WaitOutcome.REACHED, 2.0)


def test_a_wait_ends_when_the_data_ends() -> None:
    """EXHAUSTED: what is buffered will never be enough, at whatever sample the data ended."""

    async def main() -> WaitOutcome:
        queue = queue_of(4, filled=1)
        asyncio.get_running_loop().call_later(5.0, queue.end)
        return await queue.wait_for(2, 100.0)

    assert run_virtual(main()) is WaitOutcome.EXHAUSTED


def test_the_end_of_data_does_not_take_what_is_there() -> None:
    """With enough buffered the wait is over, ended or not."""
    queue = queue_of(4, filled=2)
    queue.end()
    assert queue.ended
    assert run_virtual(queue.wait_for(2, 1.0)) is WaitOutcome.REACHED
    assert run_virtual(queue.wait_for(3, 1.0)) is WaitOutcome.EXHAUSTED


def test_a_wait_ends_when_production_fails() -> None:
    """FAILED is not the end of data: it has a reason, the first one, and its exception."""

    async def main() -> WaitOutcome:
        queue = queue_of(4, filled=1)
        cause = KeyError("x")
        asyncio.get_running_loop().call_later(1.0, queue.fail, "first", cause)
        asyncio.get_running_loop().call_later(1.0, queue.fail, "second")
        outcome = await queue.wait_for(2, 100.0)
        queue.fail("third")
        assert (queue.failure, queue.error, queue.ended) == ("first", cause, False)
        return outcome

    assert run_virtual(main()) is WaitOutcome.FAILED


def test_a_wait_ends_at_its_deadline() -> None:
    """DEADLINE, after exactly that long."""

    async def main() -> tuple[WaitOutcome, float]:
        outcome = await queue_of(4).wait_for(1, 7.0)
        return outcome, asyncio.get_running_loop().time()

    assert run_virtual(main()) == (WaitOutcome.DEADLINE, 7.0)


def test_cancelling_a_wait_takes_nothing() -> None:
    """A cancelled wait, or put, leaves the queue as it was."""

    async def main() -> tuple[int, int]:
        queue = queue_of(1, filled=1)
        tasks = [
            asyncio.create_task(queue.wait_for(2, 100.0)),
            asyncio.create_task(queue.put(sample(1))),
        ]
        await asyncio.sleep(1.0)
        for task in tasks:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(result, asyncio.CancelledError) for result in results)
        return len(queue), queue.total_put

    assert run_virtual(main()) == (1, 1)


@given(
    capacity=st.integers(1, 5),
    steps=st.lists(st.integers(-4, 4), max_size=40),
)
def test_the_bound_holds_and_nothing_is_lost(capacity: int, steps: list[int]) -> None:
    """Whatever is put and taken: never above capacity, never out of order, never lost."""
    queue, accepted, taken, number = queue_of(capacity), 0, list[int](), 0
    for step in steps:
        for _ in range(max(0, step)):
            is_room = len(queue) < capacity
            assert queue.try_put(sample(number)) is is_room
            accepted += is_room
            number += is_room
        count = min(max(0, -step), len(queue))
        taken += [one.sample_id for one in queue.take(count)]
    assert taken == list(range(len(taken)))
    assert queue.total_put == accepted == len(taken) + len(queue)

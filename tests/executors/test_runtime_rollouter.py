"""The rollouter: budget, cap, and what becomes of every sample."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.executors.support import ListSink, run_virtual

from swingshift.executors.rl.task import EpisodeRequest, SingleTurn, Task
from swingshift.executors.runtime.changes import Changes
from swingshift.executors.runtime.client import RequestFailedError
from swingshift.executors.runtime.message_queue import MessageQueue, WaitOutcome
from swingshift.executors.runtime.recorder import Recorder
from swingshift.executors.runtime.rollouter import Rollouter
from swingshift.sdk.events import (
    CapacityChanged,
    DataExhausted,
    SampleGivenUp,
    SampleQueued,
    SampleSubmitted,
    StalenessReset,
)
from swingshift.sdk.executor import Episode, Prompt, VersionSpan

Generate = Callable[[EpisodeRequest], Awaitable[None]]


class Prompts(SingleTurn):
    """Prompts by number, scored by response index."""

    def __len__(self) -> int:
        return 1_000

    def prompt(self, index: int) -> Prompt:
        return Prompt(index, 8, str(index))

    async def score(self, prompt: Prompt, episodes: Sequence[Episode]) -> tuple[float, ...]:
        return tuple(float(number) for number in range(len(episodes)))


async def second(request: EpisodeRequest) -> None:
    """Take one second for every response."""
    await asyncio.sleep(1.0)


@attrs.frozen
class Bench:
    """A rollouter with everything around it; ``take`` is the trainer."""

    rollouter: Rollouter
    queue: MessageQueue
    sink: ListSink
    dropped: list[Episode]

    def queued(self) -> list[int]:
        """Return the samples queued so far, in order."""
        return [event.sample for event in self.sink.of(SampleQueued)]


def bench(
    generate: Generate = second,
    *,
    responses: int = 2,
    per_replica: int = 3,
    budget: int = 6,
    total: int = 100,
    capacity: int | None = None,
    task: SingleTurn | None = None,
) -> Bench:
    """Return a rollouter whose responses take what ``generate`` does."""

    async def run_episode(task: Task, request: EpisodeRequest) -> Episode:
        await generate(request)
        tokens = 10 * (request.response_index + 1)
        return Episode(
            handle=request.request_id, tokens=tokens, spans=(VersionSpan(0, tokens),), attempts=1
        )

    recorder, sink, changes = Recorder(), ListSink(), Changes()
    dropped: list[Episode] = []
    recorder.subscribe(sink)
    queue = MessageQueue(capacity or budget, changes)
    rollouter = Rollouter(
        task or Prompts(),
        run_episode,
        dropped.append,
        queue,
        recorder,
        changes,
        responses_per_prompt=responses,
        concurrent_samples_per_replica=per_replica,
        max_required_samples=budget,
        total_samples=total,
    )
    return Bench(rollouter, queue, sink, dropped)


def begin(made: Bench, servers: int = 1) -> None:
    """Open routing and the first version's window."""
    made.rollouter.set_servers(servers)
    made.rollouter.reset_staleness(0)
    made.rollouter.resume_submission()


def test_nothing_is_submitted_before_the_first_version() -> None:
    """Replicas alone are not enough: there are no weights to generate with."""

    async def main() -> list[int]:
        made = bench()
        made.rollouter.set_servers(2)
        counts = [made.rollouter.active]
        made.rollouter.reset_staleness(0)
        counts.append(made.rollouter.active)
        made.rollouter.resume_submission()
        counts.append(made.rollouter.active)
        await made.rollouter.stop()
        return counts

    assert run_virtual(main()) == [0, 0, 6]


def test_a_sample_holds_its_responses_and_their_rewards_in_order() -> None:
    """The event says what the sample says."""

    async def main() -> Bench:
        made = bench(total=1)
        begin(made)
        await made.queue.wait_for(1, 10.0)
        return made

    made = run_virtual(main())
    (sample,) = made.queue.take(1)
    assert [episode.handle for episode in sample.episodes] == ["0/0", "0/1"]
    assert sample.rewards == (0.0, 1.0)
    assert made.sink.of(SampleQueued) == [SampleQueued(0, 0, 1, 1.0, 8, 30, 20, 0, 0, 0)]


def test_active_samples_follow_the_number_of_servers() -> None:
    """So many per replica, never above the budget; what is active above the cap goes on."""

    async def main() -> list[int]:
        made = bench(per_replica=2, budget=5, total=50)
        begin(made, servers=1)
        counts = [made.rollouter.active]
        for servers in (2, 3, 0):
            made.rollouter.set_servers(servers)
            counts.append(made.rollouter.active)
        made.rollouter.set_servers(0)
        assert [event.capacity for event in made.sink.of(CapacityChanged)] == [2, 4, 5, 0]
        await made.rollouter.stop()
        return counts

    assert run_virtual(main()) == [2, 4, 5, 5]


def test_the_staleness_budget_bounds_submissions_between_syncs() -> None:
    """Six samples, however fast they are done; the next version admits what is not in stock."""

    async def main() -> Bench:
        made = bench(per_replica=4, budget=6)
        begin(made)
        await asyncio.sleep(50.0)
        assert (made.rollouter.submitted, made.rollouter.active, len(made.queue)) == (6, 0, 6)
        made.queue.take(4)
        await asyncio.sleep(50.0)
        assert made.rollouter.submitted == 6
        made.rollouter.reset_staleness(1)
        assert (made.rollouter.submitted, made.rollouter.staleness_samples) == (10, 6)
        await made.rollouter.stop()
        return made

    made = run_virtual(main())
    assert made.sink.of(StalenessReset)[1] == StalenessReset(1, 2, 0, 2)
    assert [event.staleness_samples for event in made.sink.of(SampleSubmitted)] == [
        *range(1, 7),
        *range(3, 7),
    ]


@given(
    servers=st.integers(0, 3),
    budget=st.integers(1, 8),
    total=st.integers(0, 20),
    waited_s=st.integers(0, 3),
    taken=st.integers(0, 4),
    held=st.booleans(),
)
def test_upcoming_is_what_the_next_window_lets_in(
    servers: int, budget: int, total: int, waited_s: int, taken: int, held: bool
) -> None:
    """Whether replicas, the budget, the data or somebody who holds submission is the limit."""

    async def main() -> tuple[int, int]:
        made = bench(budget=budget, total=total)
        begin(made, servers)
        await asyncio.sleep(waited_s + 0.5)
        made.queue.take(min(taken, len(made.queue)))
        await asyncio.sleep(0.1)
        if held:
            made.rollouter.hold()
        upcoming, before = made.rollouter.upcoming, made.rollouter.submitted
        made.rollouter.reset_staleness(1)
        submitted = made.rollouter.submitted - before
        await made.rollouter.stop()
        assert made.rollouter.upcoming == 0
        return upcoming, submitted

    upcoming, submitted = run_virtual(main())
    assert upcoming == submitted


def test_attainable_counts_queue_flight_budget_data_and_capacity() -> None:
    """The most that can still be buffered before the next sync."""

    async def main() -> list[int]:
        made = bench(per_replica=2, budget=6, total=8)
        begin(made)
        counts = [made.rollouter.attainable]
        await made.queue.wait_for(6, 100.0)
        made.queue.take(4)
        counts.append(made.rollouter.attainable)
        made.rollouter.reset_staleness(1)
        counts.append(made.rollouter.attainable)
        await made.queue.wait_for(4, 100.0)
        counts.append(made.rollouter.attainable)
        return counts

    assert run_virtual(main()) == [6, 2, 4, 4]


def test_a_sample_given_up_frees_its_budget() -> None:
    """It is reported with its reason, and another takes its place."""

    async def failing(request: EpisodeRequest) -> None:
        await asyncio.sleep(1.0)
        if request.request_id == "1/0":
            raise RequestFailedError("request 1/0 failed 4 times")
        await asyncio.sleep(1.0)

    async def main() -> Bench:
        made = bench(failing, per_replica=3, budget=3)
        begin(made)
        await made.queue.wait_for(3, 100.0)
        return made

    made = run_virtual(main())
    assert made.queued() == [0, 2, 3]
    assert made.sink.of(SampleGivenUp) == [SampleGivenUp(1, 2, "request 1/0 failed 4 times")]
    assert made.rollouter.given_up == 1
    assert made.rollouter.staleness_samples == 3


def test_finished_responses_of_a_sample_given_up_are_dropped() -> None:
    """Nobody will ask for their payloads."""

    async def generate(request: EpisodeRequest) -> None:
        await asyncio.sleep(1.0 + request.response_index)
        if request.response_index == 1:
            raise RequestFailedError("failed")

    async def main() -> Bench:
        made = bench(generate, total=2)
        begin(made)
        await asyncio.sleep(10.0)
        return made

    assert [episode.handle for episode in run_virtual(main()).dropped] == ["0/0", "1/0"]


def test_the_other_responses_of_a_sample_given_up_are_cancelled() -> None:
    """They would only take room; the sample leaves when they have let go."""
    ended: list[str] = []

    async def failing(request: EpisodeRequest) -> None:
        if request.response_index == 0:
            raise RequestFailedError("failed")
        try:
            await asyncio.sleep(100.0)
        finally:
            ended.append(request.request_id)

    async def main() -> float:
        made = bench(failing, total=1)
        begin(made)
        await made.queue.wait_for(1, 10.0)
        return asyncio.get_running_loop().time()

    assert run_virtual(main()) == 0.0
    assert ended == ["0/1"]


def test_a_full_queue_pushes_back_on_finished_samples() -> None:
    """They stay active until there is room, and enter in order; none is dropped."""

    async def main() -> Bench:
        made = bench(per_replica=4, budget=6, capacity=2, total=6)
        begin(made)
        await asyncio.sleep(10.0)
        assert (len(made.queue), made.rollouter.active) == (2, 4)
        for _ in range(3):
            made.queue.take(2)
            await asyncio.sleep(10.0)
        assert made.queue.ended
        return made

    assert run_virtual(main()).queued() == [0, 1, 2, 3, 4, 5]


def test_an_error_of_the_task_ends_production_with_its_cause() -> None:
    """User code that raises is neither retried nor hidden behind a normal end."""

    async def broken(request: EpisodeRequest) -> None:
        raise ZeroDivisionError("reward of nothing")

    async def main() -> tuple[WaitOutcome, Bench]:
        made = bench(broken, per_replica=1)
        begin(made)
        outcome = await made.queue.wait_for(1, 10.0)
        await made.rollouter.stop()
        return outcome, made

    outcome, made = run_virtual(main())
    assert outcome is WaitOutcome.FAILED
    assert made.rollouter.submitted == made.rollouter.given_up == 1
    assert made.queue.failure == "rollout failed: sample 0: ZeroDivisionError: reward of nothing"
    assert isinstance(made.queue.error, ZeroDivisionError)


def test_a_wrong_number_of_rewards_is_an_error_of_the_task() -> None:
    """Rewards would be paired with the wrong responses."""

    class Stingy(Prompts):
        async def score(self, prompt: Prompt, episodes: Sequence[Episode]) -> tuple[float, ...]:
            return (1.0,)

    async def main() -> Bench:
        made = bench(task=Stingy(), per_replica=1)
        begin(made)
        assert await made.queue.wait_for(1, 10.0) is WaitOutcome.FAILED
        await made.rollouter.stop()
        return made

    failure = run_virtual(main()).queue.failure
    assert failure is not None
    assert "rewards of sample 0 must be one for each of the 2 responses" in failure


def test_a_sample_cancelled_from_inside_is_a_failure() -> None:
    """An episode that lets a stray cancellation out does not make its sample vanish."""

    async def stray(request: EpisodeRequest) -> None:
        raise asyncio.CancelledError

    async def main() -> Bench:
        made = bench(stray, per_replica=1)
        begin(made)
        assert await made.queue.wait_for(1, 10.0) is WaitOutcome.FAILED
        assert made.rollouter.active == 0
        return made

    assert run_virtual(main()).queue.failure == "rollout failed: sample 0: cancelled"


def test_data_ends_with_the_last_sample_queued_or_given_up() -> None:
    """The queue says so at once, and not before; the last submission is reported."""

    async def last_fails(request: EpisodeRequest) -> None:
        await asyncio.sleep(1.0 + int(request.prompt.handle))
        if request.prompt.position == 3:
            raise RequestFailedError("failed")

    async def main() -> tuple[WaitOutcome, float, Bench]:
        made = bench(last_fails, total=4, per_replica=4)
        begin(made)
        outcome = await made.queue.wait_for(4, 100.0)
        return outcome, asyncio.get_running_loop().time(), made

    outcome, ended_s, made = run_virtual(main())
    assert (outcome, ended_s) == (WaitOutcome.EXHAUSTED, 4.0)
    assert made.queued() == [0, 1, 2]
    assert made.sink.of(DataExhausted) == [DataExhausted(4)]


def test_without_data_the_queue_ends_at_once() -> None:
    """A run over nothing is exhausted, not stuck."""

    async def main() -> bool:
        made = bench(total=0)
        begin(made)
        return made.queue.ended

    assert run_virtual(main())


def test_drain_lets_samples_end_and_begins_none() -> None:
    """It returns with the last active sample; submission goes on when it is resumed."""

    async def main() -> list[tuple[float, int, int]]:
        made = bench(per_replica=3, budget=9)
        begin(made)
        seen = []

        async def note() -> None:
            now_s = asyncio.get_running_loop().time()
            seen.append((now_s, made.rollouter.active, made.rollouter.submitted))

        await asyncio.sleep(0.5)
        await made.rollouter.drain()
        await note()
        await asyncio.sleep(5.0)
        await note()
        made.rollouter.resume_submission()
        await note()
        await made.rollouter.stop()
        return seen

    assert run_virtual(main()) == [(1.0, 0, 3), (6.0, 0, 3), (6.0, 3, 6)]


def test_a_cancelled_drain_leaves_submission_held() -> None:
    """Whoever gives up waiting still decides when episodes begin again."""

    async def main() -> list[int]:
        made = bench(per_replica=1)
        begin(made)
        drain = asyncio.create_task(made.rollouter.drain())
        await asyncio.sleep(0.5)
        drain.cancel()
        await asyncio.sleep(5.0)
        counts = [made.rollouter.submitted]
        made.rollouter.resume_submission()
        counts.append(made.rollouter.submitted)
        await made.rollouter.stop()
        return counts

    assert run_virtual(main()) == [1, 2]


def test_the_budget_grows_where_a_collection_could_never_fill() -> None:
    """By the deficit and no more, only while data remains, until the next version."""

    async def main() -> list[int]:
        made = bench(per_replica=4, budget=4, total=7)
        begin(made)
        await made.queue.wait_for(4, 10.0)
        made.queue.take(3)
        made.rollouter.grow_budget_for(1)
        counts = [made.rollouter.submitted]
        made.rollouter.grow_budget_for(3)
        counts += [made.rollouter.submitted, made.rollouter.attainable]
        made.rollouter.grow_budget_for(3)
        counts.append(made.rollouter.submitted)
        await made.queue.wait_for(3, 10.0)
        made.queue.take(3)
        made.rollouter.reset_staleness(1)
        made.rollouter.grow_budget_for(3)
        counts += [made.rollouter.submitted, made.rollouter.attainable]
        await made.rollouter.stop()
        return counts

    assert run_virtual(main()) == [4, 6, 3, 6, 7, 1]


@pytest.mark.parametrize("at_s", [0.0, 0.5, 1.0, 3.5])
def test_stop_cancels_whatever_is_active(at_s: float) -> None:
    """Before its first step, while generating, while pushed back: nothing stays, nothing begins."""

    async def main() -> tuple[int, int, str | None]:
        made = bench(per_replica=4, budget=8, capacity=2)
        begin(made)
        if at_s:
            await asyncio.sleep(at_s)
        await made.rollouter.stop()
        left = made.rollouter.active
        made.rollouter.pump()
        made.rollouter.set_servers(5)
        await asyncio.sleep(50.0)
        return left, made.rollouter.active, made.queue.failure

    assert run_virtual(main()) == (0, 0, None)


@given(
    total=st.integers(0, 30),
    budget=st.integers(1, 8),
    per_replica=st.integers(1, 4),
    failing=st.sets(st.integers(0, 29)),
    take=st.integers(1, 4),
)
def test_every_sample_ends_in_exactly_one_place(
    total: int, budget: int, per_replica: int, failing: set[int], take: int
) -> None:
    """Queued once or given up once, whatever fails; budget and cap are kept throughout."""

    async def generate(request: EpisodeRequest) -> None:
        await asyncio.sleep(1.0 + request.prompt.position * 7 % 5)
        if request.prompt.position in failing:
            raise RequestFailedError("failed")

    async def main() -> tuple[Bench, list[int]]:
        made, taken, version = (
            bench(generate, per_replica=per_replica, budget=budget, total=total),
            list[int](),
            0,
        )
        begin(made)
        while not made.queue.ended or len(made.queue):
            outcome = await made.queue.wait_for(min(take, budget), 1_000.0)
            size = len(made.queue) if outcome is WaitOutcome.EXHAUSTED else min(take, budget)
            taken += [sample.sample_id for sample in made.queue.take(size)]
            version += 1
            made.rollouter.reset_staleness(version)
        return made, taken

    made, taken = run_virtual(main())
    given_up = [event.sample for event in made.sink.of(SampleGivenUp)]
    assert sorted(taken + given_up) == list(range(total))
    assert taken == made.queued()
    for event in made.sink.of(SampleSubmitted):
        assert event.active <= min(per_replica, budget)
        assert event.staleness_samples <= budget

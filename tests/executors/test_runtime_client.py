"""The client: one response, resumed across aborts and restarted after losses."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import pytest
from tests.executors.answering import HANG, REQUEST, Bench, bench, part, whole
from tests.executors.routing_model import OneTurn
from tests.executors.support import run_virtual

from swingshift.executors.runtime.client import RequestFailedError
from swingshift.executors.runtime.deadlines import UnexpectedDeadlineError
from swingshift.sdk.events import RequestReturned, RequestRouted
from swingshift.sdk.executor import (
    Episode,
    ExecutorError,
    Generation,
    GenerationRequest,
    ReplicaLostError,
    VersionSpan,
)


def answer(
    answers: Sequence[Generation | BaseException | None],
    **settings: int | bool | Callable[[str], int | None],
) -> tuple[Episode, Bench]:
    """Run one request to its end and check that it left nothing behind."""

    async def main() -> tuple[Episode, Bench]:
        made = bench(answers, **settings)  # type: ignore[arg-type]
        episode = await made.client(OneTurn(), REQUEST)
        made.client.close()
        return episode, made

    episode, made = run_virtual(main())
    assert made.balancer.total_load == 0
    assert not made.balancer._sticky
    return episode, made


def test_a_response_of_one_attempt() -> None:
    """The whole budget is offered, and what came back is the episode."""
    episode, made = answer([whole((3, 40))])
    assert episode == Episode(handle="h40", tokens=40, spans=(VersionSpan(3, 40),), attempts=1)
    assert made.executor.asked == [("a", GenerationRequest("5/0", REQUEST.prompt, 0, 100, 0, None))]
    assert made.returned() == [("stop", 40)]


def test_an_aborted_request_resumes_with_what_it_has() -> None:
    """Tokens and spans add up, the handle is passed on, and the budget is cumulative."""
    episode, made = answer([part((3, 10), (4, 20)), part((4, 30)), whole((4, 5), (5, 1))])
    assert episode.tokens == 66
    assert episode.spans == (VersionSpan(3, 10), VersionSpan(4, 55), VersionSpan(5, 1))
    assert episode.attempts == 3
    offered = [
        (request.max_new_tokens, request.generated_tokens, request.resume_from)
        for _, request in made.executor.asked
    ]
    assert offered == [(100, 0, None), (70, 30, "h30"), (40, 60, "h30")]
    resumed = [event.resumed_tokens for event in made.sink.of(RequestRouted)]
    assert resumed == [0, 30, 60]


def test_a_response_aborted_at_its_budget_is_finished() -> None:
    """No attempt is made that may add nothing."""
    episode, made = answer([part((0, 60)), part((0, 40))])
    assert (episode.tokens, episode.attempts) == (100, 2)
    assert made.returned() == [("abort", 60), ("abort", 40)]


def test_an_attempt_that_was_aborted_before_it_began_loses_nothing() -> None:
    """Nothing came of it, so the next one starts as it did."""
    episode, made = answer([part(), whole((0, 7))])
    assert (episode.tokens, episode.attempts) == (7, 2)
    assert made.executor.asked[1][1].generated_tokens == 0


def test_a_session_stays_on_its_replica_while_it_can() -> None:
    """Later attempts go where the KV cache may still be; elsewhere once the replica left."""

    async def main() -> list[str]:
        made = bench([part((0, 10)), part((0, 10)), whole((0, 1))])
        asyncio.get_running_loop().call_later(1.5, made.balancer.remove, "a")
        await made.client(OneTurn(), REQUEST)
        return [replica for replica, _ in made.executor.asked]

    assert run_virtual(main()) == ["a", "a", "b"]


def test_after_a_loss_it_starts_again_from_the_prompt() -> None:
    """What died with the replica is neither counted nor asked for, and the loss is reported."""
    episode, made = answer([part((0, 30)), ReplicaLostError("gone"), whole((1, 50))])
    assert episode == Episode(handle="h50", tokens=50, spans=(VersionSpan(1, 50),), attempts=3)
    last = made.executor.asked[-1][1]
    assert (last.max_new_tokens, last.generated_tokens, last.resume_from) == (100, 0, None)
    assert made.returned() == [("abort", 30), ("lost", 0), ("stop", 50)]


def test_failures_are_retried_so_often_and_then_reported() -> None:
    """The error names the request, the number of failures and the last cause."""

    async def main() -> Bench:
        made = bench([ExecutorError("first"), ExecutorError("second")], retries=1)
        with pytest.raises(RequestFailedError, match="5/0 failed 2 times; last: second"):
            await made.client(OneTurn(), REQUEST)
        return made

    made = run_virtual(main())
    assert made.returned() == [("failed", 0), ("failed", 0)]
    assert [replica for replica, _ in made.executor.asked] == ["a", "b"]
    assert made.balancer.total_load == 0


def test_an_attempt_has_a_deadline() -> None:
    """One that does not end counts as a failure, and the engine is told by cancellation."""
    episode, made = answer([HANG, whole((0, 5))])
    assert episode.attempts == 2
    assert made.returned() == [("deadline", 0), ("stop", 5)]
    routed = [t for t, e in zip(made.sink.times_s, made.sink.events, strict=True)]
    assert routed[-1] == 61.0


def test_waiting_for_a_replica_has_no_deadline() -> None:
    """While nobody serves a request waits, however long, and loses no retry by it."""

    async def main() -> tuple[int, float]:
        made = bench([whole((0, 5))], retries=0, virtual_time=True)
        made.balancer.remove("a")
        made.balancer.remove("b")
        asyncio.get_running_loop().call_later(10_000.0, made.balancer.add, "c")
        episode = await made.client(OneTurn(), REQUEST)
        return episode.attempts, asyncio.get_running_loop().time()

    assert run_virtual(main()) == (1, 10_001.0)


def test_on_modelled_time_a_deadline_is_no_failure_to_retry() -> None:
    """It is a fault of the control plane; the lease is given back all the same."""

    async def main() -> Bench:
        made = bench([HANG], virtual_time=True)
        with pytest.raises(UnexpectedDeadlineError):
            await made.client(OneTurn(), REQUEST)
        return made

    made = run_virtual(main())
    assert made.returned() == [("deadline", 0)]
    assert made.balancer.total_load == 0


def test_what_an_adapter_does_not_name_is_not_retried() -> None:
    """A bug of the adapter ends the request with its own error, a bare timeout included."""
    for error in (KeyError("bug"), TimeoutError("of a socket")):

        async def main(error: Exception = error) -> Bench:
            made = bench([error, whole((0, 1))])
            with pytest.raises(type(error)):
                await made.client(OneTurn(), REQUEST)
            return made

        made = run_virtual(main())
        assert made.returned() == [("failed", 0)]
        assert made.balancer.total_load == 0


def test_a_response_without_a_token_is_a_failed_attempt() -> None:
    """It could not be trained on; nothing more after some tokens is a whole response."""
    episode, made = answer([whole(), part((0, 3)), whole()])
    assert (episode.tokens, episode.attempts) == (3, 3)
    assert made.returned() == [("failed", 0), ("abort", 3), ("stop", 0)]


@pytest.mark.parametrize("at_s", [0.0, 0.5, 1.5])
def test_cancellation_gives_the_lease_back(at_s: float) -> None:
    """Before, during and between attempts; the session is forgotten too."""

    async def main() -> Bench:
        made = bench([part((0, 10)), HANG])
        task = asyncio.create_task(made.client(OneTurn(), REQUEST))
        await asyncio.sleep(at_s)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert task.cancelled()
        return made

    made = run_virtual(main())
    assert made.balancer.total_load == 0
    assert not made.balancer._sticky
    assert len(made.sink.of(RequestRouted)) == len(made.sink.of(RequestReturned))
    assert all(reason in ("abort", "cancelled") for reason, _ in made.returned())


def test_cancellation_while_waiting_for_a_replica() -> None:
    """No attempt was begun, so none is reported."""

    async def main() -> Bench:
        made = bench([])
        made.balancer.hold()
        task = asyncio.create_task(made.client(OneTurn(), REQUEST))
        await asyncio.sleep(1.0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        made.balancer.open()
        return made

    made = run_virtual(main())
    assert made.balancer.total_load == 0
    assert made.sink.events == []


def test_a_response_of_one_version_moves_within_it() -> None:
    """Where versions may not mix, a replica of the same version takes over what there is."""
    versions = {"a": 4, "b": 4}
    episode, _ = answer([part((4, 10)), whole((4, 5))], version_of=versions.get)
    assert episode.spans == (VersionSpan(4, 15),)


def test_a_response_of_one_version_starts_again_under_another() -> None:
    """Tokens of an earlier version are given up, not mixed; that is no failure."""
    versions = {"a": 4, "b": 4}

    async def main() -> tuple[Episode, Bench]:
        made = bench([part((4, 10)), whole((5, 8))], retries=0, version_of=versions.get)
        asyncio.get_running_loop().call_later(0.5, versions.update, {"a": 5, "b": 5})
        return await made.client(OneTurn(), REQUEST), made

    episode, made = run_virtual(main())
    assert episode.spans == (VersionSpan(5, 8),)
    assert made.executor.asked[1][1].max_new_tokens == 100

"""The client and episodes of several turns: one budget, one session, and nothing left behind."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.executors.answering import HANG, REQUEST, Bench, bench, part, whole
from tests.executors.episodes import Play, Played, seen
from tests.executors.support import run_virtual

from swingshift.executors.rl.task import EpisodeRequest, EpisodeRestartError, Turn
from swingshift.executors.runtime.client import RequestFailedError
from swingshift.sdk.events import RequestReturned, RequestRouted
from swingshift.sdk.executor import (
    Episode,
    ExecutorError,
    FinishReason,
    Generation,
    Insertion,
    Observation,
    ReplicaLostError,
    Segment,
    VersionSpan,
)

Answers = Sequence[Generation | BaseException | None]


def using(*observations: Observation | None, pause_s: float = 10.0) -> Play:
    """Return an episode of one turn more than there are observations, with pauses between them."""

    async def play(turn: Turn, request: EpisodeRequest) -> Episode:
        episode = await turn(request)
        for observation in observations:
            await asyncio.sleep(pause_s)
            episode = await turn(request, observation)
        return episode

    return play


def answer(
    answers: Answers, play: Play, **settings: int | Callable[[str], int | None]
) -> tuple[Episode, Bench]:
    """Run one episode to its end and check that it left nothing behind."""

    async def main() -> tuple[Episode, Bench]:
        made = bench(answers, **settings)  # type: ignore[arg-type]
        episode = await made.client(Played(play), REQUEST)
        made.client.close()
        return episode, made

    episode, made = run_virtual(main())
    assert is_clean(made)
    return episode, made


def is_clean(made: Bench) -> bool:
    """Return whether neither a lease nor a session is left."""
    return not made.balancer.total_load and not made.balancer._sticky


def test_turns_add_up_to_one_response() -> None:
    """Tokens, spans, attempts and turns are cumulative, and what tools returned is marked."""
    episode, _ = answer([whole((3, 10)), whole((3, 20), (4, 5))], using(seen(7)))

    assert episode == Episode(
        handle="h25",
        tokens=35,
        spans=(VersionSpan(3, 30), VersionSpan(4, 5)),
        attempts=2,
        turns=2,
        insertions=(Insertion(10, 7),),
    )
    assert episode.segments == (Segment(10, True), Segment(7, False), Segment(25, True))
    assert (episode.observed_tokens, episode.response_tokens) == (7, 42)
    assert not episode.is_interrupted


def test_a_further_turn_is_asked_for_with_all_there_is() -> None:
    """The executor gets the handle, the counts of the whole context, and the new observation."""
    _, made = answer(
        [whole((0, 10)), whole((0, 20)), whole((0, 1))], using(seen(7), seen(5, 2)), budget=50
    )

    asked = [request for _, request in made.executor.asked]
    assert [request.turn for request in asked] == [0, 1, 2]
    assert [request.resume_from for request in asked] == [None, "h10", "h20"]
    assert [request.generated_tokens for request in asked] == [0, 10, 30]
    assert [request.observed_tokens for request in asked] == [0, 7, 12]
    assert [request.observation for request in asked] == [None, seen(7), seen(5, 2)]
    assert [request.max_new_tokens for request in asked] == [50, 33, 8]
    assert [event.attempt for event in made.sink.of(RequestRouted)] == [1, 2, 3]
    assert [event.resumed_tokens for event in made.sink.of(RequestRouted)] == [0, 10, 30]


def test_a_turn_without_an_observation_goes_on_where_the_last_one_stopped() -> None:
    """Nothing has to be put between turns."""
    episode, _ = answer([whole((0, 10)), whole((0, 3))], using(None))

    assert (episode.turns, episode.insertions) == (2, ())
    assert episode.segments == (Segment(13, True),)


def test_an_abort_in_a_later_turn_resumes_elsewhere() -> None:
    """What was put before the turn is in the handle by then, and stays in the counts."""

    async def main() -> Bench:
        made = bench([whole((0, 10)), part((0, 4)), whole((0, 6))])
        asyncio.get_running_loop().call_later(11.5, made.balancer.remove, "a")
        episode = await made.client(Played(using(seen(7))), REQUEST)
        assert (episode.tokens, episode.attempts, episode.turns) == (20, 3, 2)
        assert episode.is_interrupted
        return made

    made = run_virtual(main())
    assert [replica for replica, _ in made.executor.asked] == ["a", "a", "b"]
    resumed = made.executor.asked[-1][1]
    assert (resumed.turn, resumed.resume_from, resumed.observation) == (1, "h4", None)
    assert (resumed.generated_tokens, resumed.observed_tokens) == (14, 7)
    assert resumed.max_new_tokens == 100 - 14 - 7


def test_a_pause_holds_no_replica_and_keeps_the_session() -> None:
    """Others may use the replica meanwhile, and the episode comes back to it all the same."""

    async def main() -> tuple[list[int], list[str]]:
        made = bench([whole((0, 10)), whole((0, 10))])
        loads: list[int] = []
        for at_s in (0.5, 2.0, 11.5):
            asyncio.get_running_loop().call_later(
                at_s, lambda: loads.append(made.balancer.total_load)
            )

        def occupy() -> None:
            # busier than the other one, so that load alone would send the episode away
            made.balancer.remove("b")
            made.balancer.try_acquire("stranger")
            made.balancer.add("b")

        asyncio.get_running_loop().call_later(3.0, occupy)
        await made.client(Played(using(seen(1))), REQUEST)
        return loads, [replica for replica, _ in made.executor.asked]

    assert run_virtual(main()) == ([1, 0, 2], ["a", "a"])


def test_an_episode_moves_when_its_replica_left_during_a_pause() -> None:
    """It waits for nobody: whoever serves takes over."""

    async def main() -> list[str]:
        made = bench([whole((0, 10)), whole((0, 10))])
        asyncio.get_running_loop().call_later(5.0, made.balancer.remove, "a")
        await made.client(Played(using(seen(1))), REQUEST)
        return [replica for replica, _ in made.executor.asked]

    assert run_virtual(main()) == ["a", "b"]


@pytest.mark.parametrize("tokens", [30, 31, 500])
def test_what_does_not_fit_is_not_put_there_and_ends_the_response(tokens: int) -> None:
    """No attempt is made that could add nothing; further turns return the same response."""
    episode, made = answer([whole((0, 20))], using(seen(tokens), seen(1)), budget=50)

    assert episode.finish_reason is FinishReason.LENGTH
    assert (episode.tokens, episode.turns, episode.insertions) == (20, 1, ())
    assert len(made.executor.asked) == 1


@pytest.mark.parametrize("last", [part((0, 40)), part((0, 40), reason=FinishReason.LENGTH)])
def test_a_response_at_its_budget_has_no_further_turn(last: Generation) -> None:
    """Whether the executor says so or an abort came at the last token."""
    episode, made = answer([whole((0, 5)), last], using(seen(5), seen(1)), budget=50)

    assert episode.finish_reason is FinishReason.LENGTH
    assert (episode.response_tokens, episode.turns) == (50, 2)
    assert len(made.executor.asked) == 2


def test_a_failure_in_a_later_turn_runs_the_code_again() -> None:
    """From the prompt, as a response of one turn would; the lost tokens count nowhere."""
    lost = ReplicaLostError("gone")
    episode, made = answer(
        [whole((0, 30)), lost, whole((1, 20)), whole((1, 5))], using(seen(7), pause_s=1.0)
    )

    assert (episode.tokens, episode.spans, episode.turns) == (25, (VersionSpan(1, 25),), 2)
    assert (episode.attempts, episode.insertions) == (4, (Insertion(20, 7),))
    assert [request.turn for _, request in made.executor.asked] == [0, 1, 0, 1]
    assert [event.attempt for event in made.sink.of(RequestRouted)] == [1, 2, 3, 4]
    assert [event.resumed_tokens for event in made.sink.of(RequestRouted)] == [0, 30, 0, 20]


def test_retries_are_counted_over_all_turns() -> None:
    """An episode that fails ever again is given up, wherever it fails."""
    broken = ExecutorError("broken")

    async def main() -> Bench:
        made = bench([broken, whole((0, 1)), broken, whole((0, 1)), broken], retries=2)
        with pytest.raises(RequestFailedError, match=r"5/0 failed 3 times; last: broken"):
            await made.client(Played(using(seen(1))), REQUEST)
        return made

    made = run_virtual(main())
    assert made.executor.answers == []
    assert is_clean(made)


async def returns_what_it_had(turn: Turn, request: EpisodeRequest) -> Episode:
    first = await turn(request)
    try:
        return await turn(request, seen(1))
    except EpisodeRestartError:
        return first


async def raises_its_own(turn: Turn, request: EpisodeRequest) -> Episode:
    await turn(request)
    try:
        return await turn(request, seen(1))
    except EpisodeRestartError as error:
        raise KeyError("tool") from error


async def asks_on(turn: Turn, request: EpisodeRequest) -> Episode:
    await turn(request)
    try:
        return await turn(request, seen(1))
    except EpisodeRestartError:
        return await turn(request)


@pytest.mark.parametrize("play", [returns_what_it_had, raises_its_own, asks_on])
def test_what_is_lost_begins_again_whatever_the_code_makes_of_it(play: Play) -> None:
    """A handler that catches too much trains nobody on what is gone."""
    answers: Answers = [whole((0, 9)), ExecutorError("broken"), whole((0, 2)), whole((0, 3))]
    episode, _ = answer(answers, play)

    assert (episode.tokens, episode.turns, episode.attempts) == (5, 2, 4)


def test_an_error_of_the_code_itself_is_its_own() -> None:
    """It ends the episode, and the session with it."""

    async def fails(turn: Turn, request: EpisodeRequest) -> Episode:
        await turn(request)
        raise KeyError("tool")

    async def main() -> Bench:
        made = bench([whole((0, 9))])
        with pytest.raises(KeyError, match="tool"):
            await made.client(Played(fails), REQUEST)
        return made

    assert is_clean(run_virtual(main()))


def test_where_versions_may_not_mix_an_episode_begins_again_under_another() -> None:
    """Also when the weights changed while no turn was under way; that is no failure."""
    versions = {"a": 4, "b": 4}

    async def main() -> tuple[Episode, Bench]:
        answers = [whole((4, 10)), whole((5, 20)), whole((5, 3))]
        made = bench(answers, retries=0, version_of=versions.get)
        asyncio.get_running_loop().call_later(5.0, versions.update, {"a": 5, "b": 5})
        return await made.client(Played(using(seen(7))), REQUEST), made

    episode, made = run_virtual(main())
    assert episode.spans == (VersionSpan(5, 23),)
    assert episode.is_interrupted
    assert [request.turn for _, request in made.executor.asked] == [0, 0, 1]
    assert [event.attempt for event in made.sink.of(RequestRouted)] == [1, 2, 3]
    assert is_clean(made)


@pytest.mark.parametrize("at_s", [0.0, 0.5, 5.0, 11.5, 12.5])
def test_cancellation_leaves_nothing_behind(at_s: float) -> None:
    """Before and during a turn, in a pause, and between attempts."""

    async def main() -> Bench:
        made = bench([whole((0, 10)), part((0, 10)), HANG])
        task = asyncio.create_task(made.client(Played(using(seen(1))), REQUEST))
        await asyncio.sleep(at_s)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert task.cancelled()
        return made

    made = run_virtual(main())
    assert is_clean(made)
    assert len(made.sink.of(RequestRouted)) == len(made.sink.of(RequestReturned))


def test_a_turn_that_is_given_up_leaves_the_response_as_it_was() -> None:
    """Code may set its own time limit and ask again, with the same observation."""

    async def impatient(turn: Turn, request: EpisodeRequest) -> Episode:
        await turn(request)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1.5):
                await turn(request, seen(7))
        return await turn(request, seen(7))

    episode, made = answer([whole((0, 10)), part((0, 4)), HANG, whole((0, 6))], impatient)

    assert (episode.tokens, episode.turns, episode.insertions) == (16, 2, (Insertion(10, 7),))
    last = made.executor.asked[-1][1]
    assert (last.generated_tokens, last.observed_tokens, last.observation) == (10, 7, seen(7))


async def two_at_once(turn: Turn, request: EpisodeRequest) -> Episode:
    return (await asyncio.gather(turn(request), turn(request)))[0]


async def for_another(turn: Turn, request: EpisodeRequest) -> Episode:
    return await turn(request._replace(request_id="6/0"))


async def too_early(turn: Turn, request: EpisodeRequest) -> Episode:
    return await turn(request, seen(3))


@pytest.mark.parametrize(
    ("play", "kind", "message"),
    [
        (two_at_once, RuntimeError, "asked for a turn before the last one ended"),
        (for_another, ValueError, "pass on the request that the episode was given"),
        (too_early, ValueError, "what comes before the first one belongs in the prompt"),
    ],
)
def test_turns_that_cannot_be_are_refused(play: Play, kind: type[Exception], message: str) -> None:
    """The error says what to do, and nothing is left behind."""

    async def main() -> Bench:
        made = bench([whole((0, 1)), whole((0, 1))])
        with pytest.raises(kind, match=message):
            await made.client(Played(play), REQUEST)
        await asyncio.sleep(2.0)
        return made

    assert not run_virtual(main()).balancer.total_load


def test_a_turn_after_the_end_is_refused() -> None:
    """Nobody would forget its session."""
    kept: list[Turn] = []

    async def keeps(turn: Turn, request: EpisodeRequest) -> Episode:
        kept.append(turn)
        return await turn(request)

    async def main() -> Bench:
        made = bench([whole((0, 1))])
        await made.client(Played(keeps), REQUEST)
        with pytest.raises(RuntimeError, match="asked for a turn after its end"):
            await kept[0](REQUEST)
        return made

    assert is_clean(run_virtual(main()))


SHARES = st.tuples(st.floats(0.0, 1.0), st.sampled_from(FinishReason))


@given(
    budget=st.integers(1, 60),
    shares=st.lists(SHARES, min_size=1, max_size=12),
    observed=st.lists(st.integers(0, 30), max_size=5),
)
def test_the_budget_is_one_for_all_turns_and_attempts(
    budget: int, shares: list[tuple[float, FinishReason]], observed: list[int]
) -> None:
    """Whatever each attempt adds and each tool returns, and however often turns are aborted."""

    async def main() -> tuple[Episode, Bench]:
        made = bench([], budget=budget)
        left = [*shares]

        async def generate(replica: str, request: object) -> Generation:
            made.executor.asked.append((replica, request))  # type: ignore[arg-type]
            share, reason = left.pop(0) if left else (1.0, FinishReason.STOP)
            room = made.executor.asked[-1][1].max_new_tokens
            tokens = round(share * room)
            if reason is not FinishReason.ABORT:
                tokens = max(1, tokens)
            if reason is FinishReason.LENGTH:
                tokens = room
            return part((0, tokens), reason=reason) if tokens else part(reason=reason)

        made.executor.generate = generate  # type: ignore[method-assign]
        play = using(*(seen(tokens, number) for number, tokens in enumerate(observed)))
        return await made.client(Played(play), REQUEST), made

    episode, made = run_virtual(main())
    for _, request in made.executor.asked:
        assert request.max_new_tokens >= 1
        spent = request.generated_tokens + request.observed_tokens
        assert request.max_new_tokens == budget - spent
    assert episode.response_tokens <= budget
    assert episode.tokens == sum(span.tokens for span in episode.spans)
    assert episode.tokens == sum(new for _, new in made.returned())
    assert sum(tokens for tokens, trainable in episode.segments if trainable) == episode.tokens
    assert sum(tokens for tokens, _ in episode.segments) == episode.response_tokens
    assert is_clean(made)

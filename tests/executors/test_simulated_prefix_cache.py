"""What a replica remembers of requests that left it, and what coming back saves."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.executors.support import MODEL, run_virtual

from swingshift.executors.simulated.costs.decode import DecodeModel
from swingshift.executors.simulated.costs.hardware import H20
from swingshift.executors.simulated.engine import SimulatedEngine
from swingshift.executors.simulated.prefix_cache import PrefixCache
from swingshift.sdk.executor import GenerationRequest, Observation, Prompt

DECODE = DecodeModel(model=MODEL, gpu=H20, tensor_parallel=1)
PROMPT = Prompt(0, 10_000, "0")
FIRST = GenerationRequest("0", PROMPT, 0, 1_000)
TOOL = Observation(handle="tool", tokens=2_000)
SECOND = GenerationRequest("0", PROMPT, 0, 1_000, 100, "0", 1, 2_000, TOOL)


def test_a_context_is_kept_until_it_is_taken() -> None:
    """Taking it twice finds nothing: it is part of what runs by then."""
    cache = PrefixCache()
    cache.put("a", 30, 100.0)

    assert [cache.take(name, 100.0) for name in ("b", "a", "a")] == [0, 30, 0]


def test_what_was_left_longest_ago_goes_first() -> None:
    """Room that is needed is taken from the oldest; a newer context of a request is new."""
    cache = PrefixCache()
    for name, tokens in (("a", 40), ("b", 40), ("a", 50), ("c", 30)):
        cache.put(name, tokens, 100.0)

    assert [cache.take(name, 100.0) for name in ("a", "b", "c")] == [50, 0, 30]


def test_room_that_running_requests_took_is_gone() -> None:
    """Nothing is found that could not have stayed."""
    cache = PrefixCache()
    cache.put("a", 40, 100.0)
    cache.put("b", 40, 100.0)

    assert [cache.take(name, 50.0) for name in ("a", "b")] == [0, 40]


NAMES = st.sampled_from("abcd")


@given(steps=st.lists(st.tuples(NAMES, st.integers(0, 60), st.integers(0, 100)), max_size=30))
def test_what_is_kept_fits(steps: list[tuple[str, int, int]]) -> None:
    """However contexts come and room goes; and a context is never found longer than it was."""
    cache = PrefixCache()
    latest: dict[str, int] = {}
    for name, tokens, room in steps:
        cache.put(name, tokens, float(room))
        latest[name] = tokens
    kept = {name: cache.take(name, 1_000.0) for name in latest}

    assert sum(kept.values()) <= (steps[-1][2] if steps else 0)
    assert all(tokens in (0, latest[name]) for name, tokens in kept.items())


def make_engine(*, prefixes: bool = True, kv_tokens: int = 1_000_000) -> SimulatedEngine:
    """Return a running engine whose turns end at 100 and at 200 generated tokens."""
    engine = SimulatedEngine(
        "r",
        DECODE,
        kv_capacity_tokens=kv_tokens,
        max_running=16,
        response_tokens=lambda request: 100 * (request.turn + 1),
        prefixes=PrefixCache() if prefixes else None,
    )
    engine.set_version(0)
    engine.resume()
    return engine


async def took_s(engine: SimulatedEngine, request: GenerationRequest) -> float:
    """Return the seconds a request takes."""
    begun_s = asyncio.get_running_loop().time()
    await engine.generate(request)
    return asyncio.get_running_loop().time() - begun_s


async def second_turn_s(came_back: SimulatedEngine, was_on: SimulatedEngine) -> float:
    """Return the seconds of a second turn on one replica after a first one on another."""
    await was_on.generate(FIRST)
    return await took_s(came_back, SECOND)


async def back_on_the_same(**settings: int | bool) -> float:
    engine = make_engine(**settings)  # type: ignore[arg-type]
    return await second_turn_s(engine, engine)


async def moved_to_another() -> float:
    return await second_turn_s(make_engine(), make_engine())


def test_the_next_turn_computes_what_is_new_where_the_last_one_was() -> None:
    """Elsewhere it computes the whole context; the difference is that of the two prefills."""
    saved_s = run_virtual(moved_to_another()) - run_virtual(back_on_the_same())

    whole_s = DECODE.prefill_s(12_100)
    new_s = DECODE.prefill_s(2_000, 10_100)
    assert saved_s == pytest.approx(whole_s - new_s)
    assert new_s < 0.3 * whole_s


def test_without_a_cache_every_turn_computes_everything() -> None:
    """As it is where episodes have one turn."""
    assert run_virtual(back_on_the_same(prefixes=False)) == run_virtual(moved_to_another())


@pytest.mark.parametrize("version", [0, 1])
def test_weights_empty_the_cache(version: int) -> None:
    """New ones, and the same ones brought back after the memory was given up."""

    async def main() -> float:
        engine = make_engine()
        await engine.generate(FIRST)
        engine.set_version(version)
        return await took_s(engine, SECOND)

    assert run_virtual(main()) == pytest.approx(run_virtual(moved_to_another()))


def test_others_push_a_context_out() -> None:
    """A replica that had to use the room meanwhile computes it again."""

    async def main() -> float:
        engine = make_engine(kv_tokens=15_000)
        await engine.generate(FIRST)
        await engine.generate(FIRST._replace(request_id="other"))
        return await took_s(engine, SECOND)

    assert run_virtual(main()) == pytest.approx(run_virtual(moved_to_another()))


def test_an_aborted_turn_that_comes_back_computes_nothing_again() -> None:
    """Its context is where it left it; what was prefilled twice is counted, here nothing."""

    async def main() -> int:
        engine = make_engine()
        task = asyncio.create_task(engine.generate(FIRST))
        await asyncio.sleep(0.5)
        engine.abort(["0"])
        part = await task
        assert 0 < part.new_tokens < 100
        rest = FIRST._replace(generated_tokens=part.new_tokens, resume_from=part.handle)
        assert (await engine.generate(rest)).new_tokens == 100 - part.new_tokens
        return engine.prefilled_again_tokens

    assert run_virtual(main()) == 0


def test_a_response_that_began_again_is_not_taken_for_the_one_it_was() -> None:
    """At most the context it has is found, and the turn takes the time of its tokens."""

    async def main() -> tuple[float, float]:
        engine = make_engine()
        await engine.generate(FIRST)
        await engine.generate(SECOND)
        again_s = await took_s(engine, FIRST)
        return again_s, await took_s(make_engine(), FIRST)

    again_s, first_s = run_virtual(main())
    assert again_s == pytest.approx(first_s - DECODE.prefill_s(10_000))


def test_observations_are_context() -> None:
    """They take room in the cache, and make every step after them slower."""

    async def main(observed: int) -> tuple[float, int]:
        engine = make_engine()
        request = SECOND._replace(observed_tokens=observed, observation=None)
        task = asyncio.create_task(engine.generate(request))
        await asyncio.sleep(0.0)
        await asyncio.sleep(0.0)
        context = engine.progress.tokens
        await task
        return asyncio.get_running_loop().time(), context

    (short_s, short), (long_s, long) = run_virtual(main(0)), run_virtual(main(50_000))

    assert (short, long) == (10_100, 60_100)
    assert long_s > short_s

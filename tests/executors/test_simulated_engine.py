"""One simulated engine: how fast it decodes, and that no token is lost or made up on the way."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.executors.support import MODEL, run_virtual

from swingshift.executors.simulated.costs.decode import DecodeModel
from swingshift.executors.simulated.costs.hardware import H20
from swingshift.executors.simulated.engine import SimulatedEngine
from swingshift.sdk.executor import (
    ExecutorError,
    FinishReason,
    Generation,
    GenerationRequest,
    Progress,
    Prompt,
    ReplicaLostError,
    VersionSpan,
)

DECODE = DecodeModel(model=MODEL, gpu=H20, tensor_parallel=1)
PROMPT_TOKENS = 100
BUDGET = 5_000


def make_engine(
    lengths: Mapping[int, int], *, kv_tokens: int = 1_000_000, max_running: int = 16
) -> SimulatedEngine:
    """Return a running engine with weights of version 0; lengths are by prompt position."""
    engine = SimulatedEngine(
        "r",
        DECODE,
        kv_capacity_tokens=kv_tokens,
        max_running=max_running,
        response_tokens=lambda request: lengths[request.prompt.position],
    )
    engine.set_version(0)
    engine.resume()
    return engine


def request(position: int, *, generated: int = 0, budget: int = BUDGET) -> GenerationRequest:
    """Return a request for a prompt's only response, or for the rest of it."""
    prompt = Prompt(position, PROMPT_TOKENS, str(position))
    handle = str(position) if generated else None
    return GenerationRequest(str(position), prompt, 0, budget - generated, generated, handle)


def now_s() -> float:
    return asyncio.get_running_loop().time()


async def started(engine: SimulatedEngine, *positions: int) -> list[asyncio.Task[Generation]]:
    """Begin requests and let the engine admit them."""
    tasks = [asyncio.create_task(engine.generate(request(position))) for position in positions]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    return tasks


def test_one_request_decodes_at_the_roofline() -> None:
    """Prefill, then steps that read all weights and a context that grows by one token each."""

    async def main() -> tuple[Generation, float]:
        return await make_engine({0: 1_000}).generate(request(0)), now_s()

    generation, seconds = run_virtual(main())

    prefill_flops = 2e9 * 100 + MODEL.attention_flops_per_pair * 100 * 50
    kv_bytes = 2 * 16 * 8 * 64 * 2
    read_bytes = 1_000 * 2e9 + kv_bytes * (1_000 * 100 + 1_000 * 1_000 / 2)
    expected_s = prefill_flops / (0.4 * 148e12) + read_bytes / (0.7 * 4e12) + 1_000 * 5.02e-3
    assert seconds == pytest.approx(expected_s, rel=1e-9)
    assert generation == ("0", 1_000, FinishReason.STOP, (VersionSpan(0, 1_000),))


def test_budget_ends_a_response() -> None:
    """A response as long as its budget ends for that reason."""

    async def main() -> Generation:
        return await make_engine({0: 9_000}).generate(request(0))

    assert run_virtual(main())[1:3] == (BUDGET, FinishReason.LENGTH)


def test_company_slows_a_request_and_is_worth_it() -> None:
    """Batching: each request takes longer than alone, all together less than one by one."""

    async def ends_s(count: int) -> float:
        engine = make_engine(dict.fromkeys(range(count), 1_000))
        await asyncio.gather(*await started(engine, *range(count)))
        return now_s()

    alone_s, together_s = run_virtual(ends_s(1)), run_virtual(ends_s(8))

    assert alone_s < together_s < 8 * alone_s


def test_steps_are_shared_by_the_batch() -> None:
    """A request that joins late is behind by what it missed, and ends that much later."""

    async def main() -> list[float]:
        engine = make_engine({0: 400, 1: 400})
        ends_s: list[float] = []
        first, *_ = await started(engine, 0)
        await asyncio.sleep(1.0)
        second, *_ = await started(engine, 1)
        for task in (first, second):
            await task
            ends_s.append(now_s())
        return ends_s

    first_s, second_s = run_virtual(main())

    assert second_s - first_s == pytest.approx(1.0, rel=0.05)


def test_looking_at_progress_changes_nothing() -> None:
    """Not even the last digit of a time."""

    async def main(looks: int) -> float:
        engine = make_engine({0: 1_000, 1: 700})
        tasks = await started(engine, 0, 1)
        seen = [0]
        for _ in range(looks):
            await asyncio.sleep(0.31)
            seen.append(engine.progress.tokens)
        assert seen == sorted(seen)
        await asyncio.gather(*tasks)
        return now_s()

    assert run_virtual(main(10)) == run_virtual(main(0))


def test_abort_returns_the_part_and_resuming_finishes_it() -> None:
    """The two parts make exactly the response that would have come without an abort."""

    async def main() -> tuple[Generation, Generation]:
        engine = make_engine({0: 1_000})
        [task] = await started(engine, 0)
        await asyncio.sleep(2.0)
        engine.abort(["0", "unknown"])
        part = await task
        return part, await engine.generate(request(0, generated=part.new_tokens))

    part, rest = run_virtual(main())

    assert part.finish_reason is FinishReason.ABORT
    assert 0 < part.new_tokens < 1_000
    assert (part.new_tokens + rest.new_tokens, rest.finish_reason) == (1_000, FinishReason.STOP)


def test_abort_of_what_waits_returns_nothing() -> None:
    """A request that was never admitted has no tokens."""

    async def main() -> tuple[Progress, list[Generation]]:
        engine = make_engine({0: 1_000, 1: 1_000}, max_running=1)
        tasks = await started(engine, 0, 1)
        progress = engine.progress
        engine.abort(["1"])
        return progress, await asyncio.gather(*tasks)

    progress, (first, second) = run_virtual(main())

    assert (progress.running, progress.waiting) == (1, 1)
    assert second == ("1", 0, FinishReason.ABORT, ())
    assert first.new_tokens == 1_000


def test_abort_at_the_last_token_lets_the_response_end() -> None:
    """A response that is complete is not called a part of one."""

    async def main() -> Generation:
        engine = make_engine({0: 500})
        end_s = DECODE.prefill_s(PROMPT_TOKENS)
        base_s, slope_s = DECODE.step(1, PROMPT_TOKENS)
        end_s += 500 * (base_s + 0.5 * slope_s * 500)
        asyncio.get_running_loop().call_at(end_s, engine.abort_all)
        return await engine.generate(request(0))

    assert run_virtual(main())[1:3] == (500, FinishReason.STOP)


def test_full_cache_makes_the_newest_wait() -> None:
    """Growth beyond the cache preempts the newest; it is prefilled again and ends complete."""

    async def main() -> tuple[list[int], list[Generation], int]:
        engine = make_engine({0: 1_000, 1: 1_000, 2: 1_000}, kv_tokens=2_000)
        tasks = await started(engine, 0, 1, 2)
        seen = []
        while not all(task.done() for task in tasks):
            progress = engine.progress
            assert progress.tokens <= 2_000
            seen.append(progress.running)
            await asyncio.sleep(0.5)
        return seen, await asyncio.gather(*tasks), engine.prefilled_again_tokens

    seen, generations, prefilled_again = run_virtual(main())

    assert seen[0] == 3
    assert 1 in seen
    assert 2 in seen
    assert prefilled_again > 0
    assert [generation[1:] for generation in generations] == [
        (1_000, FinishReason.STOP, (VersionSpan(0, 1_000),))
    ] * 3


def test_request_larger_than_the_cache_runs_alone() -> None:
    """Nothing else could help it."""

    async def main() -> list[Generation]:
        engine = make_engine({0: 1_000, 1: 10}, kv_tokens=50)
        return await asyncio.gather(*await started(engine, 0, 1))

    assert [generation.new_tokens for generation in run_virtual(main())] == [1_000, 10]


def test_keeping_holds_requests_where_they_are() -> None:
    """A pause costs its own duration and nothing else."""

    async def main(pause_s: float) -> float:
        engine = make_engine({0: 1_000})
        [task] = await started(engine, 0)
        await asyncio.sleep(1.0)
        engine.pause()
        await asyncio.sleep(pause_s)
        engine.resume()
        await task
        return now_s()

    assert run_virtual(main(30.0)) == pytest.approx(run_virtual(main(0.0)) + 30.0)


def test_paused_engine_holds_what_arrives() -> None:
    """A request sent to a paused engine waits there until it is resumed."""

    async def main() -> tuple[Progress, float]:
        engine = make_engine({0: 10})
        engine.pause()
        [task] = await started(engine, 0)
        await asyncio.sleep(50.0)
        progress = engine.progress
        engine.resume()
        await task
        return progress, now_s()

    progress, ended_s = run_virtual(main())

    assert progress == (0, 1, 0)
    assert ended_s > 50.0


def test_drain_lets_running_requests_end_and_admits_none() -> None:
    """Drained means nothing runs; what waits is decoded after the resume."""

    async def main() -> tuple[bool, Progress, int]:
        engine = make_engine({0: 1_000, 1: 10})
        [first] = await started(engine, 0)
        drain = asyncio.create_task(engine.drain())
        await asyncio.sleep(0)
        [second] = await started(engine, 1)
        await drain
        assert first.done()
        await asyncio.sleep(10.0)
        held, progress = not second.done(), engine.progress
        engine.resume()
        return held, progress, (await second).new_tokens

    assert run_virtual(main()) == (True, (0, 1, 0), 10)


def test_idle_engine_is_drained_at_once() -> None:
    """Also one that is paused and holds requests: none runs."""

    async def main() -> float:
        engine = make_engine({0: 1_000})
        await engine.drain()
        engine.resume()
        await started(engine, 0)
        engine.pause()
        await engine.drain()
        return now_s()

    assert run_virtual(main()) == 0.0


@pytest.mark.parametrize("end", ["abort_all", "lose", "resume"])
def test_drain_ends_with_whatever_ends_it(end: str) -> None:
    """Aborted, lost or resumed: whoever waits for the drain is told."""

    async def main() -> float:
        engine = make_engine({0: 1_000})
        [task] = await started(engine, 0)
        drains = [asyncio.create_task(engine.drain()) for _ in range(2)]
        await asyncio.sleep(0.5)
        getattr(engine, end)()
        await asyncio.gather(*drains)
        ended_s = now_s()
        await asyncio.gather(task, return_exceptions=True)
        return ended_s

    assert run_virtual(main()) == 0.5


def test_new_weights_begin_a_new_span_and_cost_a_prefill() -> None:
    """Tokens of one response are told apart by the weights that made them."""

    async def main(versions: list[int]) -> tuple[Generation, float]:
        engine = make_engine({0: 1_000})
        [task] = await started(engine, 0)
        for version in versions:
            await asyncio.sleep(1.0)
            engine.pause()
            engine.set_version(version)
            engine.resume()
        return await task, now_s()

    plain, plain_s = run_virtual(main([]))
    kept, kept_s = run_virtual(main([1, 1, 2]))

    assert [span.version for span in kept.spans] == [0, 1, 2]
    assert sum(span.tokens for span in kept.spans) == kept.new_tokens == plain.new_tokens
    assert kept_s > plain_s


def test_weights_from_before_a_request_are_not_in_its_spans() -> None:
    """Only what was in use while it ran counts."""

    async def main() -> Generation:
        engine = make_engine({0: 1_000, 1: 1_000})
        [first] = await started(engine, 0)
        await asyncio.sleep(1.0)
        engine.set_version(1)
        [second] = await started(engine, 1)
        await first
        return await second

    assert run_virtual(main()).spans == (VersionSpan(1, 1_000),)


def test_lost_engine_fails_its_requests() -> None:
    """Running, waiting and later ones: all hear that the replica is gone."""

    async def main() -> list[Generation | BaseException]:
        engine = make_engine({0: 1_000, 1: 1_000}, max_running=1)
        tasks = await started(engine, 0, 1)
        await asyncio.sleep(1.0)
        engine.lose()
        late = asyncio.create_task(engine.generate(request(0)))
        return await asyncio.gather(*tasks, late, return_exceptions=True)

    outcomes = run_virtual(main())

    assert [type(outcome) for outcome in outcomes] == [ReplicaLostError] * 3


def test_engine_without_weights_refuses() -> None:
    """A replica whose weights are of unknown age must be synced before it is used."""

    async def main() -> None:
        engine = SimulatedEngine(
            "r", DECODE, kv_capacity_tokens=1_000, max_running=1, response_tokens=lambda _: 1
        )
        await engine.generate(request(0))

    with pytest.raises(ExecutorError, match="sync it first"):
        run_virtual(main())


def test_cancelling_drops_the_request_and_no_other() -> None:
    """Running or waiting, it is gone, and so is its context."""

    async def main() -> tuple[Progress, int, Progress]:
        engine = make_engine({0: 1_000, 1: 1_000, 2: 1_000}, max_running=2)
        tasks = await started(engine, 0, 1, 2)
        await asyncio.sleep(1.0)
        for task in tasks[1:]:
            task.cancel()
        await asyncio.gather(*tasks[1:], return_exceptions=True)
        during = engine.progress
        done = await tasks[0]
        return during, done.new_tokens, engine.progress

    during, tokens, after = run_virtual(main())

    assert (during.running, during.waiting, tokens) == (1, 0, 1_000)
    assert after == (0, 0, 0)


def test_cancelling_what_has_just_ended_changes_nothing() -> None:
    """The request has left already."""

    async def main() -> Progress:
        engine = make_engine({0: 1_000})
        [task] = await started(engine, 0)
        await asyncio.sleep(1.0)
        engine.abort_all()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return engine.progress

    assert run_virtual(main()) == (0, 0, 0)


LENGTHS = st.lists(st.integers(1, 900), min_size=1, max_size=8)


@given(
    lengths=LENGTHS,
    arrivals_s=st.lists(st.floats(0, 6), min_size=8, max_size=8),
    aborts_s=st.lists(st.floats(0, 12), max_size=6),
    syncs_s=st.lists(st.floats(0, 12), max_size=3),
    kv_tokens=st.integers(200, 4_000),
    max_running=st.integers(1, 8),
)
def test_every_token_is_generated_once(
    lengths: list[int],
    arrivals_s: list[float],
    aborts_s: list[float],
    syncs_s: list[float],
    kv_tokens: int,
    max_running: int,
) -> None:
    """Whatever is aborted, preempted or synced and when: parts sum to the response, spans to parts.

    Afterwards the engine holds nothing.
    """

    async def respond(engine: SimulatedEngine, position: int) -> tuple[int, list[int]]:
        await asyncio.sleep(arrivals_s[position])
        tokens, versions = 0, []
        while True:
            part = await engine.generate(request(position, generated=tokens))
            assert sum(span.tokens for span in part.spans) == part.new_tokens
            assert all(span.tokens > 0 for span in part.spans)
            tokens += part.new_tokens
            versions += [span.version for span in part.spans]
            if part.finish_reason is not FinishReason.ABORT:
                return tokens, versions

    async def main() -> None:
        loop = asyncio.get_running_loop()
        engine = make_engine(dict(enumerate(lengths)), kv_tokens=kv_tokens, max_running=max_running)
        for at_s in aborts_s:
            loop.call_at(at_s, engine.abort_all)
        for version, at_s in enumerate(sorted(syncs_s), start=1):
            loop.call_at(at_s, engine.set_version, version)
        responses = await asyncio.gather(*(respond(engine, i) for i in range(len(lengths))))
        assert [tokens for tokens, _ in responses] == lengths
        assert all(versions == sorted(versions) for _, versions in responses)
        assert engine.progress == (0, 0, 0)

    run_virtual(main())

"""The simulated executor on measured costs, against times computed by hand."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping, Sequence

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.executors.executor_doubles import ObservedExecutor, under_test
from tests.executors.measured import COSTS, ENGINE, measured_options
from tests.executors.support import lengths_of, run_training, run_virtual, small_config

from swingshift.executors.simulated.costs.lengths import LengthModel
from swingshift.executors.simulated.costs.measured import (
    DecodePoint,
    MeasuredCosts,
    MeasuredDecode,
    MeasuredEngine,
    MeasuredMemory,
    MeasuredPrefill,
    MeasuredTiming,
)
from swingshift.executors.simulated.engine import SimulatedEngine
from swingshift.executors.simulated.executor import SimulatedExecutor
from swingshift.executors.simulated.options import SimulatedOptions
from swingshift.sdk.events import BatchTrained, CycleEnded
from swingshift.sdk.executor import (
    Episode,
    FinishReason,
    FitBatch,
    Generation,
    GenerationRequest,
    MemoryPart,
    Prompt,
    Sample,
    TrainingPart,
    VersionSpan,
)
from swingshift.sdk.testing import check_executor

PROMPT_TOKENS = 10


def request(position: int, budget: int = 1_000) -> GenerationRequest:
    prompt = Prompt(position, PROMPT_TOKENS, str(position))
    return GenerationRequest(str(position), prompt, 0, budget)


def make_engine(lengths: Sequence[int], *, kv_tokens: int = 10_000) -> SimulatedEngine:
    """Return a running engine of version 0 whose lengths are by prompt position."""
    engine = SimulatedEngine(
        "r",
        ENGINE,
        kv_capacity_tokens=kv_tokens,
        max_running=16,
        response_tokens=lambda request: lengths[request.prompt.position],
    )
    engine.set_version(0)
    engine.resume()
    return engine


async def make_executor(costs: MeasuredCosts = COSTS) -> SimulatedExecutor:
    config, options = small_config(), measured_options(costs)
    executor = SimulatedExecutor(config, options, lengths_of(config, options))
    await executor.start()
    return executor


async def seconds_of(action: Awaitable[object]) -> float:
    """Return how much virtual time an action takes."""
    loop = asyncio.get_running_loop()
    started_s = loop.time()
    await action
    return loop.time() - started_s


def ends_s(lengths: Sequence[int], begins_s: Sequence[float]) -> list[float]:
    """Return when the responses of one engine end, by when their requests come."""

    async def one(engine: SimulatedEngine, position: int, begin_s: float) -> float:
        await asyncio.sleep(begin_s)
        await engine.generate(request(position))
        return asyncio.get_running_loop().time()

    async def main() -> list[float]:
        engine = make_engine(lengths)
        return list(
            await asyncio.gather(*(one(engine, i, begin_s) for i, begin_s in enumerate(begins_s)))
        )

    return run_virtual(main())


def test_requests_of_one_moment_share_a_prefill_pass() -> None:
    """0.05 until they can begin, 0.2 + 20 x 0.01 for both, then 2 steps of two and 2 of one."""
    assert ends_s([3, 5], [0.0, 0.0]) == pytest.approx([0.45 + 2 * 0.16, 0.45 + 0.32 + 2 * 0.1])


def test_a_request_that_comes_later_holds_the_others_up_for_its_prefill_alone() -> None:
    """The first has 2 tokens when the second begins at 0.45; 3 steps of two later it ends."""
    assert ends_s([5, 5], [0.0, 0.4]) == pytest.approx([0.45 + 0.3 + 3 * 0.16, 1.23 + 0.1])


def test_a_response_of_one_token_is_its_prefill() -> None:
    """There is nothing left to decode."""
    assert ends_s([1], [0.0]) == pytest.approx([0.05 + 0.3])


def test_a_request_that_has_not_begun_can_be_aborted() -> None:
    """On its way to the engine it has no tokens, and does not stay behind."""

    async def main() -> tuple[Generation, int]:
        engine = make_engine([5])
        task = asyncio.create_task(engine.generate(request(0)))
        await asyncio.sleep(0.01)
        engine.abort_all()
        return await task, engine.progress.waiting

    assert run_virtual(main()) == (("0", 0, FinishReason.ABORT, ()), 0)


def test_the_token_of_a_prefill_has_the_version_it_was_drawn_under() -> None:
    """At 0.4 the prefill's token and half of the next are of version 0; the rest is of 1."""

    async def main() -> Generation:
        engine = make_engine([4])
        task = asyncio.create_task(engine.generate(request(0)))
        await asyncio.sleep(0.4)
        engine.set_version(1)
        return await task

    assert run_virtual(main()).spans == (VersionSpan(0, 1), VersionSpan(1, 3))


@given(st.lists(st.integers(1, 40), min_size=1, max_size=12), st.integers(20, 200))
def test_no_token_is_lost_or_made_up(lengths: list[int], kv_tokens: int) -> None:
    """Whoever is preempted goes on where it was, and every token has a version."""

    async def main() -> list[Generation]:
        engine = make_engine(lengths, kv_tokens=kv_tokens)
        return await asyncio.gather(*(engine.generate(request(i)) for i in range(len(lengths))))

    for generation, length in zip(run_virtual(main()), lengths, strict=True):
        assert generation.new_tokens == length
        assert generation.spans == (VersionSpan(0, length),)


def test_every_verb_takes_what_was_measured() -> None:
    """One figure for each; a sync takes that of the slower kind of replica."""
    parameters, optimizer = TrainingPart.PARAMETERS, TrainingPart.OPTIMIZER_AND_GRADIENTS

    async def main() -> list[float]:
        executor = await make_executor()
        return [
            await seconds_of(action)
            for action in (
                executor.sync_weights(0, ["standalone-0"]),
                executor.sync_weights(0, ["standalone-0", "hybrid-0"]),
                executor.wake(["hybrid-0"], MemoryPart.WEIGHTS),
                executor.wake(["hybrid-0"], MemoryPart.KV_CACHE),
                executor.sleep(["hybrid-0"]),
                executor.offload_training(parameters),
                executor.offload_training(optimizer),
                executor.reload_training(parameters),
                executor.reload_training(optimizer),
            )
        ]

    assert run_virtual(main()) == pytest.approx([0.5, 0.7, 0.4, 0.6, 0.3, 0.8, 0.9, 1.1, 1.2])


def test_memory_is_what_was_measured() -> None:
    """Of 100 bytes the trainer's state takes 10 and 30."""

    async def main() -> list[Mapping[str, int]]:
        executor = await make_executor()
        resident = await executor.sleep(["hybrid-0"])
        await executor.offload_training(TrainingPart.OPTIMIZER_AND_GRADIENTS)
        return [resident, await executor.sleep(["hybrid-0"])]

    assert run_virtual(main()) == [{"trainer-0": 60}, {"trainer-0": 90}]


@pytest.mark.parametrize(
    ("costs", "seconds"),
    [
        pytest.param(COSTS, 2.0 + 4 * 1.0, id="own"),
        pytest.param(attrs.evolve(COSTS, hybrid_engine=None), 0.05 + 0.3 + 4 * 0.1, id="shared"),
    ],
)
def test_a_hybrid_replica_may_have_an_engine_of_its_own(
    costs: MeasuredCosts, seconds: float
) -> None:
    """Without one it decodes as a standalone replica does."""

    async def main() -> float:
        executor = await make_executor(costs)
        for part in MemoryPart:
            await executor.wake(["hybrid-0"], part)
        await executor.sync_weights(0, ["hybrid-0"])
        await executor.resume(["hybrid-0"])
        return await seconds_of(executor.generate("hybrid-0", request(0)))

    assert run_virtual(main()) == pytest.approx(seconds)


def test_a_fit_step_is_timed_by_what_it_consists_of() -> None:
    """One response of 10 + 5 tokens: 0.15, and 1 + 0.3 + 0.1."""
    episode = Episode(handle="0/0", tokens=5, spans=(VersionSpan(0, 5),), attempts=1)
    prompt = Prompt(0, PROMPT_TOKENS, "0")
    sample = Sample(sample_id=0, prompt=prompt, episodes=(episode,), rewards=(0.0,))

    async def main() -> tuple[Mapping[str, float], float]:
        executor = await make_executor()
        seconds = await seconds_of(executor.fit_step(FitBatch(batch_id=0, samples=(sample,))))
        return (await executor.fit_step(FitBatch(batch_id=0, samples=(sample,)))).timing_s, seconds

    timing_s, seconds = run_virtual(main())
    assert timing_s == pytest.approx({"old_log_prob": 0.15, "update_actor": 1.4})
    assert seconds == pytest.approx(1.55)


def test_one_cycle_by_hand() -> None:
    """Two samples of two responses, one on each replica, generated, trained and synced once.

    Generation: 0.05 + (0.2 + 2 x 10 x 0.01) + 4 x 0.16 = 1.09. Training 4 x 15 tokens: 0.6 and
    1 + 1.2 + 0.4. Sync: 0.5.
    """
    config = small_config(
        dynamic=False, prompts=2, batch=2, steps=1, training={"staleness_threshold": 0.0}
    )

    ran = run_training(config, options=measured_options())

    (cycle,) = ran.sink.of(CycleEnded)
    assert cycle.metrics["timing_s/gen"] == pytest.approx(1.09)
    (trained,) = ran.sink.of(BatchTrained)
    assert trained.timing_s == pytest.approx({"old_log_prob": 0.6, "update_actor": 2.6})
    assert cycle.metrics["timing_s/param_sync"] == pytest.approx(0.5)
    assert cycle.metrics["timing_s/step"] == pytest.approx(1.09 + 0.6 + 2.6 + 0.5)


def test_a_measured_machine_keeps_the_contract() -> None:
    """Nothing that only measured costs have, such as a first token from the prefill, breaks it."""
    engine = MeasuredEngine(
        decode=MeasuredDecode(steps=(DecodePoint(running=1, step_s=0.006),)),
        prefill=MeasuredPrefill(fixed_s=0.005, per_token_s=1e-5),
        request_overhead_s=0.002,
    )
    memory = MeasuredMemory(
        device_bytes=96e9, parameters_bytes=2e9, optimizer_and_gradients_bytes=10e9
    )
    costs = attrs.evolve(
        COSTS,
        engine=engine,
        hybrid_engine=None,
        fit_step={"update_actor": MeasuredTiming(per_token_s=1e-4)},
        memory=memory,
    )
    options = SimulatedOptions(measured=costs, lengths=LengthModel(mean_tokens=8_000.0))

    check_executor(under_test(lambda: ObservedExecutor(options=options))).assert_sound()


def test_a_run_that_lends_keeps_every_sample() -> None:
    """On a measured machine as on a modelled one; the event log is checked in the run."""
    ran = run_training(small_config(prompts=40), options=measured_options())

    assert ran.report.trained_samples == 40
    assert ran.executor.called("wake_weights")

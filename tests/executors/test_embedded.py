"""The controller inside a foreign training loop, with and without asyncio."""

from __future__ import annotations

import asyncio

import attrs
import pytest
from tests.executors.support import (
    Fault,
    ListSink,
    ScriptedPolicy,
    run_virtual,
    small_config,
    small_executor,
    small_options,
)

from swingshift.executors.app.blocking import BlockingController
from swingshift.executors.rl.task import EpisodeRequest
from swingshift.executors.runtime.embedded import EmbeddedController, LoopCounts
from swingshift.executors.runtime.message_queue import WaitOutcome
from swingshift.sdk.errors import CallOrderError
from swingshift.sdk.events import ControllerMoved, ReplicaMoved
from swingshift.sdk.executor import ExecutorError, GenerationRequest, Prompt

CONFIG = small_config()


class ForeignLoop:
    """A training loop that is not ours: its own buffer and requests, fit steps that only sleep."""

    def __init__(self, samples: int) -> None:
        self.left = samples
        self.buffered = 0
        self.generated = 0
        self.cycles = 0
        self.drained = 0
        self.more = asyncio.Event()

    def counts(self) -> LoopCounts:
        is_over = self.left == 0
        return LoopCounts(
            queue_size=self.buffered,
            total_generated_samples=self.generated,
            finished_cycles=self.cycles,
            attainable_samples=self.buffered + self.left,
            ended=WaitOutcome.EXHAUSTED if is_over else None,
        )

    async def collected(self, samples: int) -> None:
        """Return once so many samples are buffered."""
        while self.buffered < samples:
            self.more.clear()
            await self.more.wait()

    async def drain(self) -> None:
        self.drained += 1

    def resume_submission(self) -> None:
        """Nothing was held."""

    async def produce(self, controller: EmbeddedController) -> None:
        """Generate one sample after the other, wherever there is room."""
        number = 0
        while self.left:
            request = EpisodeRequest(f"{number}/0", Prompt(number, 10, str(number)), 0)
            await generate(controller, request)
            number += 1
            self.left -= 1
            self.buffered += 1
            self.generated += 1
            self.more.set()
            controller.notify()


async def generate(controller: EmbeddedController, request: EpisodeRequest) -> None:
    """Generate, and go on elsewhere after an abort."""
    tokens = 0
    handle = None
    while True:
        attempt = GenerationRequest(
            request_id=request.request_id,
            prompt=request.prompt,
            response_index=0,
            max_new_tokens=32_000 - tokens,
            generated_tokens=tokens,
            resume_from=handle,
        )
        answer = await controller.generate(attempt)
        tokens, handle = tokens + answer.new_tokens, answer.handle
        if answer.finish_reason != "abort":
            return


async def train(loop: ForeignLoop, controller: EmbeddedController, cycles: int) -> None:
    """Call the controller at its two places."""
    await controller.at_weight_sync(0)
    for version in range(cycles):
        for _ in range(2):
            await controller.before_fit_step(version)
            await loop.collected(4)
            loop.buffered -= 4
            await asyncio.sleep(5.0)
        loop.cycles += 1
        await controller.at_weight_sync(version + 1)


def test_a_foreign_loop_lends_and_trains() -> None:
    """Two calls a step are all it takes: GPUs are lent at every sync and back before training."""
    sink = ListSink()

    async def main() -> ForeignLoop:
        loop, executor = ForeignLoop(40), small_executor(CONFIG)
        policy = ScriptedPolicy(wait=4)
        async with EmbeddedController(
            CONFIG, executor, policy, loop, event_sinks=[sink]
        ) as controller:
            producer = asyncio.create_task(loop.produce(controller))
            await train(loop, controller, cycles=4)
            producer.cancel()
            await asyncio.gather(producer, return_exceptions=True)
        return loop

    loop = run_virtual(main())
    assert loop.generated >= 32
    moves = [event.after for event in sink.of(ControllerMoved)]
    assert moves.count("hybrid_active") == 5
    assert moves.count("standalone_only") == 4


def test_training_excludes_a_sync_that_catches_up() -> None:
    """A replica that comes back while the loop trains waits until the next call."""
    sink = ListSink()

    async def main() -> list[str]:
        loop, executor = ForeignLoop(8), small_executor(CONFIG)
        async with EmbeddedController(
            CONFIG, executor, ScriptedPolicy(lend=False), loop, event_sinks=[sink]
        ) as controller:
            executor.inject("resume", "standalone-0")
            await controller.at_weight_sync(0)
            await controller.before_fit_step(0)
            await asyncio.sleep(1_000.0)
            during = [event.after for event in sink.of(ReplicaMoved)]
            loop.cycles += 1
            await controller.at_weight_sync(1)
            return during

    during = run_virtual(main())
    assert during[-1] == "stale"
    assert sink.of(ReplicaMoved)[-1].after == "serving"


@pytest.mark.parametrize(("how", "attempts"), [("lose", 1), ("fail", 3)])
def test_a_replica_that_fails_at_its_work_is_restarted(how: Fault, attempts: int) -> None:
    """At the first request that finds it gone, else at the third failure in a row."""
    sink = ListSink()

    async def main() -> tuple[str, ...]:
        executor = small_executor(CONFIG)
        executor.inject("generate", "standalone-0", how, times=attempts)
        async with EmbeddedController(
            CONFIG, executor, ScriptedPolicy(lend=False), ForeignLoop(0), event_sinks=[sink]
        ) as controller:
            await controller.at_weight_sync(0)
            failed = 0
            while failed < attempts:
                request = GenerationRequest(f"{failed}/0", Prompt(failed, 16, "0"), 0, 10)
                try:
                    await controller.generate(request)
                except ExecutorError:
                    failed += 1
            before = controller.balancer.replicas
            await asyncio.sleep(1_000.0)
            assert controller.balancer.replicas == (*before, "standalone-0")
            return before

    assert run_virtual(main()) == ("standalone-1",)
    assert [e.replica for e in sink.of(ReplicaMoved) if e.after == "dead"] == ["standalone-0"]


def test_calls_before_the_start_are_refused() -> None:
    """The message says what to do."""

    async def main() -> None:
        controller = EmbeddedController(
            CONFIG, small_executor(CONFIG), ScriptedPolicy(), ForeignLoop(1)
        )
        with pytest.raises(CallOrderError, match="async with"):
            await controller.at_weight_sync(0)

    run_virtual(main())


def test_a_cancelled_call_is_settled_by_the_next() -> None:
    """A switch that was cut off half-way is undone before anything else happens."""
    sink = ListSink()

    async def main() -> list[str]:
        loop, executor = ForeignLoop(8), small_executor(CONFIG)
        async with EmbeddedController(
            CONFIG, executor, ScriptedPolicy(), loop, event_sinks=[sink]
        ) as controller:
            executor.inject("wake_kv_cache", "*", "hang", times=2)
            call = asyncio.create_task(controller.at_weight_sync(0))
            await asyncio.sleep(60.0)
            call.cancel()
            await asyncio.gather(call, return_exceptions=True)
            await controller.at_weight_sync(0)
            return [event.after for event in sink.of(ControllerMoved)]

    moves = run_virtual(main())
    assert moves == ["activating", "deactivating", "standalone_only", "activating", "hybrid_active"]


def test_a_loop_without_asyncio_calls_the_same_two_places() -> None:
    """The control plane runs on a thread of its own; calls block until they are done."""
    options = attrs.evolve(
        small_options(),
        transfer=attrs.evolve(
            small_options().transfer,
            sync_latency_s=0.0,
            sleep_latency_s=0.0,
            wake_weights_latency_s=0.0,
            wake_kv_cache_latency_s=0.0,
            offload_latency_s=0.0,
        ),
    )
    loop = ForeignLoop(1)

    def make() -> EmbeddedController:
        executor = small_executor(CONFIG, options)
        return EmbeddedController(CONFIG, executor, ScriptedPolicy(wait=0), loop)

    with BlockingController(make) as controller:
        controller.at_weight_sync(0)
        loop.left = 0
        controller.notify()
        wait = controller.before_fit_step(0)
        loop.cycles += 1
        controller.at_weight_sync(1)
        assert controller.controller.inventory is not None
    controller.close()
    assert wait.outcome is WaitOutcome.EXHAUSTED


def test_a_controller_that_cannot_start_leaves_no_thread() -> None:
    """The error of the executor arrives where the controller was made."""

    def make() -> EmbeddedController:
        executor = small_executor(CONFIG)
        executor.inject("start", "*")
        return EmbeddedController(CONFIG, executor, ScriptedPolicy(), ForeignLoop(0))

    with pytest.raises(Exception, match="start"):
        BlockingController(make)

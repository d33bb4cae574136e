"""The simulated executor: its inventory, what its verbs take, and its books of memory."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

import attrs
import pytest
from tests.executors.support import (
    HYBRID,
    MODEL,
    ROLLOUT_GPUS,
    STANDALONE,
    TRAINER_GPUS,
    lengths_of,
    run_virtual,
    small_config,
    small_options,
)

from swingshift.executors.runtime.adapter import ExecutorAdapter
from swingshift.executors.simulated.adapter import SimulatedAdapter
from swingshift.executors.simulated.costs.hardware import H20
from swingshift.executors.simulated.costs.variation import Variation
from swingshift.executors.simulated.executor import SimulatedExecutor, UnsafeCallError
from swingshift.executors.simulated.loop import VirtualLoop
from swingshift.executors.simulated.options import SimulatedOptions
from swingshift.executors.simulated.task import SimulatedTask
from swingshift.sdk.config import RunConfig
from swingshift.sdk.errors import ConfigError
from swingshift.sdk.executor import (
    Capabilities,
    Episode,
    ExecutorError,
    FinishReason,
    FitBatch,
    GenerationRequest,
    Insertion,
    MemoryPart,
    PauseMode,
    Progress,
    Prompt,
    ReplicaKind,
    ReplicaLostError,
    Sample,
    SyncOutcome,
    TrainingPart,
    VersionSpan,
)

GPU_BYTES = int(H20.memory_bytes)
# two data-parallel GPUs: weights and gradients whole on each, optimizer state split
TRAINING_BYTES = int(1e9 * 2 + 1e9 * 4 + 1e9 * 12 / 2)


async def make(
    config: RunConfig | None = None, options: SimulatedOptions | None = None
) -> SimulatedExecutor:
    """Return a started executor of the small world."""
    config, options = config or small_config(), options or small_options()
    executor = SimulatedExecutor(config, options, lengths_of(config, options))
    await executor.start()
    return executor


async def seconds_of(action: Awaitable[object]) -> float:
    """Return how much virtual time an action takes."""
    loop = asyncio.get_running_loop()
    started_s = loop.time()
    await action
    return loop.time() - started_s


def request(position: int = 0) -> GenerationRequest:
    return GenerationRequest(f"{position}/0", Prompt(position, 100, str(position)), 0, 32_000)


def batch(number: int, tokens: int = 8_000) -> FitBatch:
    """Return a batch of one sample with one response."""
    episode = Episode(handle="0/0", tokens=tokens, spans=(VersionSpan(0, tokens),), attempts=1)
    prompt = Prompt(0, 100, "0")
    sample = Sample(sample_id=0, prompt=prompt, episodes=(episode,), rewards=(0.0,))
    return FitBatch(batch_id=number, samples=(sample,))


def test_inventory_follows_the_configuration() -> None:
    """Replicas are cut from the GPUs of each kind of node; training needs its whole state."""

    async def main() -> None:
        config, options = small_config(), small_options()
        inventory = await SimulatedExecutor(config, options, lengths_of(config, options)).start()
        assert inventory.gpus == (*TRAINER_GPUS, *ROLLOUT_GPUS)
        for kind, names, gpus in (
            (ReplicaKind.STANDALONE, STANDALONE, ROLLOUT_GPUS),
            (ReplicaKind.HYBRID, HYBRID, TRAINER_GPUS),
        ):
            replicas = inventory.of_kind(kind)
            assert tuple(replica.id for replica in replicas) == names
            assert tuple(replica.gpus for replica in replicas) == tuple((gpu,) for gpu in gpus)
        assert {gpu.train_required_bytes for gpu in inventory.trainer_gpus} == {TRAINING_BYTES}

    run_virtual(main())


def test_static_configuration_has_no_hybrid_replicas() -> None:
    """With the master switch off the trainer's GPUs only train."""

    async def main() -> tuple[int, int]:
        config, options = small_config(dynamic=False), small_options()
        inventory = await SimulatedExecutor(config, options, lengths_of(config, options)).start()
        return len(inventory.of_kind(ReplicaKind.HYBRID)), len(inventory.trainer_gpus)

    assert run_virtual(main()) == (0, 2)


def test_everything_can_be_modelled() -> None:
    """It keeps requests through a pause, it lends, and its time is virtual."""

    async def main() -> Capabilities:
        return (await make()).capabilities

    assert run_virtual(main()) == Capabilities(pause_keep=True, lend=True, virtual_time=True)


def test_memory_is_free_once_a_replica_sleeps_and_training_is_away() -> None:
    """Free bytes are the GPU's, less the training state that is on it."""

    async def main() -> list[int]:
        executor = await make()
        free = [(await executor.sleep(["hybrid-0"]))["trainer-0"]]
        for part in TrainingPart:
            await executor.offload_training(part)
            free.append((await executor.sleep(["hybrid-0"]))["trainer-0"])
        for part in TrainingPart:
            await executor.reload_training(part)
        free.append((await executor.kill(["hybrid-0"]))["trainer-0"])
        return free

    parameters = 2_000_000_000
    full = GPU_BYTES - TRAINING_BYTES
    assert run_virtual(main()) == [full, GPU_BYTES - parameters, GPU_BYTES, full]


def test_standalone_memory_has_no_training_state() -> None:
    """All of the GPU is free after a sleep, and after a kill."""

    async def main() -> list[dict[str, int]]:
        executor = await make()
        return [
            dict(await executor.sleep(["standalone-0"])),
            dict(await executor.kill(["standalone-1"])),
        ]

    assert run_virtual(main()) == [{"rollout-0": GPU_BYTES}, {"rollout-1": GPU_BYTES}]


def test_offloading_takes_its_bytes_once() -> None:
    """It is idempotent: what is away already takes no time, and so does what is back."""

    async def main() -> list[float]:
        executor = await make()
        part = TrainingPart.PARAMETERS
        verbs = (executor.offload_training, executor.reload_training)
        return [await seconds_of(verb(part)) for verb in verbs for _ in range(2)]

    once_s = 0.4 + 2e9 / (0.4 * H20.host_link_bytes_per_s)
    assert run_virtual(main()) == pytest.approx([once_s, 0.0, once_s, 0.0])


def test_waking_and_sleeping_take_time() -> None:
    """Each part of a replica's memory has its own duration."""

    async def main() -> list[float]:
        executor = await make()
        return [
            await seconds_of(executor.wake(["hybrid-0", "hybrid-1"], MemoryPart.WEIGHTS)),
            await seconds_of(executor.wake(["hybrid-0"], MemoryPart.KV_CACHE)),
            await seconds_of(executor.sleep(["hybrid-0"])),
        ]

    assert run_virtual(main()) == pytest.approx([0.8, 0.8, 1.0])


def test_sync_takes_as_long_as_its_slowest_link() -> None:
    """Over the network to standalone replicas, within the GPU to hybrid ones."""

    async def main() -> list[float]:
        executor = await make()
        groups = (["standalone-0"], ["hybrid-0", "hybrid-1"], ["hybrid-0", "standalone-1"])
        seconds = [await seconds_of(executor.sync_weights(0, group)) for group in groups]
        assert await executor.sync_weights(1, ["hybrid-0"]) == {"hybrid-0": SyncOutcome.SYNCED}
        return seconds

    standalone_s, hybrid_s, both_s = run_virtual(main())
    assert hybrid_s < standalone_s == both_s


def test_variation_changes_durations() -> None:
    """A call for several replicas ends with the slowest of them."""
    noisy = attrs.evolve(small_options(), variation=Variation(noise_sigma=0.5))

    async def main() -> list[float]:
        executor = await make(options=noisy)
        return [await seconds_of(executor.sleep(HYBRID)) for _ in range(20)]

    seconds = run_virtual(main())
    assert len(set(seconds)) == 20
    assert sum(seconds) / 20 > 1.0


def test_generation_is_as_long_as_the_length_model_says() -> None:
    """A response's length is a matter of prompt and index alone; a canary has one token."""

    async def main() -> list[int]:
        executor = await make()
        await executor.sync_weights(0, STANDALONE)
        canary = GenerationRequest("canary", Prompt(-1, 1, "canary"), 0, 8)
        answers = [
            await executor.generate("standalone-0", request(3)),
            await executor.generate("standalone-1", canary),
        ]
        return [answer.new_tokens for answer in answers]

    expected = lengths_of(small_config(), small_options()).lengths(3)[0]
    assert run_virtual(main()) == [expected, 1]


def test_half_awake_replica_refuses() -> None:
    """Weights and KV cache are both needed; after a sleep neither is there."""

    async def main() -> None:
        executor = await make()
        for part in (None, MemoryPart.WEIGHTS):
            if part:
                await executor.wake(["hybrid-0"], part)
            with pytest.raises(ExecutorError, match="is not awake"):
                await executor.generate("hybrid-0", request())
        await executor.sync_weights(0, ["hybrid-0"])
        await executor.wake(["hybrid-0"], MemoryPart.KV_CACHE)
        await executor.resume(["hybrid-0"])
        assert (await executor.generate("hybrid-0", request())).new_tokens > 0
        await executor.sleep(["hybrid-0"])
        with pytest.raises(ExecutorError, match="is not awake"):
            await executor.generate("hybrid-0", request())

    run_virtual(main())


@pytest.mark.parametrize("mode", list(PauseMode))
def test_paused_means_nothing_runs(mode: PauseMode) -> None:
    """Aborted, kept or drained, the engine itself reports what it holds."""

    async def main() -> tuple[Progress, bool]:
        executor = await make()
        await executor.sync_weights(0, STANDALONE)
        task = asyncio.create_task(executor.generate("standalone-0", request()))
        await asyncio.sleep(1.0)
        await executor.pause(["standalone-0"], mode)
        held = executor.progress("standalone-0")
        await asyncio.sleep(0)
        done = task.done()
        await executor.resume(["standalone-0"])
        answer = await task
        assert (answer.finish_reason is FinishReason.ABORT) == (mode is PauseMode.ABORT)
        return held, done

    held, done = run_virtual(main())
    kept = mode is PauseMode.KEEP
    assert (held.running, held.waiting, done) == (int(kept), 0, not kept)


def test_named_requests_are_aborted() -> None:
    """The others go on."""

    async def main() -> list[FinishReason]:
        executor = await make()
        await executor.sync_weights(0, STANDALONE)
        tasks = [
            asyncio.create_task(executor.generate("standalone-0", request(i))) for i in range(2)
        ]
        await asyncio.sleep(1.0)
        await executor.abort("standalone-0", ["1/0", "nobody"])
        return [(await task).finish_reason for task in tasks]

    assert run_virtual(main()) == [FinishReason.STOP, FinishReason.ABORT]


def test_killed_replica_comes_back_without_weights() -> None:
    """Its requests are lost; after a cold start it must be synced before it serves."""

    async def main() -> tuple[float, int]:
        executor = await make()
        await executor.sync_weights(0, STANDALONE)
        task = asyncio.create_task(executor.generate("standalone-0", request()))
        await asyncio.sleep(1.0)
        await executor.kill(["standalone-0"])
        with pytest.raises(ReplicaLostError):
            await task
        cold_start_s = await seconds_of(executor.restart(["standalone-0"]))
        with pytest.raises(ExecutorError, match="sync it first"):
            await executor.generate("standalone-0", request())
        await executor.sync_weights(0, ["standalone-0"])
        return cold_start_s, (await executor.generate("standalone-0", request())).new_tokens

    cold_start_s, tokens = run_virtual(main())
    assert cold_start_s == SimulatedOptions(model=MODEL, gpu=H20).cold_start_s
    assert tokens > 0


def test_a_batch_is_trained_once() -> None:
    """A repeated batch id returns the first result and takes no time, also after other batches."""

    async def main() -> None:
        executor = await make()
        took_s = await seconds_of(executor.fit_step(batch(0)))
        first = await executor.fit_step(batch(0))
        assert took_s == pytest.approx(sum(first.timing_s.values()))
        assert await seconds_of(executor.fit_step(batch(0, tokens=32_000))) == 0.0
        assert await seconds_of(executor.fit_step(batch(1, tokens=32_000))) > took_s
        assert await seconds_of(executor.fit_step(batch(0))) == 0.0
        await executor.discard(["0/0"])

    run_virtual(main())


def test_observations_are_trained_through() -> None:
    """Nobody is trained on them, but the trainer computes on them as on any other context."""

    async def main(number: int, generated: int, observed: int) -> dict[str, float]:
        made = batch(number, tokens=generated)
        [sample] = made.samples
        [episode] = sample.episodes
        episode = attrs.evolve(episode, insertions=(Insertion(10, observed),))
        samples = (attrs.evolve(sample, episodes=(episode,)),)
        result = await (await make()).fit_step(attrs.evolve(made, samples=samples))
        return dict(result.timing_s)

    assert run_virtual(main(0, 6_000, 2_000)) == run_virtual(main(0, 8_000, 0))


def test_reference_model_and_critic_are_timed_by_their_keys() -> None:
    """What is not modelled has no key or takes no time."""

    async def main(options: SimulatedOptions) -> set[str]:
        result = await (await make(options=options)).fit_step(batch(0))
        return {key for key, seconds in result.timing_s.items() if seconds > 0.0}

    plain = run_virtual(main(small_options()))
    full = run_virtual(main(attrs.evolve(small_options(), reference_model=True, critic=True)))

    assert {"old_log_prob", "update_actor"} <= plain
    assert full - plain == {"ref", "values", "update_critic"}


def test_stopping_ends_the_stream_of_events_and_every_request() -> None:
    """Nothing is left waiting; stopping again is harmless."""

    async def main() -> None:
        executor = await make()
        await executor.sync_weights(0, STANDALONE)

        async def listen() -> list[object]:
            return [event async for event in executor.events()]

        events = asyncio.create_task(listen())
        task = asyncio.create_task(executor.generate("standalone-0", request()))
        await asyncio.sleep(1.0)
        await executor.stop()
        await executor.stop()
        assert await events == []
        with pytest.raises(ReplicaLostError):
            await task

    run_virtual(main())


@pytest.mark.parametrize("part", MemoryPart)
def test_training_beside_a_replica_that_holds_memory_is_a_fault(part: MemoryPart) -> None:
    """From the moment it begins to wake, or to restart, until it has slept or was killed."""

    async def main() -> None:
        executor = await make()
        for begin, end in (
            (executor.wake([HYBRID[0]], part), executor.sleep),
            (executor.restart([HYBRID[0]]), executor.kill),
        ):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.1):
                    await begin
            with pytest.raises(UnsafeCallError, match="hybrid-0 may hold some"):
                await executor.fit_step(batch(0))
            await end([HYBRID[0]])
        await executor.fit_step(batch(0))

    run_virtual(main())


@pytest.mark.parametrize("part", TrainingPart)
def test_training_without_its_state_is_a_fault(part: TrainingPart) -> None:
    """Whatever part of it is away."""

    async def main() -> None:
        executor = await make()
        await executor.offload_training(part)
        with pytest.raises(UnsafeCallError, match=f"while {part.value} are offloaded"):
            await executor.fit_step(batch(0))
        await executor.reload_training(part)
        await executor.fit_step(batch(0))

    run_virtual(main())


def test_sending_parameters_that_are_away_is_a_fault() -> None:
    """The optimizer state may be away."""

    async def main() -> None:
        executor = await make()
        await executor.offload_training(TrainingPart.OPTIMIZER_AND_GRADIENTS)
        await executor.sync_weights(0, STANDALONE)
        await executor.offload_training(TrainingPart.PARAMETERS)
        with pytest.raises(UnsafeCallError, match="version 1 was to be sent"):
            await executor.sync_weights(1, STANDALONE)

    run_virtual(main())


def test_verbs_find_a_killed_replica_gone() -> None:
    """Until it is restarted; a sync reaches the others."""

    async def main() -> None:
        executor = await make()
        gone, other = STANDALONE
        await executor.kill([gone])
        for verb in (
            executor.pause([gone], PauseMode.KEEP),
            executor.resume([gone]),
            executor.wake([gone], MemoryPart.WEIGHTS),
            executor.sleep([gone]),
        ):
            with pytest.raises(ReplicaLostError, match="is gone; restart it first"):
                await verb
        outcomes = await executor.sync_weights(0, STANDALONE)
        assert outcomes == {gone: SyncOutcome.FAILED, other: SyncOutcome.SYNCED}
        await executor.restart([gone])
        await executor.resume([gone])

    run_virtual(main())


def test_adapter_builds_executor_task_and_loop() -> None:
    """The entry point makes what a run needs, and refuses options of another adapter."""
    adapter = SimulatedAdapter()
    config = small_config(prompts=7)

    async def main() -> None:
        executor, task = adapter.build(config, small_options())
        assert isinstance(executor, SimulatedExecutor)
        assert isinstance(task, SimulatedTask)
        assert len(task) == 7
        prompt = task.prompt(3)
        assert (prompt.position, prompt.handle) == (3, "3")
        assert prompt.tokens == lengths_of(config, small_options()).prompt_tokens(3)
        episode = batch(0).samples[0].episodes[0]
        assert await task.score(prompt, [episode, episode]) == (0.0, 0.0)
        with pytest.raises(ConfigError, match="takes SimulatedOptions; got dict"):
            adapter.build(config, {})

    run_virtual(main())
    assert adapter.options_type is SimulatedOptions
    assert adapter.loop_factory() is VirtualLoop
    entry: ExecutorAdapter = adapter
    assert entry is adapter

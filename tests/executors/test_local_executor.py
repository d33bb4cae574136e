"""The local executor beyond its contract: what is left behind, what is measured, what is equal."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tests.executors.local_runs import (
    TINY_MODEL,
    build_local,
    is_running,
    local_config,
    run_local,
    started,
    until,
)

from swingshift.executors.local.executor import LocalExecutor
from swingshift.executors.local.memory import resident_bytes
from swingshift.executors.local.models import build_model
from swingshift.executors.local.store import PayloadStore
from swingshift.executors.rl.options import ModelOptions
from swingshift.executors.rl.text_task import TextTask
from swingshift.sdk.errors import ConfigError
from swingshift.sdk.executor import (
    Episode,
    ExecutorError,
    FinishReason,
    FitBatch,
    Generation,
    GenerationRequest,
    MemoryPart,
    PauseMode,
    Prompt,
    ReplicaLostError,
    Sample,
    SyncOutcome,
    TrainingPart,
)

STANDALONE, OTHER, HYBRID = "standalone-0", "standalone-1", "hybrid-0"
LONG = ("data.max_response_length=512", "executor.ignore_eos=true")
LARGE_MODEL = {
    **TINY_MODEL,
    "hidden_size": 512,
    "intermediate_size": 2048,
    "num_hidden_layers": 3,
}
"""Some 50 MiB of weights."""


def request(
    task: TextTask, name: str = "r", *, max_new_tokens: int = 400, resume_from: str | None = None
) -> GenerationRequest:
    return GenerationRequest(name, task.prompt(0), 0, max_new_tokens, resume_from=resume_from)


async def lend(executor: LocalExecutor, version: int = 0) -> None:
    """Take the hybrid replica into service."""
    await executor.offload_training(TrainingPart.OPTIMIZER_AND_GRADIENTS)
    await executor.wake([HYBRID], MemoryPart.WEIGHTS)
    await executor.sync_weights(version, [HYBRID])
    await executor.offload_training(TrainingPart.PARAMETERS)
    await executor.wake([HYBRID], MemoryPart.KV_CACHE)
    await executor.resume([HYBRID])


async def give_back(executor: LocalExecutor) -> None:
    await executor.pause([HYBRID], PauseMode.ABORT)
    await executor.sleep([HYBRID])
    for part in TrainingPart:
        await executor.reload_training(part)


async def part_of(executor: LocalExecutor, replica: str, wanted: GenerationRequest) -> Generation:
    """Return what a request came to that was aborted under way."""
    answer = asyncio.create_task(executor.generate(replica, wanted))
    # it runs once it has its first token
    await until(lambda: executor.progress(replica).running > 0)
    await executor.abort(replica, [wanted.request_id])
    part = await answer
    assert part.finish_reason is FinishReason.ABORT
    assert 0 < part.new_tokens < wanted.max_new_tokens
    return part


async def batch_of(executor: LocalExecutor, task: TextTask, batch_id: int) -> FitBatch:
    """Return a batch of one sample of two responses, with different rewards."""
    answers = await asyncio.gather(
        *(
            executor.generate(STANDALONE, request(task, f"{batch_id}/{i}", max_new_tokens=6))
            for i in range(2)
        )
    )
    episodes = tuple(
        Episode(handle=answer.handle, tokens=answer.new_tokens, spans=answer.spans, attempts=1)
        for answer in answers
    )
    sample = Sample(
        sample_id=batch_id, prompt=task.prompt(0), episodes=episodes, rewards=(0.0, 1.0)
    )
    return FitBatch(batch_id=batch_id, samples=(sample,))


def payloads(executor: LocalExecutor) -> list[str]:
    return sorted(path.stem for path in executor._scratch.payloads.iterdir())


def test_nothing_of_a_run_is_left_when_it_has_stopped() -> None:
    """No process, no directory, no capacity event to come; requests under way are lost."""

    async def main() -> None:
        executor, task = build_local(local_config(*LONG))
        inventory = await executor.start()
        listening = asyncio.create_task(_listen(executor))
        assert [replica.id for replica in inventory.replicas] == [STANDALONE, HYBRID]
        pids = executor.pids()
        assert sorted(pids) == [HYBRID, STANDALONE, "trainer-0"]
        await executor.sync_weights(0, [STANDALONE])
        answer = asyncio.create_task(executor.generate(STANDALONE, request(task)))
        await until(lambda: executor.progress(STANDALONE).running == 1)
        for _ in range(2):
            await executor.stop()
            assert not any(map(is_running, pids.values()))
            assert not executor._scratch.path.exists()
            assert executor.pids() == {}
        with pytest.raises(ReplicaLostError):
            await answer
        assert await listening == []

    run_local(main())


async def _listen(executor: LocalExecutor) -> list[str]:
    return [event.subject async for event in executor.events()]


def test_two_runs_one_after_the_other_in_one_process() -> None:
    """Each has a loop and processes of its own."""

    async def main() -> str:
        async with started(local_config()) as (executor, task):
            await executor.sync_weights(0, [STANDALONE])
            await executor.generate(STANDALONE, request(task, max_new_tokens=2))
            return executor._scratch.path.name

    assert run_local(main()) != run_local(main())


def test_a_model_that_cannot_be_built_is_one_line_about_the_configuration() -> None:
    """The start raises it, and what had started by then is gone after the stop."""
    model = {**TINY_MODEL, "num_attention_heads": "many"}

    async def main() -> None:
        executor, _ = build_local(local_config(model=model))
        with pytest.raises(ConfigError, match=r"executor\.model.*num_attention_heads") as raised:
            await executor.start()
        assert "\n" not in str(raised.value)
        pids = executor.pids()
        await executor.stop()
        assert not any(map(is_running, pids.values()))
        assert not executor._scratch.path.exists()

    run_local(main())


def test_a_start_that_is_cancelled_leaves_nothing() -> None:
    """Stop ends what it had begun."""

    async def main() -> None:
        executor, _ = build_local(local_config())
        start = asyncio.create_task(executor.start())
        await until(lambda: len(executor.pids()) == 3)
        pids = executor.pids()
        start.cancel()
        with pytest.raises(asyncio.CancelledError):
            await start
        await executor.stop()
        assert not any(map(is_running, pids.values()))

    run_local(main())


def test_nothing_is_restarted_after_the_stop() -> None:
    """Neither later, nor by a restart that was under way."""

    async def main() -> None:
        executor, _ = build_local(local_config())
        await executor.start()
        restart = asyncio.create_task(executor.restart([STANDALONE]))
        await asyncio.sleep(0)
        await executor.stop()
        with pytest.raises(ExecutorError):
            await restart
        with pytest.raises(ExecutorError, match="has been stopped"):
            await executor.restart([STANDALONE])
        assert executor.pids() == {}

    run_local(main())


@pytest.mark.parametrize("way", ["kill", "cancel"])
def test_a_restart_under_way_can_be_ended(way: str) -> None:
    """By a kill or a cancellation; the next one succeeds, and one process is left."""

    async def main() -> None:
        async with started(local_config()) as (executor, task):
            old = executor.pids()[STANDALONE]
            restart = asyncio.create_task(executor.restart([STANDALONE]))
            await until(lambda: executor.pids().get(STANDALONE, old) != old)
            half_way = executor.pids()[STANDALONE]
            if way == "cancel":
                restart.cancel()
            await executor.kill([STANDALONE])
            (outcome,) = await asyncio.gather(restart, return_exceptions=True)
            # None where it was ready by then
            assert outcome is None or isinstance(outcome, ReplicaLostError | asyncio.CancelledError)
            await executor.restart([STANDALONE])
            await executor.sync_weights(0, [STANDALONE])
            await executor.generate(STANDALONE, request(task, max_new_tokens=2))
            assert not is_running(old)
            assert not is_running(half_way)

    run_local(main())


@pytest.mark.slow
def test_hybrid_sleep_gives_the_memory_of_the_weights_back() -> None:
    """The resident memory of the process falls by at least their size, each time."""

    async def main() -> None:
        config = local_config(*LONG, model=LARGE_MODEL)
        async with started(config) as (executor, task):
            pid, trainer = executor.pids()[HYBRID], executor.pids()["trainer-0"]
            training = resident_bytes(trainer)
            for version in range(2):
                await lend(executor, version)
                weights = _weight_bytes(executor, version)
                assert weights > 40 * 2**20
                assert training - resident_bytes(trainer) > 2 * weights
                await part_of(executor, HYBRID, request(task))
                awake = resident_bytes(pid)
                await give_back(executor)
                assert awake - resident_bytes(pid) >= weights
                assert abs(resident_bytes(trainer) - training) < weights

    run_local(main())


def _weight_bytes(executor: LocalExecutor, version: int) -> int:
    return sum(tensor.nbytes for tensor in load_file(executor._scratch.weights(version)).values())


def test_after_a_sync_weights_are_byte_equal() -> None:
    """Every replica's to the trainer's; a fit step makes them differ until the next sync."""

    async def main() -> None:
        async with started(local_config("rollout.n_gpus_per_node=2")) as (executor, task):
            standalone = [STANDALONE, OTHER]
            for version in range(2):
                outcomes = await executor.sync_weights(version, standalone)
                assert set(outcomes.values()) == {SyncOutcome.SYNCED}
                await lend(executor, version)
                replicas = [await executor.look_at_replica(it) for it in (*standalone, HYBRID)]
                await give_back(executor)
                trainer = await executor.look_at_trainer()
                assert {it["digest"] for it in replicas} == {trainer["digest"]}
                assert {it["version"] for it in replicas} == {version}
                await executor.fit_step(await batch_of(executor, task, version))
                trained = await executor.look_at_trainer()
                assert trained["digest"] != trainer["digest"]
            await executor.restart([STANDALONE])
            await executor.sync_weights(2, [STANDALONE])
            trainer = await executor.look_at_trainer()
            assert (await executor.look_at_replica(STANDALONE))["digest"] == trainer["digest"]

    run_local(main())


def test_log_probs_of_a_resumed_response_are_those_of_the_model() -> None:
    """Interrupted on one replica, ended on another: the payload is what a plain forward says."""

    async def main() -> None:
        async with started(local_config("rollout.n_gpus_per_node=2", *LONG)) as (executor, task):
            await executor.sync_weights(0, [STANDALONE, OTHER])
            first = request(task, max_new_tokens=200)
            part = await part_of(executor, STANDALONE, first)
            rest = first._replace(
                max_new_tokens=200 - part.new_tokens,
                generated_tokens=part.new_tokens,
                resume_from=part.handle,
            )
            whole = await executor.generate(OTHER, rest)
            assert part.new_tokens + whole.new_tokens == 200
            assert payloads(executor) == [whole.handle]
            records = executor._store.read(whole.handle)
            expected = _plain_log_probs(executor, task, records["token"].tolist())
            assert len(records) == 200
            assert np.abs(records["log_prob"] - expected).max() < 1e-5

    run_local(main())


@torch.no_grad()
def _plain_log_probs(
    executor: LocalExecutor, task: TextTask, tokens: Sequence[int]
) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    options = ModelOptions(config=dict(TINY_MODEL))
    vocabulary = task.tokenizer.vocab_size
    model = build_model(options, vocab_size=vocabulary, seed=1, device=torch.device("cpu"))
    model.load_state_dict(load_file(executor._scratch.weights(0)), strict=False)
    model.tie_weights()
    prompt = task.prompt_tokens(task.prompt(0).handle)
    logits = model(input_ids=torch.tensor([[*prompt, *tokens]])).logits[0, len(prompt) - 1 : -1]
    drawn = logits.log_softmax(-1).gather(-1, torch.tensor(tokens)[:, None])
    found: np.ndarray[tuple[int], np.dtype[np.float32]] = drawn[:, 0].numpy()
    return found


def test_payloads_outlive_the_process_that_wrote_them() -> None:
    """A replica that was restarted writes others, and does not write over them."""

    async def main() -> None:
        async with started(local_config()) as (executor, task):
            written = {}
            for _ in range(3):
                await executor.sync_weights(0, [STANDALONE])
                answer = await executor.generate(STANDALONE, request(task, max_new_tokens=5))
                written[answer.handle] = executor._store.response_tokens(answer.handle)
                await executor.restart([STANDALONE])
            assert len(written) == 3
            for handle, tokens in written.items():
                assert executor._store.response_tokens(handle) == tokens

    run_local(main())


def test_a_cancelled_request_leaves_no_payload() -> None:
    """Neither one that was under way, nor one whose answer had been written and not read."""

    async def main() -> None:
        async with started(local_config(*LONG)) as (executor, task):
            await executor.sync_weights(0, [STANDALONE])
            for budget in (400, 1):
                wanted = request(task, max_new_tokens=budget)
                answer = asyncio.create_task(executor.generate(STANDALONE, wanted))
                await asyncio.sleep(0)
                if budget == 1:
                    _block_until(lambda: bool(payloads(executor)))
                answer.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await answer
                await executor.look_at_replica(STANDALONE)
                assert payloads(executor) == []
                assert executor._calls == {}

    run_local(main())


def _block_until(condition: Callable[[], bool]) -> None:
    """Wait without letting the loop read what comes meanwhile."""
    while not condition():
        time.sleep(0.002)
    time.sleep(0.05)


def test_payloads_that_a_request_left_behind_are_freed() -> None:
    """By its next attempt, resumed or begun anew, and by a discard; a canary leaves none."""

    async def main() -> None:
        async with started(local_config(*LONG)) as (executor, task):
            await executor.sync_weights(0, [STANDALONE])
            canary = GenerationRequest("canary", Prompt(-1, 1, "canary"), 0, 1)
            await executor.generate(STANDALONE, canary)
            assert payloads(executor) == []
            await part_of(executor, STANDALONE, request(task))
            anew = await part_of(executor, STANDALONE, request(task))
            assert payloads(executor) == [anew.handle]
            resumed = request(task, max_new_tokens=3, resume_from=anew.handle)
            whole = await executor.generate(STANDALONE, resumed)
            assert payloads(executor) == [whole.handle]
            given_up = await part_of(executor, STANDALONE, request(task, "given up"))
            await executor.discard([given_up.handle, whole.handle])
            assert payloads(executor) == []
            assert executor._aborted == {}

    run_local(main())


def test_no_two_processes_draw_alike() -> None:
    """Two replicas, or one before and after a restart, answer one prompt differently."""

    async def main() -> None:
        async with started(local_config("rollout.n_gpus_per_node=2", *LONG)) as (executor, task):
            drawn = []
            for replica in (STANDALONE, OTHER, STANDALONE):
                await executor.sync_weights(0, [replica])
                answer = await executor.generate(replica, request(task, max_new_tokens=60))
                drawn.append(tuple(executor._store.response_tokens(answer.handle)))
                await executor.restart([replica])
            assert len(set(drawn)) == 3

    run_local(main())


@pytest.mark.parametrize("mode", [None, PauseMode.KEEP, PauseMode.ABORT])
def test_a_drain_that_was_overtaken_does_not_pause_later(mode: PauseMode | None) -> None:
    """Whoever resumes, or pauses in another way, has the last word."""

    async def main() -> None:
        async with started(local_config(*LONG)) as (executor, task):
            await executor.sync_weights(0, [STANDALONE])
            running = asyncio.create_task(executor.generate(STANDALONE, request(task)))
            await until(lambda: executor.progress(STANDALONE).running == 1)
            drain = asyncio.create_task(executor.pause([STANDALONE], PauseMode.DRAIN))
            await asyncio.sleep(0)
            if mode is not None:
                await executor.pause([STANDALONE], mode)
            await executor.resume([STANDALONE])
            with pytest.raises(ExecutorError, match="the drain was overtaken"):
                await drain
            await running
            await executor.generate(STANDALONE, request(task, max_new_tokens=2))

    run_local(main())


def test_weights_that_are_not_there_fail_one_replica() -> None:
    """The outcome says so; what it held before it still has."""

    async def main() -> None:
        async with started(local_config("rollout.n_gpus_per_node=2")) as (executor, task):
            await executor.sync_weights(0, [STANDALONE])
            executor._scratch.weights(0).unlink()
            outcomes = await executor.sync_weights(0, [STANDALONE, OTHER])
            assert set(outcomes.values()) == {SyncOutcome.FAILED}
            await executor.generate(STANDALONE, request(task, max_new_tokens=2))
            with pytest.raises(ExecutorError, match="has had no weight sync"):
                await executor.generate(OTHER, request(task, max_new_tokens=2))
            outcomes = await executor.sync_weights(1, [STANDALONE, OTHER])
            assert set(outcomes.values()) == {SyncOutcome.SYNCED}

    run_local(main())


def test_one_version_of_the_weights_lies_in_memory() -> None:
    """A sync removes what the last one sent, also where that was cancelled."""

    async def main() -> None:
        async with started(local_config()) as (executor, _):
            for version in range(3):
                sync = asyncio.create_task(executor.sync_weights(version, [STANDALONE]))
                await asyncio.sleep(0)
                sync.cancel()
                await asyncio.gather(sync, return_exceptions=True)
                await executor.sync_weights(version, [STANDALONE])
            left = [path.name for path in executor._scratch.path.glob("weights*")]
            assert left == ["weights-2.safetensors"]

    run_local(main())


def test_a_replica_that_dies_by_itself_is_reported_once() -> None:
    """One that is killed on demand is not."""

    async def main() -> None:
        async with started(local_config()) as (executor, _):
            events = executor.events()
            await executor.kill([HYBRID])
            os.kill(executor.pids()[STANDALONE], signal.SIGKILL)
            assert (await anext(events)).subject == STANDALONE
            await executor.restart([STANDALONE, HYBRID])
            assert executor._events.empty()
            assert sorted(executor.pids()) == [HYBRID, STANDALONE, "trainer-0"]

    run_local(main())


def test_a_model_is_saved_while_its_devices_are_lent(tmp_path: Path) -> None:
    """What is offloaded comes back for it, and the hybrid replica sleeps."""

    async def main() -> None:
        async with started(local_config()) as (executor, _):
            await lend(executor)
            await executor.save(tmp_path / "model")
            assert list((tmp_path / "model").rglob("*.safetensors"))
            assert (await executor.look_at_replica(HYBRID))["version"] is None

    run_local(main())


def test_payloads_are_read_by_whoever_knows_the_directory() -> None:
    """The task decodes what the executor's processes wrote."""

    async def main() -> None:
        async with started(local_config()) as (executor, task):
            await executor.sync_weights(0, [STANDALONE])
            answer = await executor.generate(STANDALONE, request(task, max_new_tokens=4))
            read = PayloadStore(executor._scratch.payloads).response_tokens(answer.handle)
            assert len(read) == answer.new_tokens
            assert executor.payload_tokens(answer.handle) == answer.new_tokens

    run_local(main())

"""Promises about weights, and about replicas that were lost and come back."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from swingshift.sdk.executor import (
    ExecutorError,
    MemoryPart,
    PauseMode,
    ReplicaLostError,
    SyncOutcome,
    TrainingPart,
)
from swingshift.sdk.testing.executor_checks.memory import (
    expect_every_gpu,
    expect_measured,
    expect_room,
)
from swingshift.sdk.testing.executor_checks.pausing import need_keep
from swingshift.sdk.testing.executor_checks.promise import BrokenPromise, Group, expect
from swingshift.sdk.testing.executor_checks.sets import expect_spared
from swingshift.sdk.testing.executor_checks.stage import Stage

WEIGHTS = Group("weights")
KILL = Group("kill")
RESTART = Group("restart")
CANCELLED = Group("cancelled")


@WEIGHTS.promise("a sync says of every replica of the call, and of no other, what came of it")
async def _outcome_each(stage: Stage) -> None:
    replicas = await stage.two_with_memory()
    for version in (0, 1, 1):
        outcomes = await stage.sync(version, replicas)
        expect(
            outcomes == dict.fromkeys(replicas, SyncOutcome.SYNCED),
            f"a sync of {', '.join(replicas)} came to {outcomes}",
        )


@WEIGHTS.promise("tokens generated after a sync carry its version")
async def _reach_spans(stage: Stage) -> None:
    replica = await stage.serving()
    await stage.answers(replica, version=0)
    await stage.executor.pause([replica], PauseMode.ABORT)
    await stage.sync(1, [replica])
    await stage.executor.resume([replica])
    await stage.answers(replica, version=1)


@WEIGHTS.promise("a response that is kept through a sync has the tokens of each version apart")
async def _split_spans(stage: Stage) -> None:
    need_keep(stage)
    replica = await stage.serving()
    (flight,) = await stage.under_way(replica)
    await stage.executor.pause([replica], PauseMode.KEEP)
    await stage.sync(1, [replica])
    await stage.executor.resume([replica])
    answer = await flight.answer
    versions = [span.version for span in answer.spans]
    expect(
        versions == [0, 1],
        f"begun under version 0 and ended under version 1, a response has the spans {answer.spans}",
    )


@WEIGHTS.promise("a replica that is reported as synced holds that version, and others keep theirs")
async def _held(stage: Stage) -> None:
    one, other = await stage.two_with_memory()
    await stage.sync(0, [one, other])
    await stage.sync(1, [one])
    await _expect_held(stage, {one: 1, other: 0})
    await stage.sync(2, [one, other])
    await _expect_held(stage, {one: 2, other: 2})


@WEIGHTS.promise("of a killed replica a sync says FAILED, and does not raise")
async def _outcome_of_lost(stage: Stage) -> None:
    lost, other = await stage.two_with_memory()
    await stage.executor.kill([lost])
    outcome = (await stage.sync(0, [lost, other])).get(lost)
    expect(
        outcome is SyncOutcome.FAILED,
        f"{lost} was killed before a sync of {lost}, {other}, and its outcome is {outcome}",
    )


@WEIGHTS.promise("a sync spares replicas that are not named", "spares_others")
async def _sync_spares_others(stage: Stage) -> None:
    named, other = await stage.several_serving(2)
    await expect_spared(stage, other, lambda: stage.sync(1, [named]))


@KILL.promise("every request of a killed replica raises ReplicaLostError")
async def _loses_requests(stage: Stage) -> None:
    replica = await stage.serving()
    flights = await stage.under_way(replica, 2)
    await stage.executor.kill([replica])
    for flight in flights:
        try:
            answer = await flight.answer
        except ReplicaLostError:
            continue
        raise BrokenPromise(f"{flight.request.request_id} was lost and came to {answer}")


@KILL.promise("a request to a killed replica raises ReplicaLostError")
async def _refuses_requests(stage: Stage) -> None:
    replica = await stage.serving()
    await stage.executor.kill([replica])
    try:
        answer = await stage.executor.generate(replica, stage.request())
    except ReplicaLostError:
        return
    except ExecutorError as error:
        raise BrokenPromise(f"{replica} is killed, and raises {error!r}") from error
    raise BrokenPromise(f"{replica} is killed, and answers with {answer}")


@KILL.promise("a replica may be killed twice, and asleep")
async def _idempotent(stage: Stage) -> None:
    replica = await stage.serving()
    await stage.executor.kill([replica])
    await stage.executor.kill([replica])
    for sleeper in await stage.sleepers():
        await stage.executor.kill([sleeper])


@KILL.promise("reports free bytes for every GPU of the replicas, and for no other")
async def _reports_every_gpu(stage: Stage) -> None:
    replicas = list(await stage.two_with_memory())
    expect_every_gpu(stage, "kill", replicas, dict(await stage.executor.kill(replicas)))


@KILL.promise("the bytes that it reports as free are free")
async def _measures(stage: Stage) -> None:
    for replica in await stage.one_of_each_kind():
        await expect_measured(stage, "kill", dict(await stage.executor.kill([replica])))


@KILL.promise("a hybrid replica that was killed leaves what training needs, as one asleep does")
async def _leaves_room(stage: Stage) -> None:
    (replica,) = await stage.asleep()
    await stage.lend([replica])
    await expect_room(stage, "killed", dict(await stage.executor.kill([replica])))


@KILL.promise("ends every replica that is named", "reaches_all")
async def _kill_reaches_all(stage: Stage) -> None:
    replicas = await stage.several_serving(2)
    await stage.executor.kill(replicas)
    for replica in replicas:
        await stage.refuses(replica, f"was killed with {', '.join(replicas)}")


@KILL.promise("spares replicas that are not named", "spares_others")
async def _kill_spares_others(stage: Stage) -> None:
    named, other = await stage.several_serving(2)
    await expect_spared(stage, other, lambda: stage.executor.kill([named]))


@RESTART.promise("a restarted replica refuses requests until its next weight sync, and then serves")
async def _needs_sync(stage: Stage) -> None:
    replica = await stage.serving()
    await stage.executor.kill([replica])
    await stage.executor.restart([replica])
    await stage.refuses(replica, "was restarted, not synced,")
    await stage.sync(0, [replica])
    await stage.answers(replica, version=0)


@RESTART.promise("brings back every replica that is named", "reaches_all")
async def _restart_reaches_all(stage: Stage) -> None:
    replicas = await stage.several_serving(2)
    for replica in replicas:
        await stage.executor.kill([replica])
    await stage.executor.restart(replicas)
    await stage.sync(0, replicas)
    for replica in replicas:
        await stage.answers(replica, version=0)


@RESTART.promise("spares replicas that are not named", "spares_others")
async def _restart_spares_others(stage: Stage) -> None:
    named, other = await stage.several_serving(2)
    await stage.executor.kill([named])
    await expect_spared(stage, other, lambda: stage.executor.restart([named]))


@CANCELLED.promise("a replica whose verb was cancelled can be killed and restarted")
async def _recovers(stage: Stage) -> None:
    replica = await stage.serving()
    executor, names = stage.executor, [replica]
    verbs: list[Callable[[], Awaitable[object]]] = [
        lambda: executor.sync_weights(1, names),
        lambda: executor.pause(names, PauseMode.DRAIN),
        lambda: executor.pause(names, PauseMode.ABORT),
        lambda: executor.resume(names),
        lambda: executor.restart(names),
    ]
    for verb in verbs:
        await stage.under_way(replica)
        await _cancel(stage, verb())
        await stage.revive(replica)
        await stage.answers(replica, version=0)


@CANCELLED.promise("a replica whose switch was cancelled can be killed and restarted")
async def _recovers_switch(stage: Stage) -> None:
    (replica,) = await stage.asleep()
    executor, names = stage.executor, [replica]
    verbs: list[Callable[[], Awaitable[object]]] = [
        lambda: executor.wake(names, MemoryPart.WEIGHTS),
        lambda: executor.wake(names, MemoryPart.KV_CACHE),
        lambda: executor.sleep(names),
    ]
    await executor.offload_training(TrainingPart.OPTIMIZER_AND_GRADIENTS)
    for verb in verbs:
        await _cancel(stage, verb())
        await stage.revive(replica)
        await stage.answers(replica, version=0)
        await stage.pause_and_sleep(names)


async def _cancel(stage: Stage, verb: Awaitable[object]) -> None:
    """Cancel a verb at its first await point; whatever it says to that is allowed."""

    async def call() -> None:
        await verb

    task = asyncio.create_task(call())
    stage.watch(task)
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def _expect_held(stage: Stage, expected: dict[str, int]) -> None:
    held = {replica: await stage.see.weight_version(replica) for replica in expected}
    expect(held == expected, f"the replicas should hold the versions {expected}, and hold {held}")

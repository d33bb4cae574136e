"""Promises about the memory of replicas and of the trainer."""

from __future__ import annotations

from swingshift.sdk.executor import MemoryPart, PauseMode, TrainingPart
from swingshift.sdk.testing.executor_checks.promise import Group, expect
from swingshift.sdk.testing.executor_checks.sets import expect_spared
from swingshift.sdk.testing.executor_checks.stage import Stage

MEMORY = Group("memory")
TRAINING = Group("training")

_LOANS = 5


@MEMORY.promise("woken in the order weights, sync, KV cache, resume, a replica serves")
async def _wake_serves(stage: Stage) -> None:
    (replica,) = await stage.asleep()
    await stage.lend([replica])
    await stage.answers(replica, version=0)


@MEMORY.promise("a part that is awake may be woken again")
async def _wake_idempotent(stage: Stage) -> None:
    (replica,) = await stage.asleep()
    await stage.lend([replica])
    for part in MemoryPart:
        await stage.executor.wake([replica], part)
    await stage.answers(replica, version=0)


@MEMORY.promise("wake reaches every replica that is named")
async def _wake_reaches_all(stage: Stage) -> None:
    replicas, executor = await stage.asleep(2), stage.executor
    await executor.offload_training(TrainingPart.OPTIMIZER_AND_GRADIENTS)
    await executor.wake(replicas, MemoryPart.WEIGHTS)
    await stage.sync(0, replicas)
    await executor.offload_training(TrainingPart.PARAMETERS)
    await executor.wake(replicas, MemoryPart.KV_CACHE)
    for replica in replicas:
        await executor.resume([replica])
        await stage.answers(replica, version=0)


@MEMORY.promise("wake leaves replicas that are not named asleep")
async def _wake_spares_others(stage: Stage) -> None:
    named, other = await stage.asleep(2)
    # once synced, a replica refuses because it is asleep, and for no other reason
    await stage.lend([named, other])
    for replica in (named, other):
        await stage.pause_and_sleep([replica])
    await stage.lend([named])
    await stage.refuses(other, f"is asleep, unlike {named},")


@MEMORY.promise("sleep reports free bytes for every GPU of the replicas, and for no other")
async def _sleep_reports_every_gpu(stage: Stage) -> None:
    await stage.asleep()
    replicas = list(await stage.sleepers())
    await stage.lend(replicas)
    free_bytes = await stage.pause_and_sleep(replicas)
    expect_every_gpu(stage, "sleep", replicas, free_bytes)


@MEMORY.promise("asleep, a replica leaves what training needs once the trainer is offloaded")
async def _sleep_leaves_room(stage: Stage) -> None:
    (replica,) = await stage.asleep()
    await stage.lend([replica])
    await expect_room(stage, "asleep", await stage.pause_and_sleep([replica]))


@MEMORY.promise("a replica that sleeps may be put to sleep again, and wakes as before")
async def _sleep_idempotent(stage: Stage) -> None:
    (replica,) = await stage.asleep()
    await stage.executor.sleep([replica])
    await stage.lend([replica])
    await stage.pause_and_sleep([replica])
    await stage.executor.sleep([replica])
    await stage.lend([replica])
    await stage.answers(replica, version=0)


@MEMORY.promise("a replica of which only the weights woke may be put to sleep")
async def _sleep_after_partial_wake(stage: Stage) -> None:
    (replica,) = await stage.asleep()
    await stage.executor.offload_training(TrainingPart.OPTIMIZER_AND_GRADIENTS)
    for _ in range(2):
        await stage.executor.wake([replica], MemoryPart.WEIGHTS)
        await stage.executor.sleep([replica])


@MEMORY.promise("sleep reaches every replica that is named")
async def _sleep_reaches_all(stage: Stage) -> None:
    replicas = await stage.asleep(2)
    await stage.lend(replicas)
    for replica in replicas:
        await stage.executor.pause([replica], PauseMode.ABORT)
    await stage.executor.sleep(replicas)
    for replica in replicas:
        await stage.refuses(replica, f"was put to sleep with {', '.join(replicas)}")


@MEMORY.promise("sleep spares replicas that are not named")
async def _sleep_spares_others(stage: Stage) -> None:
    named, other = await stage.asleep(2)
    await stage.lend([named, other])
    await stage.executor.pause([named, other], PauseMode.ABORT)
    await stage.executor.resume([other])
    await expect_spared(stage, other, lambda: stage.executor.sleep([named]))


@MEMORY.promise("a replica is lent again and again, and leaves as much memory every time")
async def _lent_again(stage: Stage) -> None:
    (replica,) = await stage.asleep()
    seen: list[dict[str, int]] = []
    for _ in range(_LOANS):
        await stage.lend([replica])
        seen.append(await stage.pause_and_sleep([replica]))
        await stage.reload_training()
    for gpu, first in seen[0].items():
        free = [free_bytes.get(gpu, 0) for free_bytes in seen]
        expect(
            min(free) >= first - stage.memory_tolerance_bytes,
            f"each time {replica} was lent and slept again, {gpu} had these bytes free: {free}",
        )
    await stage.lend([replica])
    await stage.answers(replica, version=0)


@MEMORY.promise("the bytes that sleep reports as free are free")
async def _sleep_measures(stage: Stage) -> None:
    (replica,) = await stage.asleep()
    await stage.lend([replica])
    await expect_measured(stage, "sleep", await stage.pause_and_sleep([replica]))


@MEMORY.promise("a replica that is asleep refuses requests")
async def _sleeper_refuses(stage: Stage) -> None:
    (replica,) = await stage.asleep()
    await stage.refuses(replica, "is asleep")


@TRAINING.promise("each part may be offloaded twice, and reloaded twice or without an offload")
async def _idempotent(stage: Stage) -> None:
    await stage.asleep()
    executor = stage.executor
    for part in TrainingPart:
        await executor.reload_training(part)
    for verb in (executor.offload_training, executor.reload_training):
        for part in TrainingPart:
            await verb(part)
            await verb(part)


@TRAINING.promise("each part frees memory of every trainer GPU, and takes it back when reloaded")
async def _offload_frees(stage: Stage) -> None:
    await stage.asleep()
    gpus, free = list(await _required(stage)), stage.see.free_bytes
    begin = last = {gpu: await free(gpu) for gpu in gpus}
    for part in TrainingPart:
        await stage.executor.offload_training(part)
        now = {gpu: await free(gpu) for gpu in gpus}
        for gpu in gpus:
            expect(
                now[gpu] > last[gpu],
                f"{gpu} has {last[gpu]} bytes free before the offload of {part.name}, and"
                f" {now[gpu]} after it",
            )
        last = now
    for part in TrainingPart:
        await stage.executor.reload_training(part)
    for gpu in gpus:
        after = await free(gpu)
        expect(
            abs(after - begin[gpu]) <= stage.memory_tolerance_bytes,
            f"{gpu} has {begin[gpu]} bytes free before any offload and {after} after the reloads",
        )


def expect_every_gpu(
    stage: Stage, verb: str, replicas: list[str], free_bytes: dict[str, int]
) -> None:
    """Expect a measurement of every GPU of some replicas, and of no other.

    Raises:
        BrokenPromise: One is missing, or one too many.
    """
    gpus = stage.gpus_of(replicas)
    expect(
        free_bytes.keys() == gpus,
        f"{verb} of {', '.join(replicas)} reports {sorted(free_bytes)}; they run on {sorted(gpus)}",
    )


async def expect_measured(stage: Stage, verb: str, free_bytes: dict[str, int]) -> None:
    """Expect that what a verb reports as free is free.

    Raises:
        BrokenPromise: It is not.
    """
    for gpu, reported in free_bytes.items():
        free = await stage.see.free_bytes(gpu)
        expect(
            reported <= free + stage.memory_tolerance_bytes,
            f"{verb} reports {reported} bytes free on {gpu}; {free} are",
        )


async def expect_room(stage: Stage, state: str, free_bytes: dict[str, int]) -> None:
    """Expect that training has room on the GPUs of a replica.

    Args:
        stage: Where; the trainer is offloaded.
        state: What became of the replica.
        free_bytes: What was reported then.

    Raises:
        BrokenPromise: It has not.
    """
    required = await _required(stage)
    for gpu, free in free_bytes.items():
        needed = required.get(gpu, 0)
        expect(
            free >= needed,
            f"{state}, and with the trainer offloaded, {gpu} has {free} bytes free; training needs"
            f" {needed}",
        )


async def _required(stage: Stage) -> dict[str, int]:
    return {gpu.id: gpu.train_required_bytes for gpu in (await stage.start()).trainer_gpus}

"""Promises about the memory of replicas and of the trainer."""

from __future__ import annotations

from swingshift.sdk.executor import MemoryPart, TrainingPart
from swingshift.sdk.testing.executor_checks.promise import Group, expect
from swingshift.sdk.testing.executor_checks.stage import Stage

MEMORY = Group("memory")
TRAINING = Group("training")


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
    _expect_room(stage, await stage.pause_and_sleep([replica]), await _required(stage))


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


@TRAINING.promise("offloading frees memory of every trainer GPU, and reloading takes it back")
async def _offload_frees(stage: Stage) -> None:
    await stage.asleep()
    gpus = list(await _required(stage))
    before = {gpu: await stage.see.free_bytes(gpu) for gpu in gpus}
    await stage.offload_training()
    without = {gpu: await stage.see.free_bytes(gpu) for gpu in gpus}
    await stage.reload_training()
    for gpu in gpus:
        after = await stage.see.free_bytes(gpu)
        expect(
            without[gpu] > before[gpu],
            f"{gpu} has {before[gpu]} bytes free before the offload and {without[gpu]} after it",
        )
        expect(
            abs(after - before[gpu]) <= stage.memory_tolerance_bytes,
            f"{gpu} has {before[gpu]} bytes free before the offload and {after} after the reload",
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


async def _required(stage: Stage) -> dict[str, int]:
    return {gpu.id: gpu.train_required_bytes for gpu in (await stage.start()).trainer_gpus}


def _expect_room(stage: Stage, free_bytes: dict[str, int], required: dict[str, int]) -> None:
    for gpu, free in free_bytes.items():
        needed = required.get(gpu, 0)
        expect(
            free >= needed,
            f"asleep, and with the trainer offloaded, {gpu} has {free} bytes free; training needs"
            f" {needed}",
        )

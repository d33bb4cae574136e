"""Promises about the start and the end of an executor."""

from __future__ import annotations

import asyncio
from collections import Counter

from swingshift.sdk.executor import CapacityEvent, ReplicaKind
from swingshift.sdk.testing.executor_checks.promise import Group, expect
from swingshift.sdk.testing.executor_checks.stage import Stage

START = Group("start")
EVENTS = Group("events")
STOP = Group("stop")


@START.promise("the inventory has unique names, and hybrid replicas run on the trainer's GPUs")
async def _inventory(stage: Stage) -> None:
    inventory = await stage.start()
    expect(bool(inventory.replicas), "the inventory has no replica")
    trainer = [gpu.id for gpu in inventory.trainer_gpus]
    for kind in ReplicaKind:
        gpus = [gpu for replica in inventory.of_kind(kind) for gpu in replica.gpus]
        _expect_unique(f"the GPUs of {kind.value} replicas", gpus)
        on_trainer = set(gpus) & set(trainer)
        expected = set(gpus) if kind is ReplicaKind.HYBRID else set[str]()
        expect(
            on_trainer == expected,
            f"{kind.value} replicas run on {sorted(gpus)}, and the trainer on {sorted(trainer)}",
        )
    _expect_unique("the names of replicas", [replica.id for replica in inventory.replicas])
    _expect_unique("the names of trainer GPUs", trainer)
    for gpu in inventory.trainer_gpus:
        expect(
            gpu.train_required_bytes > 0,
            f"training needs {gpu.train_required_bytes} bytes on {gpu.id}; allowed: 1 or more",
        )


@START.promise("the capabilities are what they were before it")
async def _keeps_capabilities(stage: Stage) -> None:
    before = stage.executor.capabilities
    await stage.start()
    after = stage.executor.capabilities
    expect(before == after, f"before the start they are {before}, and after it {after}")


@START.promise("a standalone replica refuses requests before its first weight sync")
async def _needs_sync(stage: Stage) -> None:
    (replica,) = await stage.standalone()
    await stage.refuses(replica, "was never synced")


@EVENTS.promise("the stream ends with stop()")
async def _end_at_stop(stage: Stage) -> None:
    await stage.start()
    stream = stage.executor.events()

    async def listen() -> list[CapacityEvent]:
        return [event async for event in stream]

    listener = asyncio.create_task(listen())
    stage.watch(listener)
    await stage.moment()
    await stage.executor.stop()
    expect(
        await stage.until(listener.done),
        f"the stream goes on {stage.deadline_s:g} s after stop() returned",
    )
    await listener


@STOP.promise("ends every request that is under way")
async def _ends_requests(stage: Stage) -> None:
    flights = await stage.under_way(await stage.serving(), 2)
    await stage.executor.stop()
    await stage.moment()
    for flight in flights:
        expect(
            flight.answer.done(),
            f"a moment after stop() returned {flight.request.request_id} is still under way",
        )


@STOP.promise("may be called twice")
async def _idempotent(stage: Stage) -> None:
    await stage.start()
    await stage.executor.stop()
    await stage.executor.stop()


@STOP.promise("may be called after a start that did not come to its end")
async def _after_failed_start(stage: Stage) -> None:
    starting = asyncio.create_task(stage.executor.start())
    stage.watch(starting)
    starting.cancel()
    await asyncio.gather(starting, return_exceptions=True)
    await stage.executor.stop()


def _expect_unique(what: str, names: list[str]) -> None:
    again = sorted(name for name, times in Counter(names).items() if times > 1)
    expect(not again, f"{what} are not unique: {', '.join(again)}")

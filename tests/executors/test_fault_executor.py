"""Each kind of fault does to a call what its name says, and nothing to the others."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import attrs
import pytest
from tests.executors.support import (
    run_virtual,
    sample,
    small_config,
    small_executor,
)

from swingshift.executors.simulated.executor import SimulatedExecutor, UnsafeCallError
from swingshift.executors.simulated.faults import Fault, FaultKind, FaultPlan, Loss, Verb
from swingshift.executors.simulated.faulty import FaultyExecutor
from swingshift.sdk.executor import (
    CapacityChange,
    CapacityEvent,
    ExecutorError,
    FitBatch,
    GenerationRequest,
    MemoryPart,
    PauseMode,
    Prompt,
    ReplicaLostError,
    SyncOutcome,
    TrainingPart,
)

S0, S1, H0 = "standalone-0", "standalone-1", "hybrid-0"
BATCH = FitBatch(batch_id=1, samples=(sample(1),))


def answered(executor: FaultyExecutor, replica: str, position: int) -> Awaitable[object]:
    """Ask a replica for one token."""
    return executor.generate(
        replica, GenerationRequest(f"{position}/0", Prompt(position, 1, "0"), 0, 1)
    )


CALLS: dict[Verb, Callable[[FaultyExecutor], Awaitable[object]]] = {
    Verb.START: lambda e: e.start(),
    Verb.STOP: lambda e: e.stop(),
    Verb.GENERATE: lambda e: answered(e, S0, 0),
    Verb.CANARY: lambda e: answered(e, S0, -1),
    Verb.ABORT: lambda e: e.abort(S0, ["0/0"]),
    Verb.PAUSE: lambda e: e.pause([S0], PauseMode.KEEP),
    Verb.RESUME: lambda e: e.resume([S0]),
    Verb.WAKE_WEIGHTS: lambda e: e.wake([H0], MemoryPart.WEIGHTS),
    Verb.WAKE_KV_CACHE: lambda e: e.wake([H0], MemoryPart.KV_CACHE),
    Verb.SLEEP: lambda e: e.sleep([H0]),
    Verb.OFFLOAD_OPTIMIZER_AND_GRADIENTS: lambda e: e.offload_training(
        TrainingPart.OPTIMIZER_AND_GRADIENTS
    ),
    Verb.OFFLOAD_PARAMETERS: lambda e: e.offload_training(TrainingPart.PARAMETERS),
    Verb.RELOAD_OPTIMIZER_AND_GRADIENTS: lambda e: e.reload_training(
        TrainingPart.OPTIMIZER_AND_GRADIENTS
    ),
    Verb.RELOAD_PARAMETERS: lambda e: e.reload_training(TrainingPart.PARAMETERS),
    Verb.SYNC_WEIGHTS: lambda e: e.sync_weights(0, [S0, S1]),
    Verb.KILL: lambda e: e.kill([S0]),
    Verb.RESTART: lambda e: e.restart([S0]),
    Verb.FIT_STEP: lambda e: e.fit_step(BATCH),
    Verb.DISCARD: lambda e: e.discard(["0/0"]),
}


def under(
    plan: FaultPlan, work: Callable[[FaultyExecutor, SimulatedExecutor], Awaitable[None]]
) -> None:
    """Do something with a started executor whose standalone replicas have weights."""

    async def main() -> None:
        inner = small_executor(small_config())
        executor = FaultyExecutor(inner, plan)
        await executor.start()
        await inner.sync_weights(0, [S0, S1])
        try:
            await work(executor, inner)
        finally:
            await executor.stop()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    run_virtual(main())


def one(verb: Verb, kind: FaultKind, **more: object) -> FaultPlan:
    """Return a plan of one fault."""
    return FaultPlan(script=(Fault(verb=verb, kind=kind, **more),))  # type: ignore[arg-type]


def late_start(plan: FaultPlan) -> FaultPlan:
    """Return a plan whose faults of the start are meant for the second one."""
    moved = (attrs.evolve(f, call=f.call + (f.verb is Verb.START)) for f in plan.script)
    return attrs.evolve(plan, script=tuple(moved))


async def seconds(work: Awaitable[object]) -> float:
    """Return how long something takes."""
    begun_s = asyncio.get_running_loop().time()
    await work
    return asyncio.get_running_loop().time() - begun_s


@pytest.mark.parametrize("verb", Verb)
def test_every_verb_can_fail_once(verb: Verb) -> None:
    """The next call works; the fault is kept for whoever asks."""
    plan = late_start(one(verb, FaultKind.FAIL))

    async def work(executor: FaultyExecutor, _: SimulatedExecutor) -> None:
        with pytest.raises(ExecutorError, match=f"{verb.value} failed by plan"):
            await CALLS[verb](executor)
        await CALLS[verb](executor)
        assert executor.struck == list(plan.script)
        assert executor.calls[verb, None] == 2 + (verb is Verb.START)

    under(plan, work)


@pytest.mark.parametrize("verb", Verb)
def test_every_verb_can_hang(verb: Verb) -> None:
    """Until it is cancelled."""

    async def work(executor: FaultyExecutor, _: SimulatedExecutor) -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1e6):
                await CALLS[verb](executor)

    under(late_start(one(verb, FaultKind.HANG)), work)


@pytest.mark.parametrize("kind", [FaultKind.SLOW, FaultKind.LATE])
def test_slow_and_late_take_as_long(kind: FaultKind) -> None:
    """What the call takes, and so many seconds more."""

    async def work(executor: FaultyExecutor, _: SimulatedExecutor) -> None:
        struck = await seconds(executor.sleep([H0]))
        assert struck == pytest.approx(30.0 + await seconds(executor.sleep([H0])))

    under(one(Verb.SLEEP, kind, seconds=30.0), work)


@pytest.mark.parametrize(("kind", "awake"), [(FaultKind.SLOW, 0), (FaultKind.LATE, 1)])
def test_what_is_late_has_its_effect_though_nobody_waits(kind: FaultKind, awake: int) -> None:
    """Unlike what is slow."""

    async def work(executor: FaultyExecutor, inner: SimulatedExecutor) -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(10.0):
                await executor.wake([H0], MemoryPart.WEIGHTS)
        assert len(inner._awake[H0]) == awake

    under(one(Verb.WAKE_WEIGHTS, kind, seconds=30.0), work)


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_zombie_does_its_work_after_it_was_cancelled(is_killed: bool) -> None:
    """Unless its replica was killed meanwhile."""

    async def work(executor: FaultyExecutor, inner: SimulatedExecutor) -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(10.0):
                await executor.wake([H0], MemoryPart.WEIGHTS)
        if is_killed:
            await executor.kill([H0])
            await executor.restart([H0])
            await executor.sleep([H0])
        await asyncio.sleep(100.0)
        assert len(inner._awake[H0]) == (not is_killed)

    under(one(Verb.WAKE_WEIGHTS, FaultKind.ZOMBIE, seconds=30.0), work)


def test_a_zombie_whose_replica_dies_says_so() -> None:
    """To whoever still waits for it; one whose replica lives only takes longer."""

    async def work(executor: FaultyExecutor, _: SimulatedExecutor) -> None:
        call = asyncio.ensure_future(executor.sync_weights(1, [S0, S1]))
        await asyncio.sleep(10.0)
        await executor.kill([S1])
        with pytest.raises(ReplicaLostError, match="sync_weights ended with its replica"):
            await call
        struck = await seconds(executor.sync_weights(1, [S0]))
        assert struck == pytest.approx(30.0 + await seconds(executor.sync_weights(1, [S0])))

    under(one(Verb.SYNC_WEIGHTS, FaultKind.ZOMBIE, seconds=30.0, times=2), work)


@pytest.mark.parametrize("verb", [Verb.SLEEP, Verb.KILL])
def test_memory_can_be_reported_free_that_is_not(verb: Verb) -> None:
    """The replica keeps it: training fails there, and so does a reload, until it has let go."""

    async def work(executor: FaultyExecutor, _: SimulatedExecutor) -> None:
        (gpu,) = (gpu for gpu in (await executor.start()).trainer_gpus if gpu.id == "trainer-0")
        await executor.offload_training(TrainingPart.PARAMETERS)
        await executor.wake([H0], MemoryPart.WEIGHTS)
        call = executor.sleep if verb is Verb.SLEEP else executor.kill
        assert await call([H0]) == {"trainer-0": gpu.train_required_bytes}
        with pytest.raises(ExecutorError, match="no room for parameters: hybrid-0 did not let go"):
            await executor.reload_training(TrainingPart.PARAMETERS)
        with pytest.raises(UnsafeCallError, match="hybrid-0 may hold some"):
            await executor.fit_step(BATCH)
        await call([H0])
        await executor.reload_training(TrainingPart.PARAMETERS)
        await executor.fit_step(BATCH)

    under(one(verb, FaultKind.FALSE_MEMORY), work)


@pytest.mark.parametrize("verb", [Verb.SLEEP, Verb.KILL])
def test_memory_can_be_reported_short(verb: Verb) -> None:
    """It is there all the same, as the next measurement shows."""

    async def work(executor: FaultyExecutor, _: SimulatedExecutor) -> None:
        call = executor.sleep if verb is Verb.SLEEP else executor.kill
        assert set((await call([H0])).values()) == {0}
        assert min((await call([H0])).values()) > 0

    under(one(verb, FaultKind.SHORT_MEMORY), work)


@pytest.mark.parametrize(("replica", "missed"), [(None, S0), (S1, S1)])
def test_a_sync_can_miss_one_replica(replica: str | None, missed: str) -> None:
    """Which does not get the weights; the others do."""

    async def work(executor: FaultyExecutor, _: SimulatedExecutor) -> None:
        outcomes = await executor.sync_weights(1, [S0, S1])
        assert list(outcomes) == [S0, S1]
        assert [name for name in outcomes if outcomes[name] is SyncOutcome.FAILED] == [missed]

    under(one(Verb.SYNC_WEIGHTS, FaultKind.PARTIAL, replica=replica), work)


def test_a_replica_can_die_in_a_call_for_it() -> None:
    """The call says so, the others find it gone, and the executor reports it in its time."""

    async def work(executor: FaultyExecutor, _: SimulatedExecutor) -> None:
        with pytest.raises(ReplicaLostError, match="standalone-0 died during pause, by plan"):
            await executor.pause([S0], PauseMode.KEEP)
        with pytest.raises(ReplicaLostError):
            await executor.resume([S0])
        assert await seconds(anext(executor.events())) == pytest.approx(7.0)

    under(one(Verb.PAUSE, FaultKind.DIE, seconds=7.0), work)


def test_a_replica_can_die_in_a_call_of_the_trainer() -> None:
    """Which goes on."""

    async def work(executor: FaultyExecutor, _: SimulatedExecutor) -> None:
        await executor.fit_step(BATCH)
        event = await anext(executor.events())
        assert event == CapacityEvent(CapacityChange.REPLICA_LOST, S1)

    under(one(Verb.FIT_STEP, FaultKind.DIE, replica=S1), work)


def test_a_fault_strikes_the_calls_it_is_meant_for() -> None:
    """From the second call for one replica on, twice."""

    async def struck(executor: FaultyExecutor, replica: str) -> bool:
        try:
            await executor.resume([replica])
        except ExecutorError:
            return True
        return False

    async def work(executor: FaultyExecutor, _: SimulatedExecutor) -> None:
        found = [(name, await struck(executor, name)) for name in (S0, S1) * 4]
        assert [name for name, was_struck in found if was_struck] == [S1, S1]
        assert [was_struck for name, was_struck in found if name == S1] == [0, 1, 1, 0]

    under(one(Verb.RESUME, FaultKind.FAIL, call=2, times=2, replica=S1), work)


def test_a_lost_replica_is_gone_and_reported() -> None:
    """And reported again when it can be had."""
    plan = FaultPlan(losses=(Loss(subject=S0, at_s=5.0, back_after_s=10.0),))

    async def work(executor: FaultyExecutor, _: SimulatedExecutor) -> None:
        events = executor.events()
        assert await anext(events) == CapacityEvent(CapacityChange.REPLICA_LOST, S0)
        with pytest.raises(ReplicaLostError):
            await executor.resume([S0])
        assert await seconds(anext(events)) == pytest.approx(10.0)
        await executor.restart([S0])
        await executor.resume([S0])

    under(plan, work)


def test_nothing_starts_and_nothing_trains_on_a_lost_gpu() -> None:
    """Until it is back; what ran on it is gone."""
    plan = FaultPlan(losses=(Loss(subject="trainer-0", at_s=5.0, back_after_s=10.0),))

    async def work(executor: FaultyExecutor, _: SimulatedExecutor) -> None:
        events = executor.events()
        assert await anext(events) == CapacityEvent(CapacityChange.GPU_LOST, "trainer-0")
        for refused in (
            executor.restart([H0]),
            executor.wake([H0], MemoryPart.WEIGHTS),
            executor.fit_step(BATCH),
            executor.sync_weights(1, [S0]),
            executor.offload_training(TrainingPart.PARAMETERS),
        ):
            with pytest.raises(ExecutorError):
                await refused
        assert await anext(events) == CapacityEvent(CapacityChange.GPU_RETURNED, "trainer-0")
        await executor.restart([H0])
        await executor.kill([H0])
        await executor.fit_step(BATCH)

    under(plan, work)


def test_a_gpu_lost_during_a_fit_step_ends_it() -> None:
    """The step was not done."""
    plan = FaultPlan(losses=(Loss(subject="trainer-0", at_s=1.0),))

    async def work(executor: FaultyExecutor, _: SimulatedExecutor) -> None:
        with pytest.raises(ExecutorError, match="the trainer cannot act: trainer-0 lost"):
            await executor.fit_step(BATCH)

    under(plan, work)

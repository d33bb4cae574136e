"""Cancellation at any await point: of a whole run, and of the two calls of a training loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import attrs
import pytest
from tests.executors.controlplane import Plane, lent, plane
from tests.executors.faultcases import Strike
from tests.executors.faultworld import (
    HYBRID_ALONE,
    LENDING,
    NIGHTLY,
    ONE_VERSION,
    VALIDATING,
    Alarm,
    CountingLoop,
    Witness,
    World,
    run_counted,
)
from tests.executors.support import HYBRID, ScriptedPolicy, sample, small_config

from swingshift.executors.runtime.run import TrainingRun
from swingshift.executors.simulated.faults import FaultPlan, Verb
from swingshift.executors.simulated.faulty import FaultyExecutor
from swingshift.sdk.executor import FitBatch
from swingshift.sdk.lifecycle import ControllerState, ReplicaState
from swingshift.sdk.policy import Rebalance

pytestmark = pytest.mark.slow

STRIDE = 1 if NIGHTLY else 11
"""Of a run's callbacks, how many apart it is cancelled; of a single call's, every one."""
# replicas are killed, restarted and synced again meanwhile
TROUBLE = Strike(verb=Verb.RESTART, kind="fail").faults(LENDING)


def cancelled(world: World, plan: FaultPlan, callbacks: int) -> list[str] | None:
    """Cancel a run after so many callbacks and say what is wrong then; None if it ended before."""
    alarm = Alarm()

    async def main(loop: CountingLoop) -> list[str] | None:
        witness = Witness(world)
        run = TrainingRun(
            world.config,
            FaultyExecutor(witness, plan),
            world.task(),
            world.policy(),
            event_sinks=[alarm],
        )
        task = asyncio.create_task(run.run())
        loop.count, loop.at, loop.then = 0, callbacks, task.cancel
        await asyncio.gather(task, return_exceptions=True)
        if not task.cancelled():
            return None
        await asyncio.sleep(0)
        problems = [str(violation) for violation in alarm.checker.violations()]
        left = asyncio.all_tasks() - {asyncio.current_task()}
        problems += [f"left behind: {left}"] if left else []
        return problems if witness.is_stopped else [*problems, "the executor was not released"]

    return run_counted(main)


@pytest.mark.parametrize(
    ("world", "plan"),
    [
        (LENDING, FaultPlan()),
        (HYBRID_ALONE, FaultPlan()),
        (ONE_VERSION, FaultPlan()),
        (VALIDATING, FaultPlan()),
        (LENDING, FaultPlan(script=TROUBLE)),
    ],
    ids=["lending", "hybrid-alone", "one-version", "validating", "in-trouble"],
)
def test_a_run_can_be_cancelled_anywhere(world: World, plan: FaultPlan) -> None:
    """The executor is released, no task is left, and the log keeps every promise up to its end."""
    callbacks = 1
    while (problems := cancelled(world, plan, callbacks)) is not None:
        assert problems == [], f"cancelled after {callbacks} callbacks"
        callbacks += STRIDE
    assert callbacks > 100


@attrs.frozen(kw_only=True)
class Call:
    """One of the two calls of a training loop, and how to get there.

    Attributes:
        prepare: Brings the plane to the point before the call.
        make: Makes the call; the same again after it was cancelled.
        version: Of the weights in the cycle that it opens; None for a call before a fit step.
    """

    prepare: Callable[[Plane], Awaitable[object]]
    make: Callable[[Plane], Awaitable[object]]
    version: int | None = None


async def _trained_once(p: Plane) -> None:
    await lent(p)
    await p.controller.before_fit_step(0)


CALLS = {
    "before_fit_step": Call(prepare=lent, make=lambda p: p.controller.before_fit_step(0)),
    "first sync": Call(
        prepare=lambda p: asyncio.sleep(0),
        make=lambda p: p.controller.at_weight_sync(0),
        version=0,
    ),
    "later sync": Call(
        prepare=_trained_once, make=lambda p: p.controller.at_weight_sync(1), version=1
    ),
}


async def called_again(
    loop: CountingLoop, call: Call, callbacks: int, *, rollout_nodes: int, partial_rollout: bool
) -> Plane | None:
    """Cancel a call after so many callbacks and make it again; None if it ended before."""
    policy = ScriptedPolicy(rebalance=Rebalance())
    config = small_config(rollout_nodes=rollout_nodes)
    p = await plane(config, policy=policy, partial_rollout=partial_rollout)
    await call.prepare(p)
    held = await p.occupy("a", "b", "c") if p.fleet.serving() else []
    if not partial_rollout:
        # something to drain, for a while
        p.workload.in_flight = 1
        loop.call_later(3.0, p.workload.finish_episodes)
    task = asyncio.ensure_future(call.make(p))
    loop.count, loop.at, loop.then = 0, callbacks, task.cancel
    await asyncio.gather(task, return_exceptions=True)
    loop.then = None
    was_cancelled = task.cancelled()
    if was_cancelled:
        await call.make(p)
        if call.version is not None:
            p.controller.end_cycle(call.version)
            p.workload.put(5)
            await p.controller.before_fit_step(call.version)
        async with p.controller.training():
            await p.executor.fit_step(FitBatch(batch_id=9, samples=(sample(9),)))
    for request in held:
        request.cancel()
    await asyncio.gather(*held, return_exceptions=True)
    return p if was_cancelled else None


@pytest.mark.parametrize("partial_rollout", [True, False])
@pytest.mark.parametrize("rollout_nodes", [0, 1])
@pytest.mark.parametrize("name", CALLS)
def test_a_call_that_was_cancelled_is_settled_by_the_next(
    name: str, rollout_nodes: int, partial_rollout: bool
) -> None:
    """GPUs that were on their way are with the trainer, free, and it can train on them."""
    callbacks = 1
    while True:

        async def main(loop: CountingLoop, after: int = callbacks) -> Plane | None:
            return await called_again(
                loop,
                CALLS[name],
                after,
                rollout_nodes=rollout_nodes,
                partial_rollout=partial_rollout,
            )

        p = run_counted(main)
        if p is None:
            break
        assert p.controller.state is ControllerState.STANDALONE_ONLY, callbacks
        states = {p.fleet.status(replica).state for replica in HYBRID}
        assert states <= {ReplicaState.ASLEEP, ReplicaState.DEAD}, callbacks
        assert p.workload.log.count("drain") <= p.workload.log.count("resume"), callbacks
        callbacks += 1
    assert callbacks > 10

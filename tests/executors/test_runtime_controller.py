"""The controller: lending and returning step by step, and the waits and requests in between."""

from __future__ import annotations

import asyncio

import pytest
from tests.executors.controlplane import Plane, gpu_states, lent, opened, plane
from tests.executors.support import HYBRID, STANDALONE, TRAINER_GPUS, ScriptedPolicy, run_virtual

from swingshift.executors.runtime.harvest import LentWait
from swingshift.executors.runtime.message_queue import WaitOutcome
from swingshift.sdk.events import (
    Advisory,
    LentWaitEnded,
    Rebalanced,
)
from swingshift.sdk.lifecycle import ControllerState, ReplicaState
from swingshift.sdk.policy import Rebalance, RebalanceScope

EXCESS = Rebalance(scope=RebalanceScope.EXCESS)
ALL = Rebalance(scope=RebalanceScope.ALL)

ACTIVATION = [
    "controller activating",
    "activate: offload_optimizer_and_gradients",
    "hybrid-0 waking",
    "hybrid-1 waking",
    "activate: wake_weights hybrid-0",
    "activate: wake_weights hybrid-1",
    "hybrid-0 stale",
    "hybrid-1 stale",
    "hybrid-0 stale",
    "hybrid-1 stale",
    "sync hybrid 0",
    "activate: offload_parameters",
    "activate: wake_kv_cache hybrid-0",
    "activate: wake_kv_cache hybrid-1",
    "activate: resume hybrid-0",
    "activate: resume hybrid-1",
    "activate: canary hybrid-0",
    "activate: canary hybrid-1",
    "hybrid-0 serving",
    "hybrid-0 in",
    "hybrid-1 serving",
    "hybrid-1 in",
    "controller hybrid_active",
]
DEACTIVATION = [
    "controller deactivating",
    "hybrid-0 out",
    "hybrid-0 draining",
    "hybrid-1 out",
    "hybrid-1 draining",
    "deactivate: abort hybrid-0",
    "deactivate: abort hybrid-1",
    "hybrid-0 sleeping",
    "hybrid-1 sleeping",
    "deactivate: sleep hybrid-0",
    "deactivate: sleep hybrid-1",
    "measured trainer-0,trainer-1",
    "hybrid-0 asleep",
    "hybrid-1 asleep",
    "deactivate: reload_parameters",
    "deactivate: reload_optimizer_and_gradients",
    "controller standalone_only",
]


def test_standalone_replicas_are_synced_admitted_and_kept_at_every_version() -> None:
    """At first stale ones answer a canary; later serving ones only pause for the weights."""

    async def main() -> tuple[Plane, int]:
        p = await opened(await plane(policy=ScriptedPolicy(lend=False)))
        await p.controller.before_fit_step(0)
        mark = p.mark()
        assert await p.controller.at_weight_sync(1) > 0.0
        return p, mark

    p, mark = run_virtual(main())
    assert p.story()[: p.story().index("standalone-1 in") + 1] == [
        "standalone-0 stale",
        "standalone-1 stale",
        "sync standalone 0",
        "sync: resume standalone-0",
        "sync: resume standalone-1",
        "sync: canary standalone-0",
        "sync: canary standalone-1",
        "standalone-0 serving",
        "standalone-0 in",
        "standalone-1 serving",
        "standalone-1 in",
    ]
    assert p.story(mark) == [
        "sync: pause standalone-0",
        "sync: pause standalone-1",
        "standalone-0 serving",
        "standalone-1 serving",
        "sync standalone 1",
        "sync: resume standalone-0",
        "sync: resume standalone-1",
    ]
    assert not p.controller.is_hybrid_active


def test_activation_takes_its_steps_in_order() -> None:
    """Offload, wake, sync, offload, wake, resume, canary, and only then into routing."""

    async def main() -> Plane:
        return await opened(await plane())

    p = run_virtual(main())
    story = p.story()
    assert story[story.index("controller activating") :] == ACTIVATION
    assert gpu_states(p.sink) == dict.fromkeys(
        ("rollout-0", "rollout-1", *TRAINER_GPUS), "rollout_idle"
    )


def test_deactivation_takes_its_steps_in_order() -> None:
    """Out of routing first, memory measured before training state comes back."""

    async def main() -> tuple[Plane, int]:
        p = await lent(await plane())
        mark = p.mark()
        assert await p.controller.before_fit_step(0) == LentWait()
        return p, mark

    p, mark = run_virtual(main())
    assert p.story(mark) == DEACTIVATION
    assert {gpu: gpu_states(p.sink)[gpu] for gpu in TRAINER_GPUS} == dict.fromkeys(
        TRAINER_GPUS, "train_wait"
    )
    assert p.workload.log == ["resume"]


def test_the_policy_learns_the_durations_of_its_switches() -> None:
    """Both are summed over the cycle, and zero again once the policy has learned from them."""

    async def main() -> Plane:
        p = await lent(await plane())
        await p.controller.before_fit_step(0)
        await opened(p)
        return p

    first, second = (ctx for _, ctx in run_virtual(main()).policy.learned)
    assert first.last_activate_duration_s > 0.0
    assert first.last_deactivate_duration_s == 0.0
    assert second.last_activate_duration_s == pytest.approx(first.last_activate_duration_s)
    assert second.last_deactivate_duration_s > 0.0


def test_without_a_policy_nothing_is_lent() -> None:
    """The same loop runs where dynamic scheduling is off."""

    async def main() -> Plane:
        p = await opened(await plane(guarded=False))
        assert await p.controller.before_fit_step(0) == LentWait()
        return p

    p = run_virtual(main())
    assert p.controller.state is ControllerState.STANDALONE_ONLY
    assert p.fleet.serving() == STANDALONE


def test_a_fit_step_with_nothing_lent_does_not_wait() -> None:
    """The policy is asked all the same, as its contract says."""

    async def main() -> Plane:
        p = await opened(await plane(policy=ScriptedPolicy(lend=False)))
        assert await p.controller.before_fit_step(0) == LentWait()
        return p

    p = run_virtual(main())
    assert not p.sink.of(LentWaitEnded)


def test_lent_gpus_come_back_when_enough_is_buffered() -> None:
    """The wait ends at the sample that completes it, and is counted while GPUs are lent."""

    async def main() -> tuple[LentWait, Plane]:
        p = await opened(await plane(policy=ScriptedPolicy(wait=3)))
        for delay_s in (10.0, 20.0, 30.0, 40.0):
            asyncio.get_running_loop().call_later(delay_s, p.workload.put)
        return await p.controller.before_fit_step(0), p

    wait, p = run_virtual(main())
    assert wait.outcome is WaitOutcome.REACHED
    assert wait.wait_s == pytest.approx(30.0)
    assert p.sink.of(LentWaitEnded) == [LentWaitEnded("reached", wait.wait_s, 3, 3)]


def test_data_that_ends_ends_the_wait() -> None:
    """What is still attainable is the most that is waited for."""

    async def main() -> LentWait:
        p = await opened(await plane(policy=ScriptedPolicy(wait=8)))
        p.workload.put(2)
        asyncio.get_running_loop().call_later(10.0, p.workload.end, WaitOutcome.EXHAUSTED)
        return await p.controller.before_fit_step(0)

    assert run_virtual(main()) == LentWait(wait_s=10.0, outcome=WaitOutcome.EXHAUSTED)


def test_production_that_fails_ends_the_wait() -> None:
    """GPUs come back, so that the run can end in order."""

    async def main() -> tuple[LentWait, Plane]:
        p = await opened(await plane(policy=ScriptedPolicy(wait=8)))
        asyncio.get_running_loop().call_later(10.0, p.workload.end, WaitOutcome.FAILED)
        return await p.controller.before_fit_step(0), p

    wait, p = run_virtual(main())
    assert wait == LentWait(wait_s=10.0, outcome=WaitOutcome.FAILED)
    assert p.controller.state is ControllerState.STANDALONE_ONLY


def test_a_wait_ends_at_its_deadline() -> None:
    """Whatever the policy waits for: after so long GPUs go back to training."""

    async def main() -> tuple[LentWait, Plane]:
        p = await opened(await plane(policy=ScriptedPolicy(wait=8)))
        return await p.controller.before_fit_step(0), p

    wait, p = run_virtual(main())
    assert wait == LentWait(wait_s=500.0, outcome=WaitOutcome.DEADLINE)
    assert p.controller.state is ControllerState.STANDALONE_ONLY


def test_a_wait_without_a_serving_replica_ends() -> None:
    """Nothing comes of it; the loop around decides how to go on."""

    async def main() -> LentWait:
        p = await opened(await plane(policy=ScriptedPolicy(wait=8)))
        for name in (*STANDALONE, *HYBRID):
            await p.steps.fence({name: "test"})
        return await p.controller.before_fit_step(0)

    assert run_virtual(main()) == LentWait(outcome=WaitOutcome.FAILED)


def test_not_yet_keeps_waiting_until_everything_attainable_is_there() -> None:
    """A policy that never gives GPUs back is overruled when nothing more can come."""

    async def main() -> tuple[LentWait, Plane]:
        p = await opened(await plane(policy=ScriptedPolicy(deactivate=False)))
        p.workload.attainable = 4
        for delay_s in (10.0, 20.0):
            asyncio.get_running_loop().call_later(delay_s, p.workload.put, 2)
        return await p.controller.before_fit_step(0), p

    wait, p = run_virtual(main())
    assert wait == LentWait(wait_s=20.0)
    assert p.controller.state is ControllerState.STANDALONE_ONLY


def test_not_yet_ends_at_the_deadline() -> None:
    """Also where samples keep missing."""

    async def main() -> tuple[LentWait, float]:
        p = await opened(await plane(policy=ScriptedPolicy(deactivate=False)))
        wait = await p.controller.before_fit_step(0)
        return wait, asyncio.get_running_loop().time()

    wait, _ = run_virtual(main())
    assert wait == LentWait(wait_s=500.0, outcome=WaitOutcome.DEADLINE)


def test_a_cancelled_wait_leaves_gpus_lent() -> None:
    """Whoever cancels finds the state as it was, and can go on from it."""

    async def main() -> Plane:
        p = await opened(await plane(policy=ScriptedPolicy(wait=8)))
        task = asyncio.create_task(p.controller.before_fit_step(0))
        await asyncio.sleep(10.0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert p.controller.is_hybrid_active
        await p.controller.deactivate()
        return p

    assert run_virtual(main()).controller.state is ControllerState.STANDALONE_ONLY


def test_requests_on_lent_gpus_are_aborted_before_sleep() -> None:
    """They return with what they have, and whoever holds them routes them elsewhere."""

    async def main() -> list[str]:
        p = await lent(await plane())
        tasks = await p.occupy("w", "x", "y", "z")
        await asyncio.sleep(1.0)
        await p.controller.before_fit_step(0)
        ended = [task.result() for task in tasks if task.done()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return ended

    assert run_virtual(main()) == ["abort of hybrid-0", "abort of hybrid-1"]


@pytest.mark.parametrize(
    ("decision", "moved"),
    [
        (EXCESS, {"standalone-0": 2, "standalone-1": 2}),
        (ALL, {"standalone-0": 4, "standalone-1": 4}),
    ],
)
def test_a_rebalance_moves_what_the_policy_asks_for(
    decision: Rebalance, moved: dict[str, int]
) -> None:
    """All requests, or only the newest above the fair share; routing waits until all let go."""

    async def main() -> tuple[Plane, list[str]]:
        p = await plane(policy=ScriptedPolicy(lend=False))
        await opened(p)
        tasks = await p.occupy(*"abcdefgh")
        await asyncio.sleep(1.0)
        await p.controller.before_fit_step(0)
        p.policy.lend, p.policy.rebalance = True, decision
        await p.controller.at_weight_sync(1)
        await asyncio.sleep(0.0)
        ended = [task.result() for task in tasks if task.done()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return p, ended

    p, ended = run_virtual(main())
    assert p.sink.of(Rebalanced) == [Rebalanced(decision.scope.value, moved)]
    assert sorted(ended) == sorted(
        f"abort of {name}" for name, count in moved.items() for _ in range(count)
    )
    assert p.balancer.try_acquire("x") is not None


def test_a_replica_that_does_not_let_go_of_requests_is_fenced() -> None:
    """Routing opens again at the deadline, without it."""

    async def main() -> Plane:
        p = await opened(await plane())
        lease = p.balancer.try_acquire("kept")
        assert lease is not None
        await p.controller.rebalance(ALL)
        return p

    p = run_virtual(main())
    assert p.fleet.in_state(ReplicaState.DEAD) == ("standalone-0",)
    assert p.sink.of(Rebalanced) == [Rebalanced("all", {})]
    assert p.balancer.try_acquire("x") is not None


def test_a_cancelled_rebalance_opens_routing() -> None:
    """Requests never wait for somebody who has gone away."""

    async def main() -> bool:
        p = await opened(await plane())
        assert p.balancer.try_acquire("kept") is not None
        task = asyncio.create_task(p.controller.rebalance(ALL))
        await asyncio.sleep(1.0)
        assert p.balancer.try_acquire("x") is None
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return p.balancer.try_acquire("x") is not None

    assert run_virtual(main())


def test_a_rebalance_can_be_switched_off() -> None:
    """Then the policy is not asked."""

    async def main() -> Plane:
        return await opened(
            await plane(policy=ScriptedPolicy(rebalance=ALL), enable_rebalance=False)
        )

    p = run_virtual(main())
    assert p.controller.is_hybrid_active
    assert not p.sink.of(Rebalanced)


def test_without_a_standalone_replica_responses_end_before_deactivation() -> None:
    """Where versions may not mix and nobody of the same version serves, they run to their end."""

    async def main() -> tuple[Plane, float]:
        p = await lent(await plane(partial_rollout=False))
        for name in STANDALONE:
            await p.steps.fence({name: "test"})
        p.workload.in_flight = 1
        mark, begun_s = p.mark(), asyncio.get_running_loop().time()
        asyncio.get_running_loop().call_later(30.0, p.workload.finish_episodes)
        await p.controller.deactivate()
        return p, p.sink.times_s[mark] - begun_s

    p, drained_s = run_virtual(main())
    assert drained_s == pytest.approx(30.0)
    assert p.workload.log == ["resume", "drain", "drained", "resume"]


def test_with_a_standalone_replica_responses_move_at_deactivation() -> None:
    """It holds the same version, so nothing has to end first."""

    async def main() -> Plane:
        p = await lent(await plane(partial_rollout=False))
        p.workload.in_flight = 1
        await p.controller.before_fit_step(0)
        return p

    assert run_virtual(main()).workload.log == ["resume"]


def test_a_drain_that_does_not_end_restarts_requests_and_kills_nobody() -> None:
    """At the deadline the switch goes on; what is in flight is aborted and begins again."""

    async def main() -> Plane:
        p = await lent(await plane(partial_rollout=False))
        for name in STANDALONE:
            await p.steps.fence({name: "test"})
        p.workload.in_flight = 1
        await p.controller.deactivate()
        return p

    p = run_virtual(main())
    assert p.controller.state is ControllerState.STANDALONE_ONLY
    assert p.fleet.in_state(ReplicaState.ASLEEP) == HYBRID
    assert p.sink.of(Advisory)[-1].text == (
        "drain before deactivation did not end within 200 s; what is in flight starts again"
    )


def test_responses_of_one_version_end_before_a_sync() -> None:
    """Episodes end, then the policy is asked, then weights are sent; nothing waits in engines."""

    async def main() -> tuple[Plane, float]:
        p = await opened(await plane(policy=ScriptedPolicy(lend=False), partial_rollout=False))
        await p.controller.before_fit_step(0)
        p.workload.in_flight = 1
        asyncio.get_running_loop().call_later(30.0, p.workload.finish_episodes)
        begun_s = asyncio.get_running_loop().time()
        synced_s = await p.controller.at_weight_sync(1)
        return p, asyncio.get_running_loop().time() - begun_s - synced_s

    p, drained_s = run_virtual(main())
    assert drained_s == pytest.approx(30.0)
    assert p.workload.log == ["resume", "drain", "drained", "resume"]


@pytest.mark.parametrize("pause_keep", [True, False])
def test_a_sync_that_aborts_holds_routing_until_versions_are_known(pause_keep: bool) -> None:
    """Kept requests go on in the engine; aborted ones must see which weights they come back to."""

    async def main() -> tuple[list[str], str, int | None]:
        p = await plane(policy=ScriptedPolicy(lend=False))
        p.executor.pause_keep = pause_keep
        await opened(p)
        await p.controller.before_fit_step(0)
        tasks = await p.occupy("x")
        sync = asyncio.create_task(p.controller.at_weight_sync(1))
        await asyncio.sleep(0.01)
        lease = await p.balancer.acquire("y")
        version = p.fleet.status(lease.replica).version
        await sync
        ended = [task.result() for task in tasks if task.done()]
        state = gpu_states(p.sink)["rollout-0"]
        tasks[0].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return ended, state, version

    ended, state, version = run_virtual(main())
    if pause_keep:
        assert (ended, state, version) == ([], "rollout", 0)
    else:
        assert (ended, version) == (["abort of standalone-0"], 1)

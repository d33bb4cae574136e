"""The controller: lending and returning step by step, and whatever can go wrong on the way."""

from __future__ import annotations

import asyncio

import pytest
from tests.executors.controlplane import RUNTIME, Plane, gpu_states, plane
from tests.executors.support import HYBRID, STANDALONE, TRAINER_GPUS, ScriptedPolicy, run_virtual

from swingshift.executors.runtime.controller import LentWait
from swingshift.executors.runtime.lending import MemoryWithheldError
from swingshift.executors.runtime.message_queue import WaitOutcome
from swingshift.sdk.events import (
    Advisory,
    LentWaitEnded,
    MemoryMeasured,
    Rebalanced,
    WeightsSynced,
)
from swingshift.sdk.executor import ReplicaKind
from swingshift.sdk.lifecycle import ControllerState, ReplicaState
from swingshift.sdk.metrics import GpuState
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
RELOADED = DEACTIVATION[-3:]


async def opened(p: Plane) -> Plane:
    """Sync version 0 as a run does first; GPUs are lent if the policy says so."""
    await p.controller.at_weight_sync(0)
    p.controller.end_cycle(0)
    return p


async def lent(p: Plane) -> Plane:
    """Open with GPUs lent and enough buffered to get them back at once."""
    await opened(p)
    assert p.controller.is_hybrid_active
    p.workload.put(5)
    return p


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
            await p.steps.fence(name, "test")
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


# --- one replica fails


@pytest.mark.parametrize("how", ["fail", "hang"])
@pytest.mark.parametrize("verb", ["wake_weights", "wake_kv_cache", "resume", "canary"])
def test_a_replica_that_fails_during_activation_leaves_alone(verb: str, how: str) -> None:
    """The other serves; before training the memory of both is shown to be free."""

    async def main() -> tuple[Plane, int]:
        p = await plane()
        p.executor.inject(verb, "hybrid-0", "hang" if how == "hang" else "fail")
        await lent(p)
        mark = p.mark()
        assert p.fleet.serving(ReplicaKind.HYBRID) == ("hybrid-1",)
        assert p.fleet.status("hybrid-0").state is ReplicaState.DEAD
        assert gpu_states(p.sink)["trainer-0"] == GpuState.DOWN
        await p.controller.before_fit_step(0)
        return p, mark

    p, mark = run_virtual(main())
    assert p.story(mark) == [
        "controller deactivating",
        "hybrid-1 out",
        "hybrid-1 draining",
        "deactivate: abort hybrid-1",
        "hybrid-1 sleeping",
        "deactivate: sleep hybrid-1",
        "measured trainer-1",
        "hybrid-1 asleep",
        "measured trainer-0",
        *RELOADED,
    ]
    assert gpu_states(p.sink)["trainer-0"] == GpuState.TRAIN_WAIT
    assert p.controller.can_lend


def test_the_next_activation_goes_on_without_the_dead() -> None:
    """Only sleeping replicas are lent, and only what was lent is measured."""

    async def main() -> tuple[Plane, int]:
        p = await plane()
        p.executor.inject("wake_weights", "hybrid-0")
        await lent(p)
        await p.controller.before_fit_step(0)
        mark = p.mark()
        await opened(p)
        await p.controller.before_fit_step(0)
        return p, mark

    p, mark = run_virtual(main())
    assert all("hybrid-0" not in line for line in p.story(mark))
    measured = [event.free_bytes for event in p.sink.of(MemoryMeasured)[-1:]]
    assert [list(free) for free in measured] == [["trainer-1"]]


@pytest.mark.parametrize("verb", ["pause", "sync_weights", "resume", "canary"])
def test_a_standalone_replica_that_fails_leaves_alone(verb: str) -> None:
    """At a sync the others go on serving; a collective that failed takes its call with it."""

    async def main() -> Plane:
        p = await plane(policy=ScriptedPolicy(lend=False))
        if verb == "pause":
            await opened(p)
            await p.controller.before_fit_step(0)
        p.executor.inject(verb, "*" if verb == "sync_weights" else "standalone-0")
        await opened(p)
        return p

    p = run_virtual(main())
    lost = STANDALONE if verb == "sync_weights" else STANDALONE[:1]
    assert p.fleet.in_state(ReplicaState.DEAD) == lost
    assert p.fleet.serving() == tuple(name for name in STANDALONE if name not in lost)
    assert all(gpu_states(p.sink)[f"rollout-{name[-1]}"] == GpuState.DOWN for name in lost)


def test_a_failed_sync_of_hybrids_does_not_reach_the_standalone_ones() -> None:
    """Two calls, each with its own fence."""

    async def main() -> tuple[Plane, float]:
        p = await plane()
        p.executor.inject("sync_weights", "hybrid-0", "hang")
        await opened(p)
        return p, asyncio.get_running_loop().time()

    p, ended_s = run_virtual(main())
    assert ended_s > RUNTIME.sync_deadline_s
    assert p.fleet.serving() == STANDALONE
    assert p.fleet.in_state(ReplicaState.DEAD) == HYBRID
    groups = [(event.group, list(event.outcomes.values())) for event in p.sink.of(WeightsSynced)]
    assert groups == [("standalone", ["synced"] * 2), ("hybrid", ["failed"] * 2)]
    assert p.controller.state is ControllerState.STANDALONE_ONLY


def test_a_replica_that_does_not_stop_is_killed() -> None:
    """Its abort is not acknowledged, so its end is; the other goes to sleep."""

    async def main() -> Plane:
        p = await lent(await plane())
        p.executor.inject("pause", "hybrid-0", "hang")
        await p.controller.before_fit_step(0)
        return p

    p = run_virtual(main())
    assert p.fleet.status("hybrid-0").state is ReplicaState.DEAD
    assert p.fleet.status("hybrid-1").state is ReplicaState.ASLEEP
    assert p.controller.state is ControllerState.STANDALONE_ONLY
    assert [list(event.free_bytes) for event in p.sink.of(MemoryMeasured)] == [
        ["trainer-1"],
        ["trainer-0"],
    ]


# --- an activation fails


def rolled_back(*faults: tuple[str, str, str]) -> Plane:
    """Return the plane after an activation that met the faults."""

    async def main() -> Plane:
        p = await plane()
        for verb, subject, how in faults:
            p.executor.inject(verb, subject, "hang" if how == "hang" else "fail")
        await opened(p)
        return p

    p = run_virtual(main())
    assert p.controller.state is ControllerState.STANDALONE_ONLY
    assert p.fleet.serving() == STANDALONE
    assert p.story()[-3:] == RELOADED
    assert {gpu_states(p.sink)[gpu] for gpu in TRAINER_GPUS} == {"train_wait"}
    assert not p.executor._offloaded
    return p


@pytest.mark.parametrize("how", ["fail", "hang"])
def test_an_activation_that_cannot_begin_is_undone(how: str) -> None:
    """No replica was touched, so none is measured or killed; the reason is reported."""
    p = rolled_back(("offload_training", "optimizer_and_gradients", how))
    assert p.fleet.in_state(ReplicaState.ASLEEP) == HYBRID
    assert not p.sink.of(MemoryMeasured)
    assert "activation rolled back: " in p.sink.of(Advisory)[0].text
    assert p.controller.can_lend


@pytest.mark.parametrize("how", ["fail", "hang"])
def test_an_activation_that_fails_half_way_is_rolled_back(how: str) -> None:
    """Replicas already awake go back to sleep, measured with no training state resident."""
    p = rolled_back(("offload_training", "parameters", how))
    assert p.fleet.in_state(ReplicaState.ASLEEP) == HYBRID
    (measured,) = p.sink.of(MemoryMeasured)
    assert set(measured.free_bytes.values()) == {int(96e9)}


def test_a_rollback_that_cannot_offload_errs_on_the_safe_side() -> None:
    """Parameters that stay resident count as memory that is not free."""
    p = rolled_back(*[("offload_training", "parameters", "fail")] * 2)
    (measured,) = p.sink.of(MemoryMeasured)
    assert set(measured.free_bytes.values()) == {int(96e9 - 2e9)}


@pytest.mark.parametrize("verb", ["wake_weights", "wake_kv_cache", "resume", "canary"])
def test_an_activation_that_no_replica_survives_is_rolled_back(verb: str) -> None:
    """All are dead, and the memory of each is measured before training."""
    p = rolled_back((verb, "hybrid-0", "fail"), (verb, "hybrid-1", "fail"))
    assert p.fleet.in_state(ReplicaState.DEAD) == HYBRID
    assert [list(event.free_bytes) for event in p.sink.of(MemoryMeasured)] == [
        ["trainer-0"],
        ["trainer-1"],
    ]
    assert not p.controller.can_lend


def test_a_rolled_back_activation_counts_in_its_duration() -> None:
    """The policy learns what the attempt cost."""
    p = rolled_back(("offload_training", "parameters", "hang"))
    assert p.policy.learned[0][1].last_activate_duration_s > RUNTIME.switch_step_deadline_s


def test_a_cancelled_activation_does_not_look_like_training_time() -> None:
    """Wherever it was cancelled, the state says that GPUs are not back."""

    async def main() -> Plane:
        p = await plane()
        p.executor.inject("wake_kv_cache", "hybrid-0", "hang")
        task = asyncio.create_task(p.controller.at_weight_sync(0))
        await asyncio.sleep(20.0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert task.cancelled()
        return p

    p = run_virtual(main())
    assert p.controller.state is ControllerState.ACTIVATING
    assert p.fleet.serving() == STANDALONE


# --- memory


def test_memory_that_is_late_is_slept_for_again() -> None:
    """The second measurement counts; nobody is killed."""

    async def main() -> Plane:
        p = await lent(await plane())
        p.executor.withheld_bytes = {"trainer-0": int(90e9)}
        asyncio.get_running_loop().call_later(1.5, p.executor.withheld_bytes.clear)
        await p.controller.before_fit_step(0)
        return p

    p = run_virtual(main())
    slept = [name for _, name in p.executor.called("sleep")]
    assert slept == ["hybrid-0", "hybrid-1", "hybrid-0"]
    assert p.fleet.in_state(ReplicaState.ASLEEP) == HYBRID
    assert not p.executor.called("kill")


@pytest.mark.parametrize("how", ["fail", "hang"])
def test_a_replica_that_cannot_sleep_is_killed(how: str) -> None:
    """After a second try; its memory is measured after its end, and training goes on."""

    async def main() -> Plane:
        p = await lent(await plane())
        p.executor.inject("sleep", "hybrid-1", "hang" if how == "hang" else "fail", times=2)
        await p.controller.before_fit_step(0)
        return p

    p = run_virtual(main())
    assert p.fleet.in_state(ReplicaState.DEAD) == ("hybrid-1",)
    assert p.executor.called("kill") == [("kill", "hybrid-1")]
    assert p.sink.of(MemoryMeasured)[-1].free_bytes == {"trainer-1": int(96e9)}
    assert p.controller.state is ControllerState.STANDALONE_ONLY


@pytest.mark.parametrize("lost_before", [False, True])
def test_memory_that_never_comes_back_blocks_training(lost_before: bool) -> None:
    """Also that of a replica which died while it was lent: the controller is BLOCKED for good."""

    async def main() -> Plane:
        p = await plane()
        if lost_before:
            p.executor.inject("wake_kv_cache", "hybrid-0")
        await lent(p)
        p.executor.withheld_bytes = {"trainer-0": int(90e9)}
        with pytest.raises(
            MemoryWithheldError, match=r"trainer-0 has \d+ bytes free after hybrid-0"
        ):
            await p.controller.before_fit_step(0)
        return p

    p = run_virtual(main())
    assert p.controller.state is ControllerState.BLOCKED
    assert p.fleet.status("hybrid-0").state is ReplicaState.DEAD
    assert not p.executor.called("reload_training")
    assert not p.controller.can_lend


def test_a_replica_that_can_be_neither_slept_nor_killed_blocks_training() -> None:
    """Nothing measured is nothing free."""

    async def main() -> Plane:
        p = await lent(await plane())
        p.executor.inject("sleep", "hybrid-0", "hang", times=2)
        p.executor.inject("kill", "hybrid-0", "hang")
        with pytest.raises(MemoryWithheldError, match="has 0 bytes free"):
            await p.controller.before_fit_step(0)
        return p

    assert run_virtual(main()).controller.state is ControllerState.BLOCKED


def test_a_fenced_replica_whose_kill_failed_is_killed_again_before_training() -> None:
    """What could not be ended during activation is ended before its memory is taken over."""

    async def main() -> Plane:
        p = await plane()
        p.executor.inject("wake_weights", "hybrid-0")
        p.executor.inject("kill", "hybrid-0")
        await lent(p)
        await p.controller.before_fit_step(0)
        return p

    p = run_virtual(main())
    assert p.executor.called("kill") == [("kill", "hybrid-0")] * 2
    assert p.controller.state is ControllerState.STANDALONE_ONLY


@pytest.mark.parametrize("part", ["parameters", "optimizer_and_gradients"])
def test_training_state_that_does_not_come_back_blocks_training(part: str) -> None:
    """A trainer without its state would train something else."""

    async def main() -> Plane:
        p = await lent(await plane())
        p.executor.inject("reload_training", part)
        with pytest.raises(MemoryWithheldError, match="training state did not come back"):
            await p.controller.before_fit_step(0)
        return p

    assert run_virtual(main()).controller.state is ControllerState.BLOCKED


def test_a_rollback_that_fails_too_blocks_training() -> None:
    """There is no third way."""

    async def main() -> Plane:
        p = await plane()
        p.executor.inject("offload_training", "parameters")
        p.executor.withheld_bytes = {"trainer-1": int(90e9)}
        with pytest.raises(MemoryWithheldError, match="trainer-1"):
            await opened(p)
        return p

    assert run_virtual(main()).controller.state is ControllerState.BLOCKED


# --- requests


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


# --- responses of one version


def test_without_a_standalone_replica_responses_end_before_deactivation() -> None:
    """Where versions may not mix and nobody of the same version serves, they run to their end."""

    async def main() -> tuple[Plane, float]:
        p = await lent(await plane(partial_rollout=False))
        for name in STANDALONE:
            await p.steps.fence(name, "test")
        p.workload.in_flight = 1
        mark, begun_s = p.mark(), asyncio.get_running_loop().time()
        asyncio.get_running_loop().call_later(30.0, p.workload.finish_episodes)
        await p.controller.deactivate()
        return p, p.sink.times_s[mark] - begun_s

    p, drained_s = run_virtual(main())
    assert drained_s == pytest.approx(30.0)
    assert p.workload.log == ["drain", "drained", "resume"]


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
            await p.steps.fence(name, "test")
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
    assert p.workload.log == ["drain", "drained"]


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

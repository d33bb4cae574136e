"""Lending when things go wrong: who fails leaves alone, and memory is proved before training."""

from __future__ import annotations

import asyncio

import attrs
import pytest
from tests.executors.controlplane import RUNTIME, Plane, gpu_states, lent, opened, plane
from tests.executors.support import HYBRID, STANDALONE, TRAINER_GPUS, ScriptedPolicy, run_virtual

from swingshift.executors.runtime.lending import MemoryWithheldError
from swingshift.sdk.events import Advisory, MemoryMeasured, WeightsSynced
from swingshift.sdk.executor import ReplicaKind
from swingshift.sdk.lifecycle import ControllerState, ReplicaState
from swingshift.sdk.metrics import GpuState

RELOADED = [
    "deactivate: reload_parameters",
    "deactivate: reload_optimizer_and_gradients",
    "controller standalone_only",
]


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
        p = await plane(runtime=attrs.evolve(RUNTIME, restart_attempts=0))
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
    """All are dead, and the memory of all is measured before training."""
    p = rolled_back((verb, "hybrid-0", "fail"), (verb, "hybrid-1", "fail"))
    assert p.fleet.in_state(ReplicaState.DEAD) == HYBRID
    (measured,) = p.sink.of(MemoryMeasured)
    assert list(measured.free_bytes) == list(TRAINER_GPUS)
    assert p.controller.can_lend


def test_hybrid_replicas_that_all_died_are_restarted_when_gpus_are_lent() -> None:
    """With nobody else to lend to, the activation waits for them; only then do they serve."""

    async def main() -> Plane:
        p = await plane()
        for name in HYBRID:
            p.executor.inject("resume", name)
        await opened(p)
        assert p.fleet.in_state(ReplicaState.DEAD) == HYBRID
        assert await p.controller.activate(0)
        return p

    p = run_virtual(main())
    assert p.controller.is_hybrid_active
    assert p.fleet.serving() == (*STANDALONE, *HYBRID)
    assert p.executor.called("restart") == [("restart", name) for name in HYBRID]


def test_gpus_that_are_lost_while_lent_are_waited_for() -> None:
    """There is nothing to measure before they are back; then the training state is reloaded."""

    async def main() -> Plane:
        p = await lent(await plane())
        p.fleet.lose_gpu("trainer-0")
        p.fleet.lose("hybrid-0", "its GPU is gone")
        back = asyncio.create_task(p.controller.before_fit_step(0))
        await asyncio.sleep(RUNTIME.wait_deadline_s / 2)
        assert p.controller.state is ControllerState.DEACTIVATING
        p.fleet.return_gpu("trainer-0")
        await back
        return p

    p = run_virtual(main())
    assert p.controller.state is ControllerState.STANDALONE_ONLY
    assert p.story()[-3:] == RELOADED


def test_gpus_that_stay_lost_block_training() -> None:
    """The wait has a deadline, and the reason names the GPUs."""

    async def main() -> Plane:
        p = await lent(await plane())
        p.fleet.lose_gpu("trainer-0")
        with pytest.raises(MemoryWithheldError, match="lost trainer GPUs trainer-0 did not end"):
            await p.controller.before_fit_step(0)
        return p

    assert run_virtual(main()).controller.state is ControllerState.BLOCKED


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


def test_the_memory_of_all_is_proved_at_once() -> None:
    """Two attempts at sleep and one at a kill are three deadlines, for however many replicas."""

    async def main() -> float:
        p = await lent(await plane())
        p.executor.inject("sleep", "*", "hang", times=4)
        p.executor.inject("kill", "*", "hang", times=2)
        begun_s = asyncio.get_running_loop().time()
        with pytest.raises(MemoryWithheldError):
            await p.controller.before_fit_step(0)
        return asyncio.get_running_loop().time() - begun_s

    assert run_virtual(main()) == pytest.approx(3 * RUNTIME.switch_step_deadline_s)


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

"""Steps of a switch: each with its deadline and its event; who fails alone leaves alone."""

from __future__ import annotations

import asyncio

import pytest
from tests.executors.controlplane import Plane, gpu_states, plane
from tests.executors.support import STANDALONE, run_virtual

from swingshift.executors.runtime.deadlines import AdapterFaultError, DeadlineExpiredError
from swingshift.sdk.events import Advisory, SwitchStep, WeightsSynced
from swingshift.sdk.executor import (
    ExecutorError,
    FinishReason,
    Generation,
    GenerationRequest,
    SyncOutcome,
)
from swingshift.sdk.lifecycle import ReplicaEvent, ReplicaState


async def resume_all(p: Plane) -> tuple[str, ...]:
    """Do a step for each standalone replica."""
    return await p.steps.each("test", "resume", STANDALONE, lambda name: p.executor.resume([name]))


def test_a_step_is_done_for_all_at_once_and_reported_for_each() -> None:
    """The verbs run concurrently; each has its event with its own duration."""

    async def main() -> tuple[tuple[str, ...], Plane]:
        p = await plane()

        async def wait(name: str) -> None:
            await asyncio.sleep(2.0 if name == "standalone-0" else 5.0)

        return await p.steps.each("test", "wait", STANDALONE, wait), p

    survivors, p = run_virtual(main())
    assert survivors == STANDALONE
    assert p.sink.events == [
        SwitchStep("test", "wait", ("standalone-0",), 2.0, "done"),
        SwitchStep("test", "wait", ("standalone-1",), 5.0, "done"),
    ]
    assert p.sink.times_s == [2.0, 5.0]


def test_a_replica_that_fails_is_fenced_and_the_others_go_on() -> None:
    """It is out, booked and killed, with the reason in the log."""

    async def main() -> tuple[tuple[str, ...], Plane]:
        p = await plane()
        p.executor.inject("resume", "standalone-0")
        return await resume_all(p), p

    survivors, p = run_virtual(main())
    assert survivors == ("standalone-1",)
    assert p.fleet.status("standalone-0").state is ReplicaState.DEAD
    assert gpu_states(p.sink) == {"rollout-0": "down"}
    assert p.executor.called("kill") == [("kill", "standalone-0")]
    assert p.sink.of(Advisory) == [
        Advisory(
            "replica standalone-0 was taken out: test: resume: "
            "resume of standalone-0 was told to fail"
        )
    ]


def test_a_replica_that_hangs_is_fenced_at_the_deadline() -> None:
    """The others are not kept longer than the one deadline of the step."""

    async def main() -> tuple[tuple[str, ...], Plane, float]:
        p = await plane()
        p.executor.inject("resume", "standalone-1", "hang")
        return await resume_all(p), p, asyncio.get_running_loop().time()

    survivors, p, ended_s = run_virtual(main())
    assert (survivors, ended_s) == (("standalone-0",), 50.0)
    assert [step.outcome for step in p.sink.of(SwitchStep)] == [
        "done",
        "test: resume did not end within 50 s",
    ]


def test_without_a_fence_a_failure_is_only_left_out() -> None:
    """Where a step can be tried again, nobody is killed for it."""

    async def main() -> tuple[tuple[str, ...], Plane]:
        p = await plane()
        p.executor.inject("resume", "standalone-0")
        survivors = await p.steps.each(
            "test", "resume", STANDALONE, lambda name: p.executor.resume([name]), fence=False
        )
        return survivors, p

    survivors, p = run_virtual(main())
    assert survivors == ("standalone-1",)
    assert p.fleet.status("standalone-0").state is ReplicaState.STALE
    assert p.executor.called("kill") == []


def test_an_error_no_adapter_names_ends_the_step() -> None:
    """A bug is not recovered from; its text is in the log."""

    async def main() -> Plane:
        p = await plane()

        async def broken(name: str) -> None:
            raise KeyError(name)

        with pytest.raises(AdapterFaultError, match="test: break: KeyError: 'standalone-0'"):
            await p.steps.each("test", "break", STANDALONE, broken)
        return p

    p = run_virtual(main())
    assert [step.outcome for step in p.sink.of(SwitchStep)] == [
        "test: break: KeyError: 'standalone-0'",
        "test: break: KeyError: 'standalone-1'",
    ]


def test_a_cancelled_step_says_so_and_leaves_nothing_running() -> None:
    """Cancellation reaches every verb, also before its first step."""

    async def main(delay_s: float) -> Plane:
        p = await plane()

        async def hang(name: str) -> None:
            await asyncio.get_running_loop().create_future()

        task = asyncio.create_task(p.steps.each("test", "hang", STANDALONE, hang))
        await asyncio.sleep(delay_s)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        return p

    p = run_virtual(main(1.0))
    assert [step.outcome for step in p.sink.of(SwitchStep)] == ["cancelled", "cancelled"]
    assert run_virtual(main(0.0)).fleet.in_state(ReplicaState.DEAD) == ()


def test_a_step_of_the_trainer_raises_what_went_wrong() -> None:
    """There is no replica to leave out, so the caller decides."""

    async def main() -> Plane:
        p = await plane()

        async def fail() -> None:
            raise ExecutorError("no host memory")

        async def hang() -> None:
            await asyncio.get_running_loop().create_future()

        with pytest.raises(ExecutorError, match="no host memory"):
            await p.steps.once("test", "offload", fail)
        with pytest.raises(DeadlineExpiredError, match="test: offload did not end within 50 s"):
            await p.steps.once("test", "offload", hang)
        return p

    p = run_virtual(main())
    assert [step.replicas for step in p.sink.of(SwitchStep)] == [(), ()]


def test_a_sync_books_the_version_of_each_replica() -> None:
    """One call for all; the event names what it did to each."""

    async def main() -> tuple[tuple[str, ...], Plane]:
        p = await plane()
        return await p.steps.sync(0, "standalone", STANDALONE), p

    synced, p = run_virtual(main())
    assert synced == STANDALONE
    assert all(p.fleet.status(name).version == 0 for name in STANDALONE)
    (event,) = p.sink.of(WeightsSynced)
    assert event.outcomes == dict.fromkeys(STANDALONE, "synced")
    assert event.duration_s > 0.0


def test_a_sync_of_nobody_is_no_sync() -> None:
    """The trainer does not enter a collective alone."""

    async def main() -> Plane:
        p = await plane()
        assert await p.steps.sync(0, "standalone", ()) == ()
        return p

    p = run_virtual(main())
    assert not p.executor.called("sync_weights")
    assert not p.sink.events


def test_a_replica_that_the_sync_missed_is_fenced() -> None:
    """Its weights are of no version; the others hold the new one."""

    async def main() -> Plane:
        p = await plane()
        whole = p.executor.sync_weights

        async def partial(version: int, replicas: object) -> dict[str, SyncOutcome]:
            outcomes = dict(await whole(version, STANDALONE))
            return outcomes | {"standalone-1": SyncOutcome.FAILED}

        p.executor.sync_weights = partial  # type: ignore[method-assign]
        assert await p.steps.sync(3, "standalone", STANDALONE) == ("standalone-0",)
        return p

    p = run_virtual(main())
    assert p.fleet.status("standalone-0").version == 3
    assert p.fleet.status("standalone-1").state is ReplicaState.DEAD
    assert p.sink.of(WeightsSynced)[0].outcomes == {
        "standalone-0": "synced",
        "standalone-1": "failed",
    }


@pytest.mark.parametrize("how", ["fail", "hang"])
def test_a_failed_sync_fences_every_replica_of_the_call(how: str) -> None:
    """All are indeterminate: killed before any retry, the trainer released."""

    async def main() -> tuple[Plane, float]:
        p = await plane()
        p.executor.inject("sync_weights", "*", "hang" if how == "hang" else "fail")
        assert await p.steps.sync(0, "standalone", STANDALONE) == ()
        return p, asyncio.get_running_loop().time()

    p, ended_s = run_virtual(main())
    assert ended_s == (60.0 if how == "hang" else 0.0)
    assert p.fleet.in_state(ReplicaState.DEAD) == STANDALONE
    assert [name for _, name in p.executor.called("kill")] == list(STANDALONE)
    assert p.sink.of(WeightsSynced)[0].outcomes == dict.fromkeys(STANDALONE, "failed")


def test_a_fenced_replica_leaves_routing_before_it_is_killed() -> None:
    """Requests that die with it are routed again while the kill is under way, and not to it."""

    async def main() -> tuple[str, ...]:
        p = await plane()
        for name in STANDALONE:
            p.fleet.move(name, ReplicaEvent.SYNC, version=0)
            p.fleet.move(name, ReplicaEvent.ADMIT)
        p.executor.inject("kill", "standalone-0", "hang")
        fence = asyncio.create_task(p.steps.fence({"standalone-0": "test"}))
        await asyncio.sleep(1.0)
        routed = p.balancer.replicas
        await fence
        return routed

    assert run_virtual(main()) == ("standalone-1",)


@pytest.mark.parametrize("step", ["resume", "sync"])
def test_replicas_are_fenced_at_once(step: str) -> None:
    """Kills that hang cost one deadline, however many replicas a step lost."""

    async def main() -> tuple[Plane, float]:
        p = await plane()
        p.executor.inject("resume" if step == "resume" else "sync_weights", "*", times=2)
        p.executor.inject("kill", "*", "hang", times=2)
        lost = resume_all(p) if step == "resume" else p.steps.sync(0, "standalone", STANDALONE)
        assert await lost == ()
        return p, asyncio.get_running_loop().time()

    p, ended_s = run_virtual(main())
    assert ended_s == 50.0
    assert p.executor.called("kill") == [("kill", name) for name in STANDALONE]


def test_a_kill_that_fails_shows_no_memory() -> None:
    """Nothing measured is not the same as free; the replica is out all the same."""

    async def main() -> Plane:
        p = await plane()
        p.executor.inject("kill", "hybrid-0")
        assert await p.steps.fence({"hybrid-0": "test"}) == {}
        assert await p.steps.fence({"hybrid-0": "again"}) != {}
        return p

    p = run_virtual(main())
    assert [advisory.text for advisory in p.sink.of(Advisory)] == [
        "replica hybrid-0 was taken out: test",
        "replica hybrid-0 could not be killed: kill of hybrid-0 was told to fail",
    ]


def test_a_replica_is_admitted_when_it_answers_its_canary() -> None:
    """Only then does it enter routing; who answers with nothing is fenced."""

    async def main() -> Plane:
        p = await plane()
        await p.steps.sync(0, "standalone", STANDALONE)
        whole = p.executor.generate

        async def generate(replica: str, request: GenerationRequest) -> Generation:
            answer = await whole(replica, request)
            if replica == "standalone-0":
                return answer
            return answer._replace(finish_reason=FinishReason.ABORT)

        p.executor.generate = generate  # type: ignore[method-assign]
        assert await p.steps.admit("sync", STANDALONE) == ("standalone-0",)
        return p

    p = run_virtual(main())
    assert p.balancer.replicas == ("standalone-0",)
    assert p.executor.called("canary") == [("canary", name) for name in STANDALONE]
    assert p.fleet.status("standalone-1").state is ReplicaState.DEAD
    assert "did not answer its canary" in p.sink.of(Advisory)[0].text

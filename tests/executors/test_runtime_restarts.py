"""Restarts of dead replicas: bounded, one at a time for each, and known to whoever waits."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import attrs
from tests.executors.controlplane import RUNTIME, Plane, plane
from tests.executors.support import HYBRID, STANDALONE, run_virtual

from swingshift.executors.runtime.deadlines import Deadlines
from swingshift.executors.runtime.restarts import Restarts
from swingshift.sdk.events import Advisory, WeightsSynced
from swingshift.sdk.lifecycle import ReplicaEvent, ReplicaState

S0, S1 = STANDALONE
COLD_START_S = 90.0


@attrs.frozen
class World:
    """A plane, and restarts of its replicas with one attempt each."""

    plane: Plane
    restarts: Restarts

    def state(self, replica: str) -> ReplicaState:
        """Return where a replica is."""
        return self.plane.fleet.status(replica).state


async def world(*dead: str) -> World:
    """Return a world in which some replicas died."""
    p = await plane()
    restarts = Restarts(
        p.executor,
        p.fleet,
        p.recorder,
        Deadlines(expiry_is_fault=False),
        deadline_s=RUNTIME.restart_deadline_s,
        attempts=1,
    )
    for replica in dead:
        p.fleet.lose(replica, "test")
    return World(p, restarts)


def test_a_dead_replica_is_killed_and_comes_back_stale() -> None:
    """Meanwhile it is expected; before it is dead there is nothing to begin, nor a second time."""

    async def main() -> None:
        w = await world(S0)
        assert not w.restarts.begin(S1)
        assert w.restarts.begin(S0)
        assert not w.restarts.begin(S0)
        assert w.plane.fleet.is_expected(S0)
        assert await w.restarts.ended([S0, S1]) == (S0, S1)
        assert w.state(S0) is ReplicaState.STALE
        assert not w.plane.fleet.is_expected(S0)
        assert w.plane.executor.called("kill", "restart") == [("kill", S0), ("restart", S0)]

    run_virtual(main())


def test_who_cannot_be_restarted_stays_away() -> None:
    """After so many attempts, which is reported; until it is forgiven."""

    async def main() -> None:
        w = await world(S0)
        w.plane.executor.inject("restart", S0)
        w.restarts.begin(S0)
        assert await w.restarts.ended([S0]) == ()
        assert Advisory(f"replica {S0} stays away: 1 restarts failed") in w.plane.sink.of(Advisory)
        assert not w.restarts.begin(S0)
        w.restarts.forgive(S0)
        assert w.restarts.begin(S0)
        assert await w.restarts.ended([S0]) == (S0,)

    run_virtual(main())


def test_a_restart_that_was_cancelled_did_not_fail() -> None:
    """The GPUs were needed; the next attempt is still the first."""

    async def main() -> None:
        w = await world(HYBRID[0])
        for wait_s in (None, 0.0, COLD_START_S / 2):
            assert w.restarts.begin(HYBRID[0])
            if wait_s is not None:
                await asyncio.sleep(wait_s)
            await w.restarts.cancel(HYBRID[0])
            assert w.state(HYBRID[0]) is ReplicaState.DEAD
            assert not w.plane.fleet.is_expected(HYBRID[0])
        assert w.restarts.begin(HYBRID[0])
        assert await w.restarts.ended(HYBRID) == (HYBRID[0],)

    run_virtual(main())


def test_what_an_adapter_does_not_name_ends_the_run() -> None:
    """A fault in its code is not a restart that failed; nothing is begun after the end."""

    async def main() -> None:
        w = await world(S0)
        found: list[BaseException | None] = []
        w.restarts.on_end = lambda task: found.append(task.exception())
        w.plane.executor.restart = broken  # type: ignore[method-assign]
        w.restarts.begin(S0)
        assert await w.restarts.ended([S0]) == ()
        await asyncio.sleep(0)
        assert [str(error) for error in found] == ["restart of standalone-0: ValueError: a bug"]
        await w.restarts.stop()
        assert not w.restarts.begin(S0)

    async def broken(replicas: Sequence[str]) -> None:
        raise ValueError("a bug")

    run_virtual(main())


def test_a_replica_whose_gpu_is_lost_is_not_restarted() -> None:
    """Nor does one come back whose GPU was lost during its restart."""

    async def main() -> None:
        w = await world(S0, S1)
        w.plane.fleet.lose_gpu("rollout-0")
        assert not w.restarts.begin(S0)
        assert w.restarts.begin(S1)
        await asyncio.sleep(1.0)
        w.plane.fleet.lose_gpu("rollout-1")
        assert await w.restarts.ended([S1]) == ()
        assert w.state(S1) is ReplicaState.DEAD

    run_virtual(main())


def test_what_is_being_restarted_is_not_killed_beside_it() -> None:
    """The restart begins with a kill; a second one, late, would end the new replica."""

    async def main() -> None:
        w = await world(S0)
        w.restarts.begin(S0)
        assert await w.plane.steps.fence({S0: "a step failed"}) == {}
        await w.restarts.ended([S0])
        assert w.plane.executor.called("kill") == [("kill", S0)]

    run_virtual(main())


def test_a_sync_does_not_reach_who_died_and_came_back_meanwhile() -> None:
    """Its answer is about the replica before; the new one is STALE until a sync of its own."""

    async def main() -> None:
        w = await world()
        p = w.plane
        sync = asyncio.create_task(p.steps.sync(0, "standalone", STANDALONE))
        await asyncio.sleep(0.1)
        p.fleet.lose(S0, "test")
        p.fleet.move(S0, ReplicaEvent.RESTART)
        assert await sync == (S1,)
        assert p.sink.of(WeightsSynced)[0].outcomes == {S0: "failed", S1: "synced"}
        assert p.fleet.status(S0).version is None
        assert w.state(S0) is ReplicaState.STALE

    run_virtual(main())

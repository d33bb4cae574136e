"""Who is moved when only the excess moves, while new requests are on their way."""

from __future__ import annotations

import asyncio

import pytest
from tests.executors.controlplane import Plane, opened, plane
from tests.executors.support import ScriptedPolicy, run_virtual

from swingshift.sdk.events import Rebalanced
from swingshift.sdk.policy import Rebalance, RebalanceScope

EXCESS = Rebalance(scope=RebalanceScope.EXCESS)


async def crowded() -> tuple[Plane, list[asyncio.Task[str]]]:
    """Lend to two hybrid replicas while two standalone ones have four requests each."""
    p = await opened(await plane(policy=ScriptedPolicy(lend=False)))
    tasks = await p.occupy(*"abcdefgh")
    assert await p.controller.activate(0)
    return p, tasks


async def end(*tasks: asyncio.Task[str]) -> None:
    """Cancel what is in flight."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.parametrize(("incoming", "moved"), [(0, 2), (2, 1), (4, 1), (6, 0), (99, 0)])
def test_nobody_moves_for_a_place_that_new_requests_fill(incoming: int, moved: int) -> None:
    """Whom the window of the new version lets in counts in the fair share."""

    async def main() -> Plane:
        p, tasks = await crowded()
        p.workload.incoming = incoming
        await p.controller.rebalance(EXCESS)
        await end(*tasks)
        return p

    (told,) = run_virtual(main()).sink.of(Rebalanced)
    each = {"standalone-0": moved, "standalone-1": moved} if moved else {}
    assert told == Rebalanced("excess", each)


def test_requests_that_are_on_their_way_get_a_place_first() -> None:
    """Submitted at the same moment, they are routed before it is decided who moves."""

    async def main() -> tuple[Plane, list[int]]:
        p, tasks = await crowded()
        more = asyncio.create_task(p.occupy(*"ijklmnop"))
        await p.controller.rebalance(EXCESS)
        loads = [p.balancer.load(name) for name in p.balancer.replicas]
        await end(*tasks, *await more)
        return p, loads

    p, loads = run_virtual(main())
    assert loads == [4, 4, 4, 4]
    assert p.sink.of(Rebalanced) == [Rebalanced("excess", {})]

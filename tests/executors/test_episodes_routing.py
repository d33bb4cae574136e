"""Where episodes go after a tool pause: back to their replica, unless it would get above its share.

Read from the event log of whole runs: every attempt that follows one of the same episode.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import pytest
from tests.executors.episodes import run_episodes
from tests.executors.support import ListSink, ScriptedPolicy, small_config

from swingshift.sdk.config import RunConfig
from swingshift.sdk.events import RequestReturned, RequestRouted, RoutingChanged
from swingshift.sdk.policy import Rebalance, RebalanceScope

OVERSHOOT = 1.25
CROWDED = {"concurrent_samples_per_replica": 8, "staleness_threshold": 1.0}

seeds = pytest.mark.parametrize("seed", range(3))


class Routed(NamedTuple):
    """An attempt, where its episode was before if anywhere, and the loads that it leaves."""

    replica: str
    home: str | None
    reason: str | None
    loads: Mapping[str, int]

    @property
    def most(self) -> int:
        """The most requests that a session may leave a replica with."""
        return math.ceil(OVERSHOOT * sum(self.loads.values()) / len(self.loads))


def routings(sink: ListSink) -> Iterator[Routed]:
    """Yield every attempt in order."""
    loads: dict[str, int] = {}
    left: dict[str, RequestReturned] = {}
    for event in sink.events:
        if isinstance(event, RoutingChanged):
            loads = {name: load for name, load in loads.items() if name != event.replica}
            loads |= {event.replica: 0} if event.routed else {}
        elif isinstance(event, RequestRouted):
            loads = {**loads, event.replica: loads[event.replica] + 1}
            before = left.get(event.request)
            home, reason = (before.replica, before.reason) if before else (None, None)
            yield Routed(event.replica, home, reason, loads)
        elif isinstance(event, RequestReturned):
            left[event.request] = event
            if event.replica in loads:
                loads = {**loads, event.replica: loads[event.replica] - 1}


def crowded(seed: int, *, dynamic: bool = True) -> RunConfig:
    """Return a run with many more episodes than replicas."""
    return small_config(
        dynamic=dynamic, seed=seed, prompts=112, responses=4, batch=8, training=CROWDED
    )


@seeds
@pytest.mark.parametrize("scope", [*RebalanceScope, None])
def test_no_turn_brings_a_replica_above_its_share(seed: int, scope: RebalanceScope | None) -> None:
    """Neither right after GPUs were lent nor later, whoever comes back from its tools then."""
    rebalance = Rebalance(scope=scope) if scope else None
    policy = ScriptedPolicy(rebalance=rebalance, wait=1_000)
    attempts = list(routings(run_episodes(crowded(seed), policy)[0].sink))

    assert all(routed.loads[routed.replica] <= routed.most for routed in attempts)
    assert any(routed.replica.startswith("hybrid") for routed in attempts)


@seeds
def test_an_episode_stays_on_its_replica_while_that_has_room(seed: int) -> None:
    """Over all its pauses, where nothing is lent; hardly any has to leave."""
    ran, _ = run_episodes(crowded(seed, dynamic=False))
    later = [routed for routed in routings(ran.sink) if routed.reason == "stop"]
    away = [routed for routed in later if routed.replica != routed.home]

    for routed in away:
        assert routed.home is not None
        assert routed.loads[routed.home] + 1 > routed.most
    assert len(later) > 1_000
    assert len(away) < 0.05 * len(later)
    assert len({routed.replica for routed in later}) == 2

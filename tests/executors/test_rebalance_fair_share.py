"""Lent replicas carry their fair share within a second, and no more requests move than must.

Read from the event log of whole runs on the simulated executor, over shapes of the cluster, seeds,
and engines that let go of requests at once or take their time.
"""

from __future__ import annotations

import asyncio
import math
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from operator import attrgetter
from typing import NamedTuple

import attrs
import pytest
from tests.executors.support import (
    ListSink,
    ScriptedExecutor,
    ScriptedPolicy,
    run_training,
    small_config,
)

from swingshift.sdk.config import RunConfig
from swingshift.sdk.events import (
    ControllerMoved,
    Event,
    Rebalanced,
    RequestReturned,
    RequestRouted,
    RoutingChanged,
    SampleSubmitted,
    StalenessReset,
)
from swingshift.sdk.lifecycle import ControllerState
from swingshift.sdk.policy import Rebalance, RebalanceScope

pytestmark = pytest.mark.slow

# Standalone and hybrid replicas: rollout nodes, trainer nodes (two GPUs each), GPUs of a replica.
TOPOLOGIES = {"1+1": (1, 1, 2), "2+2": (1, 1, 1), "2+4": (1, 2, 1), "4+2": (2, 1, 1)}
SEEDS = range(3)
RESPONSES = 4
WITHIN_S = 1.0
OVERSHOOT = 1.25
EXCESS = Rebalance(scope=RebalanceScope.EXCESS)

shapes = pytest.mark.parametrize("topology", TOPOLOGIES)
patience = pytest.mark.parametrize(
    "patience_s", [0.0, 0.5], ids=["at once", "slowly"], indirect=True
)


class Told(NamedTuple):
    """An event, its time, and the requests in flight on every replica in routing after it."""

    at_s: float
    event: Event
    loads: Mapping[str, int]


@attrs.frozen
class Joining:
    """What came of lending GPUs while requests were in flight, in the second after.

    Attributes:
        told: The events of that second.
    """

    told: Sequence[Told]

    @property
    def before(self) -> Mapping[str, int]:
        """Requests on each replica once those have a place that were submitted before the lending.

        The new replicas are included.
        """
        return [told for told in self.told if told.at_s == self.told[0].at_s][-1].loads

    @property
    def incoming(self) -> int:
        """Requests that were submitted because the window of the new version opened."""
        opened = [isinstance(told.event, StalenessReset) for told in self.told].index(True)
        at_s = self.told[opened].at_s
        samples = [told.event for told in self.told[opened:] if told.at_s == at_s]
        return RESPONSES * sum(isinstance(event, SampleSubmitted) for event in samples)

    @property
    def new(self) -> list[str]:
        """The replicas that joined."""
        return [name for name in self.before if name.startswith("hybrid")]

    @property
    def moved(self) -> int:
        """Requests that were moved."""
        return sum(
            sum(told.event.moved.values())
            for told in self.told
            if isinstance(told.event, Rebalanced)
        )

    @property
    def aborted(self) -> int:
        """Attempts that were interrupted."""
        return sum(event.reason == "abort" for event in self._returns())

    @property
    def ended(self) -> int:
        """Attempts that ended by themselves."""
        return len(self._returns()) - self.aborted

    def _returns(self) -> list[RequestReturned]:
        return [told.event for told in self.told if isinstance(told.event, RequestReturned)]

    @property
    def least(self) -> int:
        """The fewest requests whose moving makes loads even, with those that come by themselves."""
        fair, rest = divmod(sum(self.before.values()) + self.incoming, len(self.before))
        fullest = sorted(self.before.values(), reverse=True)
        return sum(max(0, load - fair - (rank < rest)) for rank, load in enumerate(fullest))

    def moments(self) -> list[Mapping[str, int]]:
        """Return the loads at the end of each moment, from the one on at which requests moved."""
        moved_s = [told.at_s for told in self.told if isinstance(told.event, Rebalanced)]
        ends = [told for told, after in pairwise(self.told) if told.at_s < after.at_s]
        return [told.loads for told in (*ends, self.told[-1]) if told.at_s >= moved_s[0]]


def timeline(sink: ListSink) -> Iterator[Told]:
    """Yield every event with the loads after it."""
    loads: dict[str, int] = {}
    for at_s, event in zip(sink.times_s, sink.events, strict=True):
        if isinstance(event, RoutingChanged) and event.routed:
            loads = {**loads, event.replica: 0}
        elif isinstance(event, RoutingChanged):
            loads = {name: load for name, load in loads.items() if name != event.replica}
        elif isinstance(event, RequestRouted):
            loads = {**loads, event.replica: loads[event.replica] + 1}
        elif isinstance(event, RequestReturned) and event.replica in loads:
            loads = {**loads, event.replica: loads[event.replica] - 1}
        yield Told(at_s, event, loads)


def joinings(sink: ListSink) -> Iterator[Joining]:
    """Yield what came of each lending that found requests in flight and lasted for the second."""
    told = list(timeline(sink))
    moves = [at for at, one in enumerate(told) if isinstance(one.event, ControllerMoved)]
    for at, move in zip(moves, [*moves[1:], len(told)], strict=True):
        ends = bisect_right(told, told[at].at_s + WITHIN_S, key=attrgetter("at_s"))
        if _is_lending(told[at].event) and any(told[at].loads.values()) and ends <= move:
            yield Joining(told[at:ends])


def _is_lending(event: Event) -> bool:
    return isinstance(event, ControllerMoved) and event.after == ControllerState.HYBRID_ACTIVE


def config_of(topology: str, seed: int) -> RunConfig:
    """Return a run that always has requests in flight when GPUs are lent."""
    rollout_nodes, trainer_nodes, gpus = TOPOLOGIES[topology]
    config = small_config(
        trainer_nodes=trainer_nodes,
        rollout_nodes=rollout_nodes,
        seed=seed,
        prompts=112,
        responses=RESPONSES,
        batch=8,
        max_num_seqs=64,
        training={"concurrent_samples_per_replica": 8, "staleness_threshold": 1.0},
    )
    actor = config.actor_rollout_ref
    rollout = attrs.evolve(actor.rollout, tensor_model_parallel_size=gpus)
    return attrs.evolve(config, actor_rollout_ref=attrs.evolve(actor, rollout=rollout))


def lend(topology: str, rebalance: Rebalance | None = EXCESS) -> list[Joining]:
    """Run over all seeds, lending whenever that is possible, for as long as it is."""
    found: list[Joining] = []
    for seed in SEEDS:
        policy = ScriptedPolicy(rebalance=rebalance, wait=1_000)
        found += joinings(run_training(config_of(topology, seed), policy).sink)
    assert len(found) > len(SEEDS)
    return found


@pytest.fixture
def patience_s(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> float:
    """Let engines take so long to let go of requests."""
    seconds = float(request.param)
    abort = ScriptedExecutor.abort

    async def slowly(self: ScriptedExecutor, replica: str, request_ids: Sequence[str]) -> None:
        await asyncio.sleep(seconds)
        await abort(self, replica, request_ids)

    monkeypatch.setattr(ScriptedExecutor, "abort", slowly)
    return seconds


@shapes
@patience
def test_new_replicas_carry_their_share_within_a_second(topology: str, patience_s: float) -> None:
    """Once requests were moved loads are even, but for those that end by themselves meanwhile."""
    for joining in lend(topology):
        first, *later = joining.moments()
        assert max(first.values()) - min(first.values()) <= 1 + joining.ended
        for loads in (first, *later):
            fair = sum(loads.values()) / len(loads)
            assert max(loads.values()) <= math.ceil(OVERSHOOT * fair)
            assert min(loads[name] for name in joining.new) >= math.floor(fair / OVERSHOOT)


@shapes
@patience
def test_only_the_excess_moves(topology: str, patience_s: float) -> None:
    """As few attempts are interrupted as there are requests above the shares, and no other."""
    for joining in lend(topology):
        assert joining.moved == joining.least
        if patience_s:
            # some end by themselves while they are told to stop
            assert joining.aborted <= joining.least
        else:
            assert joining.aborted == joining.least


@shapes
def test_without_redistribution_a_share_has_to_wait_for_new_requests(topology: str) -> None:
    """Nothing is interrupted then, and where no request comes the new replicas have nothing."""
    found = lend(topology, None)
    assert not any(joining.aborted for joining in found)
    idle = [joining for joining in found if not any(joining.told[-1].loads[n] for n in joining.new)]
    assert idle

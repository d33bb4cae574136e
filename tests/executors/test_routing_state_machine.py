"""Routing and the queue hold against the model of them, and the model finds what would break them.

Every planted fault is a small change of one part. A machine that runs with it has to fail.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test
from tests.executors.routing_machine import BUDGET, RoutingMachine
from tests.executors.routing_model import HandExecutor

from swingshift.executors.runtime.load_balancer import Lease, LoadBalancer
from swingshift.executors.runtime.message_queue import MessageQueue
from swingshift.sdk.executor import Generation, GenerationRequest, Sample

pytestmark = pytest.mark.slow

test_routing_against_its_model = RoutingMachine.TestCase
test_routing_against_its_model.settings = settings(max_examples=max(300, settings().max_examples))


class IgnoresEpochs(LoadBalancer):
    """A late release counts for the stay that is."""

    def release(self, lease: Lease) -> bool:
        entry = self._entries.get(lease.replica)
        if entry is None or entry.epoch == lease.epoch or not entry.load:
            return super().release(lease)
        self._move(lease.replica, entry, entry.load - 1)
        return True


class CountsEveryRelease(LoadBalancer):
    """A lease that comes back twice counts twice."""

    def release(self, lease: Lease) -> bool:
        entry = self._entries.get(lease.replica)
        if entry is None or entry.epoch != lease.epoch or not entry.load:
            return False
        entry.leases.pop(lease.request_id, None)
        self._move(lease.replica, entry, entry.load - 1)
        return True


class TakesLeasesForEqual(LoadBalancer):
    """A lease that came back ends the one that its request has now."""

    def release(self, lease: Lease) -> bool:
        entry = self._entries.get(lease.replica)
        held = entry.leases.get(lease.request_id) if entry else None
        return super().release(held if held == lease and held is not None else lease)


class KeepsWhoLeft(LoadBalancer):
    """A replica that leaves goes on getting requests."""

    def remove(self, replica: str) -> int | None:
        entry = self._entries.get(replica)
        return entry.epoch if entry else None


class ReusesEpochs(LoadBalancer):
    """Every stay has the same number."""

    def add(self, replica: str) -> int:
        self._epoch = 0
        return super().add(replica)


class FirstAtTies(LoadBalancer):
    """Among equals it is always the first by name."""

    def try_acquire(self, request_id: str, sticky_key: str | None = None) -> Lease | None:
        bucket = self._by_load.get(self._least)
        if bucket is not None:
            self._by_load[self._least] = dict(sorted(bucket.items()))
        return super().try_acquire(request_id, sticky_key)


class IgnoresSessions(LoadBalancer):
    """A session is routed by load each time."""

    def try_acquire(self, request_id: str, sticky_key: str | None = None) -> Lease | None:
        return super().try_acquire(request_id)


class FollowsAnySession(LoadBalancer):
    """A session goes back to its replica whatever that has."""

    def _has_room(self, entry: object) -> bool:
        return True


class RemembersTheFirst(LoadBalancer):
    """A session that had to leave its replica goes back there as soon as it may."""

    def try_acquire(self, request_id: str, sticky_key: str | None = None) -> Lease | None:
        home = self._sticky.get(sticky_key) if sticky_key is not None else None
        lease = super().try_acquire(request_id, sticky_key)
        if sticky_key is not None and home is not None and home in self._entries:
            self._sticky[sticky_key] = home
        return lease


class NeverForgets(LoadBalancer):
    """A session that ended goes on."""

    def forget(self, sticky_key: str) -> None:
        pass


class MovesOneTooMany(LoadBalancer):
    """Redistribution takes one more from the fullest."""

    def excess(self, incoming: int = 0) -> dict[str, tuple[str, ...]]:
        moves = super().excess(incoming)
        return {
            name: self.requests_on(name)[-len(requests) - (not number) :]
            for number, (name, requests) in enumerate(moves.items())
        }


class MovesTheOldest(LoadBalancer):
    """Redistribution takes those with the most to compute again."""

    def excess(self, incoming: int = 0) -> dict[str, tuple[str, ...]]:
        return {
            name: self.requests_on(name)[: len(requests)]
            for name, requests in super().excess(incoming).items()
        }


class RoutesWhileHeld(LoadBalancer):
    """Redistribution does not keep what it takes from coming back at once."""

    def hold(self) -> None:
        pass


class WaitsForNobody(LoadBalancer):
    """Redistribution goes on before requests are let go."""

    async def released(self, replica: str, requests: Sequence[str]) -> None:
        pass


class OpensQuietly(LoadBalancer):
    """Whoever waits does not hear that routing is open."""

    def open(self) -> None:
        self._held = False


class LosesOne(MessageQueue):
    """A sample gets lost between the queue and the trainer."""

    def take(self, count: int) -> tuple[Sample, ...]:
        taken = super().take(count)
        if self._samples:
            self._samples.popleft()
        return taken


class GivesOneTwice(MessageQueue):
    """A sample stays after it was taken."""

    def take(self, count: int) -> tuple[Sample, ...]:
        taken = super().take(count)
        self._samples.extendleft(taken[-1:])
        return taken


class HoldsOneMore(MessageQueue):
    """The bound is passed by one."""

    def try_put(self, sample: Sample) -> bool:
        self.capacity += 1
        try:
            return super().try_put(sample)
        finally:
            self.capacity -= 1


class DropsTheOldest(MessageQueue):
    """A full queue makes room by itself."""

    def try_put(self, sample: Sample) -> bool:
        if len(self._samples) >= self.capacity:
            self._samples.popleft()
        return super().try_put(sample)


class TakesQuietly(MessageQueue):
    """Producers do not hear of room."""

    def take(self, count: int) -> tuple[Sample, ...]:
        return tuple(self._samples.popleft() for _ in range(count))


class GivesTheBudgetAgain(HandExecutor):
    """A resumed request is asked for as much as a new one."""

    async def generate(self, replica: str, request: GenerationRequest) -> Generation:
        return await super().generate(replica, request._replace(max_new_tokens=BUDGET))


class StartsAgain(HandExecutor):
    """A resumed request begins at its prompt."""

    async def generate(self, replica: str, request: GenerationRequest) -> Generation:
        return await super().generate(replica, request._replace(resume_from=None))


FAULTS = (
    IgnoresEpochs,
    CountsEveryRelease,
    TakesLeasesForEqual,
    KeepsWhoLeft,
    ReusesEpochs,
    FirstAtTies,
    IgnoresSessions,
    FollowsAnySession,
    RemembersTheFirst,
    NeverForgets,
    MovesOneTooMany,
    MovesTheOldest,
    RoutesWhileHeld,
    WaitsForNobody,
    OpensQuietly,
    LosesOne,
    GivesOneTwice,
    HoldsOneMore,
    DropsTheOldest,
    TakesQuietly,
    GivesTheBudgetAgain,
    StartsAgain,
)


def machine_with(fault: type) -> type[RoutingMachine]:
    """Return the machine with one part replaced."""
    slots = {
        LoadBalancer: "balancer_type",
        MessageQueue: "queue_type",
        HandExecutor: "executor_type",
    }
    slot = next(name for part, name in slots.items() if issubclass(fault, part))
    return type(f"RoutingWith{fault.__name__}", (RoutingMachine,), {slot: fault})


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_planted_fault_is_found(fault: type) -> None:
    """The first promise that it breaks fails; nothing else has to be looked for."""
    found = settings(
        max_examples=1_000,
        derandomize=True,
        database=None,
        phases=(Phase.generate,),
        report_multiple_bugs=False,
    )
    with pytest.raises(AssertionError):
        run_state_machine_as_test(machine_with(fault), settings=found)

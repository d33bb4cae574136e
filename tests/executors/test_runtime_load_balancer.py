"""The balancer: least loaded, evenly at ties, sticky, with epochs."""

from __future__ import annotations

import asyncio
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.executors.support import run_virtual

from swingshift.executors.runtime.load_balancer import OVERSHOOT, Lease, LoadBalancer


def loaded(**loads: int) -> LoadBalancer:
    """Return a balancer whose replicas hold so many leases each: all as many, then some end."""
    made = LoadBalancer()
    for name in loads:
        made.add(name)
    leases = {}
    for number in range(max(loads.values())):
        for name in loads:
            leases[name, number] = acquired(made, f"{name}-{number}")
    for (name, number), lease in leases.items():
        assert lease.replica == name
        if number >= loads[name]:
            made.release(lease)
    return made


def acquired(made: LoadBalancer, request: str, sticky: str | None = None) -> Lease:
    """Return a lease that must be there."""
    lease = made.try_acquire(request, sticky)
    assert lease is not None
    return lease


def test_the_least_loaded_replica_is_chosen() -> None:
    """A new request goes where fewest are."""
    made = loaded(a=3, b=1, c=2)
    assert acquired(made, "new").replica == "b"
    assert made.load("b") == 2
    assert made.total_load == 7


def test_ties_are_broken_evenly() -> None:
    """Among equals the longest unused is next, so nobody gets an avalanche."""
    made = LoadBalancer()
    for name in ("a", "b", "c"):
        made.add(name)
    chosen = []
    for number in range(9):
        lease = acquired(made, str(number))
        chosen.append(lease.replica)
        made.release(lease)
    assert chosen == ["a", "b", "c"] * 3


def test_a_session_sticks_until_its_replica_leaves_or_it_ends() -> None:
    """A session goes back to its replica though another has less, and elsewhere when it cannot."""
    made = LoadBalancer()
    made.add("a")
    first = acquired(made, "x", "session")
    made.add("b")
    assert acquired(made, "y", "session").replica == first.replica == "a"
    made.remove("a")
    assert acquired(made, "z", "session").replica == "b"
    made.add("a")
    assert acquired(made, "again", "session").replica == "b"
    made.forget("session")
    made.forget("session")
    assert acquired(made, "free", "session").replica == "a"


@pytest.mark.parametrize(("others", "home"), [(2, "a"), (1, "b")])
def test_a_session_leaves_a_replica_that_would_be_above_its_share(others: int, home: str) -> None:
    """5 of 7 requests are 1.25 shares, rounded up, and 5 of 6 are more; who left stays away."""
    made = LoadBalancer()
    made.add("a")
    made.release(acquired(made, "first", "session"))
    leases = [acquired(made, f"a-{number}") for number in range(4)]
    made.add("b")
    for number in range(others):
        acquired(made, f"b-{number}")
    again = acquired(made, "again", "session")
    for lease in (again, *leases):
        made.release(lease)
    assert again.replica == acquired(made, "later", "session").replica == home


@given(
    st.lists(st.tuples(st.sampled_from(("enter", "leave", "end")), st.integers(0, 3)), max_size=20)
)
def test_no_session_brings_a_replica_above_its_share(changes: list[tuple[str, int]]) -> None:
    """Whatever came before, a lease leaves at most 1.25 shares, and it is at home where it can."""
    made, homes, leases = LoadBalancer(), dict[str, str](), list[Lease]()
    made.add("0")
    for step, (change, number) in enumerate(changes):
        if change == "enter" and str(number) not in made.replicas:
            made.add(str(number))
        elif change == "leave" and made.replicas != (str(number),):
            made.remove(str(number))
        elif change == "end":
            for lease in leases[number::4]:
                made.release(lease)
        for session in map(str, range(number, 4)):
            home, total = homes.get(session, ""), made.total_load + 1
            before = made.load(home)
            leases.append(acquired(made, f"{session}/{step}", session))
            homes[session] = leases[-1].replica
            most = math.ceil(OVERSHOOT * total / len(made.replicas))
            assert made.load(homes[session]) <= most
            if home in made.replicas:
                assert (homes[session] == home) or before + 1 > most


def test_forgetting_all_sessions_routes_them_by_load() -> None:
    """After a reset every session is as good as new."""
    made = LoadBalancer()
    made.add("a")
    acquired(made, "x", "session")
    made.add("b")
    made.forget_all()
    assert acquired(made, "y", "session").replica == "b"


def test_every_entry_has_a_new_epoch_and_late_releases_do_not_count() -> None:
    """A lease of an earlier stay does not change the load of a replica that came back."""
    made = LoadBalancer()
    first = made.add("a")
    old = acquired(made, "x")
    assert made.remove("a") == first
    assert made.remove("a") is None
    second = made.add("a")
    assert second > first
    new = acquired(made, "y")
    assert made.release(old) is False
    assert made.load("a") == 1
    assert made.release(new) is True
    assert made.release(new) is False
    assert made.load("a") == 0


def test_a_lease_given_back_does_not_end_the_next_of_its_request() -> None:
    """A request that returns to its replica has a lease of its own, equal as it may look."""
    made = LoadBalancer()
    made.add("a")
    old = acquired(made, "x")
    made.release(old)
    new = acquired(made, "x")
    assert made.release(old) is False
    assert made.load("a") == 1
    assert made.release(new) is True


def test_a_removed_replica_gets_nothing_from_that_moment() -> None:
    """Leaving routing is one step: whatever is asked next goes elsewhere, or nowhere."""
    made = loaded(a=0, b=5)
    made.remove("a")
    assert acquired(made, "x").replica == "b"
    made.remove("b")
    assert made.try_acquire("y") is None
    assert made.load("b") == made.total_load == 0
    assert made.requests_on("b") == ()


def test_a_replica_cannot_enter_twice() -> None:
    """Its leases would be forgotten."""
    made = loaded(a=1)
    with pytest.raises(ValueError, match="'a' is in routing already"):
        made.add("a")


def test_held_routing_gives_nothing_until_it_opens() -> None:
    """While loads are being taken stock of, requests wait; then they are routed by load."""

    async def main() -> tuple[bool, str]:
        made = loaded(a=2, b=0)
        made.hold()
        waiting = asyncio.create_task(made.acquire("x"))
        await asyncio.sleep(1.0)
        was_waiting = not waiting.done()
        made.open()
        return was_waiting, (await waiting).replica

    assert run_virtual(main()) == (True, "b")


def test_waiting_requests_go_to_the_first_replica_that_enters() -> None:
    """Without a replica requests wait, in order, and cost nobody a deadline."""

    async def main() -> list[str]:
        made = LoadBalancer()
        waiting = [asyncio.create_task(made.acquire(str(number))) for number in range(3)]
        await asyncio.sleep(100.0)
        made.add("a")
        leases = await asyncio.gather(*waiting)
        assert made.requests_on("a") == ("0", "1", "2")
        return [lease.replica for lease in leases]

    assert run_virtual(main()) == ["a", "a", "a"]


def test_a_cancelled_wait_for_a_replica_takes_no_lease() -> None:
    """Cancellation while waiting leaves no load behind."""

    async def main() -> int:
        made = LoadBalancer()
        waiting = asyncio.create_task(made.acquire("x"))
        await asyncio.sleep(1.0)
        waiting.cancel()
        made.add("a")
        await asyncio.gather(waiting, return_exceptions=True)
        return made.load("a")

    assert run_virtual(main()) == 0


def test_released_returns_when_the_last_of_them_is_back() -> None:
    """Held routing reports every lease that ends; others on the replica do not matter."""

    async def main() -> list[bool]:
        made = LoadBalancer()
        made.add("a")
        leases = [acquired(made, name) for name in ("x", "y", "z")]
        made.hold()
        waiting = asyncio.create_task(made.released("a", ("x", "y")))
        states = []
        for lease in leases[:2]:
            await asyncio.sleep(1.0)
            states.append(waiting.done())
            made.release(lease)
        await waiting
        return [*states, waiting.done()]

    assert run_virtual(main()) == [False, False, True]


def test_released_returns_when_the_replica_leaves() -> None:
    """Whoever waits for leases of a replica that is gone has nothing to wait for."""

    async def main() -> float:
        made = loaded(a=2)
        made.hold()
        waiting = asyncio.create_task(made.released("a", ("a-0", "a-1")))
        await asyncio.sleep(3.0)
        made.remove("a")
        await waiting
        await made.released("a", ("a-0",))
        return asyncio.get_running_loop().time()

    assert run_virtual(main()) == 3.0


def test_busy_is_told_at_the_first_lease_and_after_the_last() -> None:
    """What books GPUs hears of each change between idle and busy, once."""
    made, told = LoadBalancer(), list[tuple[str, bool]]()
    made.add("a")
    made.on_busy = lambda replica, busy: told.append((replica, busy))
    first, second = acquired(made, "x"), acquired(made, "y")
    made.release(first)
    made.release(second)
    assert told == [("a", True), ("a", False)]


def test_excess_golden() -> None:
    """7, 4 and 0 requests, 11 in all: 4, 4 and 3 is even, so the newest three of the first move."""
    made = loaded(a=7, b=4, c=0)
    assert made.excess() == {"a": ("a-4", "a-5", "a-6")}


def test_nothing_is_in_excess_where_loads_are_even_or_nobody_is() -> None:
    """Differences of one are not worth a prefill."""
    assert loaded(a=3, b=4, c=3).excess() == {}
    assert LoadBalancer().excess() == {}


@given(st.lists(st.integers(0, 30), min_size=1, max_size=8), st.integers(0, 60))
def test_moving_the_excess_is_the_least_that_evens_loads(loads: list[int], incoming: int) -> None:
    """Once new requests came all are within one of each other; no smaller move could do that."""
    made = loaded(**{f"r{number}": load for number, load in enumerate(loads)})
    fair, ceilings = divmod(sum(loads) + incoming, len(loads))
    moves = made.excess(incoming)
    moved = [request for requests in moves.values() for request in requests]
    for name, requests in moves.items():
        for request in requests:
            assert made.release(made._entries[name].leases[request])
    for request in (*moved, *map(str, range(incoming))):
        acquired(made, request)
    after = [made.load(name) for name in made.replicas]
    assert max(after) - min(after) <= 1
    by_size = sorted(loads, reverse=True)
    least = sum(max(0, load - fair - (rank < ceilings)) for rank, load in enumerate(by_size))
    assert len(moved) == least

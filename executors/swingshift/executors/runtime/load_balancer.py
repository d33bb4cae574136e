"""Routing: which serving replica gets the next request.

A request goes to the replica its episode used before (sticky session), as long as that leaves the
replica at no more than `OVERSHOOT` times its fair share of the requests in flight; else to the
least loaded one, where its episode stays from then on. Ties go round-robin. Every entry of a
replica into routing has a new *epoch*, and a lease names the epoch it was given under: a late
release of an old lease never touches the count of a replica that left and came back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from swingshift.executors.runtime.changes import Changes

OVERSHOOT = 1.25
"""Most that a sticky session may leave a replica with, in fair shares, rounded up to requests."""


class Lease(NamedTuple):
    """The right to have one request on a replica until released."""

    replica: str
    epoch: int
    request_id: str


def _ignore(_replica: str, _busy: bool) -> None:
    """Serve as ``on_busy`` where nobody listens."""


class _Entry:
    __slots__ = ("epoch", "leases", "load")

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.load = 0
        # request id -> lease, oldest first
        self.leases: dict[str, Lease] = {}


class LoadBalancer:
    """Sticky, least-loaded routing with O(1) acquire and release.

    Attributes:
        changes: Notified when a replica enters, when routing opens, and, while it is held, whenever
            a lease ends.
        on_busy: Called when a replica in routing gets its first lease (True) or gives back its
            last (False).
    """

    def __init__(self) -> None:
        """Start without replicas."""
        self.changes = Changes()
        self.on_busy: Callable[[str, bool], None] = _ignore
        self._entries: dict[str, _Entry] = {}
        # load -> replicas with that load, the longest unused first: ties are broken round-robin
        self._by_load: dict[int, dict[str, None]] = {}
        self._least = 0
        self._total = 0
        self._epoch = 0
        self._sticky: dict[str, str] = {}
        self._held = False

    @property
    def replicas(self) -> tuple[str, ...]:
        """Replicas in routing, in the order they entered."""
        return tuple(self._entries)

    @property
    def total_load(self) -> int:
        """Leases held on replicas in routing."""
        return self._total

    def load(self, replica: str) -> int:
        """Leases held on a replica; 0 for one that is not in routing."""
        entry = self._entries.get(replica)
        return entry.load if entry else 0

    def epoch(self, replica: str) -> int | None:
        """Return the epoch of a replica in routing, None for one that is not."""
        entry = self._entries.get(replica)
        return entry.epoch if entry else None

    def add(self, replica: str) -> int:
        """Put a replica into routing and return its epoch.

        Raises:
            ValueError: It is there already.
        """
        if replica in self._entries:
            raise ValueError(f"replica {replica!r} is in routing already; remove it first")
        self._epoch += 1
        self._entries[replica] = _Entry(self._epoch)
        self._by_load.setdefault(0, {})[replica] = None
        self._least = 0
        self.changes.notify()
        return self._epoch

    def remove(self, replica: str) -> int | None:
        """Take a replica out of routing at once; idempotent.

        Returns:
            The epoch that ended, or None if the replica was not in routing.
        """
        entry = self._entries.pop(replica, None)
        if entry is None:
            return None
        self._total -= entry.load
        self._take_from_bucket(replica, entry.load)
        if entry.load == self._least and self._entries and entry.load not in self._by_load:
            self._least = min(self._by_load)
        if self._held:
            self.changes.notify()
        return entry.epoch

    def hold(self) -> None:
        """Give no new leases until `open`, so that redistribution knows every load first."""
        self._held = True

    def open(self) -> None:
        """Give leases again; idempotent."""
        self._held = False
        self.changes.notify()

    def try_acquire(self, request_id: str, sticky_key: str | None = None) -> Lease | None:
        """Return a lease, or None when nothing is in routing or routing is held.

        Args:
            request_id: Who will use it.
            sticky_key: Session whose earlier replica is preferred while that is not above its
                share; the choice is remembered for it.
        """
        if self._held or not self._entries:
            return None
        replica = self._sticky.get(sticky_key) if sticky_key is not None else None
        entry = self._entries.get(replica) if replica is not None else None
        if replica is None or entry is None or not self._has_room(entry):
            replica = next(iter(self._by_load[self._least]))
            entry = self._entries[replica]
            if sticky_key is not None:
                self._sticky[sticky_key] = replica
        self._move(replica, entry, entry.load + 1)
        lease = Lease(replica, entry.epoch, request_id)
        entry.leases[request_id] = lease
        return lease

    async def acquire(self, request_id: str, sticky_key: str | None = None) -> Lease:
        """Return a lease, waiting while there is none to be had. The caller owns the deadline."""
        while (lease := self.try_acquire(request_id, sticky_key)) is None:
            await self.changes.wait()
        return lease

    def release(self, lease: Lease) -> bool:
        """Give a lease back.

        Returns:
            False, and nothing changed, when its epoch has ended or it was given back before.
        """
        entry = self._entries.get(lease.replica)
        if entry is None or entry.epoch != lease.epoch:
            return False
        # the same request may have come back: its new lease is equal, but not the same
        if entry.leases.get(lease.request_id) is not lease:
            return False
        del entry.leases[lease.request_id]
        self._move(lease.replica, entry, entry.load - 1)
        if self._held:
            self.changes.notify()
        return True

    def forget(self, sticky_key: str) -> None:
        """End a sticky session; idempotent."""
        self._sticky.pop(sticky_key, None)

    def forget_all(self) -> None:
        """End every sticky session, so that the next request of each is routed by load."""
        self._sticky.clear()

    def excess(self, incoming: int = 0) -> dict[str, tuple[str, ...]]:
        """Return, per overloaded replica, the requests to move so that loads are even.

        The newest requests of a replica are named: they have the fewest tokens to be computed
        again.

        Args:
            incoming: New requests that come next; they go where room is, and nobody has to move
                there.
        """
        if not self._entries:
            return {}
        fair, rest = divmod(self._total + incoming, len(self._entries))
        # the fullest replicas may keep one more, so that the remainder moves as few requests as
        # possible
        fullest = sorted(self._entries, key=lambda name: -self._entries[name].load)
        moves: dict[str, tuple[str, ...]] = {}
        for rank, name in enumerate(fullest):
            entry = self._entries[name]
            surplus = entry.load - (fair + 1 if rank < rest else fair)
            if surplus > 0:
                moves[name] = tuple(entry.leases)[-surplus:]
        return moves

    def requests_on(self, replica: str) -> tuple[str, ...]:
        """Return the requests that hold leases on a replica, oldest first."""
        entry = self._entries.get(replica)
        return tuple(entry.leases) if entry else ()

    async def released(self, replica: str, requests: Sequence[str]) -> None:
        """Return when none of the requests holds a lease on the replica any more.

        Called between `hold` and `open`. The caller owns the deadline.
        """
        while True:
            entry = self._entries.get(replica)
            if entry is None or not any(request in entry.leases for request in requests):
                return
            await self.changes.wait()

    def _has_room(self, entry: _Entry) -> bool:
        """Return whether one request more leaves a replica at no more than its share allows."""
        # load + 1 <= ceil(OVERSHOOT x fair share), without rounding
        return entry.load * len(self._entries) < OVERSHOOT * (self._total + 1)

    def _move(self, replica: str, entry: _Entry, load: int) -> None:
        before = entry.load
        self._total += load - before
        self._take_from_bucket(replica, before)
        entry.load = load
        if load == 0 or before == 0:
            self.on_busy(replica, load > 0)
        bucket = self._by_load.get(load)
        if bucket is None:
            self._by_load[load] = {replica: None}
        else:
            bucket[replica] = None
        # loads change by one, so the least load is the new one if lower, or one up when its bucket
        # ran empty
        if load < self._least or (before == self._least and before not in self._by_load):
            self._least = load

    def _take_from_bucket(self, replica: str, load: int) -> None:
        bucket = self._by_load[load]
        del bucket[replica]
        if not bucket:
            del self._by_load[load]

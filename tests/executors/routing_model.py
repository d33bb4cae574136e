"""What routing promises, in few words, and an executor whose requests end when a test says so."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from tests.executors.support import ScriptedExecutor, lengths_of, small_config, small_options

from swingshift.executors.rl.task import SingleTurn
from swingshift.executors.runtime.load_balancer import Lease
from swingshift.sdk.events import RequestReturned, RequestRouted
from swingshift.sdk.executor import (
    Episode,
    FinishReason,
    Generation,
    GenerationRequest,
    Prompt,
    VersionSpan,
)


class Attempt(NamedTuple):
    """One call of ``generate`` that has not returned."""

    replica: str
    request: GenerationRequest
    future: asyncio.Future[Generation]


class HandExecutor(ScriptedExecutor):
    """Holds every request until a test says how its attempt ends.

    Attributes:
        asked: Every call of ``generate``, in order.
        held: Attempts under way, by request.
        told: Requests that were told to stop and have not been let go, in order.
    """

    def __init__(self) -> None:
        config, options = small_config(), small_options()
        super().__init__(config, options, lengths_of(config, options))
        self.asked: list[tuple[str, GenerationRequest]] = []
        self.held: dict[str, Attempt] = {}
        self.told: dict[str, None] = {}

    async def generate(self, replica: str, request: GenerationRequest) -> Generation:
        name = request.request_id
        assert name not in self.held, f"{name} is under way twice"
        self.asked.append((replica, request))
        future: asyncio.Future[Generation] = asyncio.get_running_loop().create_future()
        self.held[name] = Attempt(replica, request, future)
        try:
            return await future
        finally:
            del self.held[name]
            self.told.pop(name, None)

    async def abort(self, replica: str, request_ids: Sequence[str]) -> None:
        self.told.update(dict.fromkeys(request_ids))


class OneTurn(SingleTurn):
    """Episodes of one turn."""

    def __len__(self) -> int:
        return 0

    def prompt(self, index: int) -> Prompt:
        return Prompt(index, 10, str(index))

    async def score(self, prompt: Prompt, episodes: Sequence[Episode]) -> tuple[float, ...]:
        return (0.0,) * len(episodes)


class Response:
    """What one response must be at: its attempts, and the tokens it has of its budget."""

    def __init__(self, name: str, budget: int) -> None:
        self.tokens = 0
        self.attempts = 0
        self.failures = 0
        self._name = name
        self._budget = budget
        self._handle: str | None = None
        self._end: tuple[str, int] | None = None

    def end(self, new_tokens: int, reason: FinishReason) -> Generation:
        """Return an attempt's answer, and expect to hear of it."""
        self._end = (reason.value, new_tokens)
        spans = (VersionSpan(0, new_tokens),) if new_tokens else ()
        handle = f"{self._name} at {self.tokens + new_tokens}"
        return Generation(handle, new_tokens, reason, spans)

    def break_off(self, reason: str) -> None:
        """Expect to hear that an attempt ended without an answer."""
        self._end = (reason, 0)

    def check_routed(self, event: RequestRouted, asked: tuple[str, GenerationRequest]) -> None:
        """Check that an attempt goes on where the one before ended, with what is left."""
        self.attempts += 1
        replica, request = asked
        assert (event.attempt, event.resumed_tokens) == (self.attempts, self.tokens)
        assert (replica, request.request_id) == (event.replica, self._name)
        assert request.generated_tokens == self.tokens
        assert request.max_new_tokens == self._budget - self.tokens > 0
        assert request.resume_from == self._handle

    def check_returned(self, event: RequestReturned) -> bool:
        """Check that an attempt ended as it was told to; return whether its session goes on."""
        assert (event.reason, event.new_tokens) == self._end
        self._end = None
        if event.reason in ("lost", "failed"):
            self.tokens, self._handle = 0, None
            self.failures += 1
            return False
        self.tokens += event.new_tokens
        self._handle = f"{self._name} at {self.tokens}"
        assert self.tokens <= self._budget
        return event.reason == FinishReason.ABORT.value and self.tokens < self._budget


class RoutingModel:
    """Who is in routing and who holds which lease.

    Attributes:
        epochs: Replicas in routing, with the stay each is in.
        sticky: Where the requests of a session go.
        held: Whether nothing is routed.
    """

    def __init__(self) -> None:
        self.epochs: dict[str, int] = {}
        self.sticky: dict[str, str] = {}
        self.held = False
        # not given back, oldest first; those of an earlier stay among them
        self._leases: dict[Lease, None] = {}
        self._latest_epoch = 0
        self._changes = 0
        self._changed: dict[str, int] = {}

    def add(self, replica: str, epoch: int) -> None:
        """Let a replica in, under an epoch above all before."""
        assert epoch > self._latest_epoch
        self._latest_epoch = self.epochs[replica] = epoch
        self._mark(replica)

    def requests_on(self, replica: str) -> tuple[str, ...]:
        """Return the requests that count for a replica, oldest first."""
        stay = (replica, self.epochs.get(replica))
        return tuple(
            lease.request_id for lease in self._leases if (lease.replica, lease.epoch) == stay
        )

    def is_live(self, lease: Lease) -> bool:
        """Return whether a lease counts."""
        return lease in self._leases and self.epochs.get(lease.replica) == lease.epoch

    def expected(self, session: str | None) -> str:
        """Return where a request goes: its session's replica, else the least loaded, in turn."""
        if session is not None and self.sticky.get(session) in self.epochs:
            return self.sticky[session]
        return min(self.epochs, key=lambda name: (len(self.requests_on(name)), self._changed[name]))

    def route(self, lease: Lease, session: str | None) -> None:
        """Check where a request went, and count it there."""
        assert not self.held, f"{lease} was given while routing is held"
        assert self.epochs.get(lease.replica) == lease.epoch, f"{lease} is for one who left"
        assert lease.replica == self.expected(session), f"{lease} is not whose turn it is"
        assert lease not in self._leases, f"{lease} was given twice"
        if session is not None:
            self.sticky[session] = lease.replica
        self._leases[lease] = None
        self._mark(lease.replica)

    def give_back(self, lease: Lease) -> None:
        """Count a lease no longer; one of an earlier stay was not counted."""
        assert lease in self._leases, f"{lease} came back twice"
        if self.is_live(lease):
            self._mark(lease.replica)
        del self._leases[lease]

    def check_excess(self, moves: Mapping[str, tuple[str, ...]]) -> None:
        """Check that the fewest requests that even the loads move, the newest of each replica."""
        loads = {name: len(self.requests_on(name)) for name in self.epochs}
        fair, rest = divmod(sum(loads.values()), len(loads))
        fullest = sorted(loads.values(), reverse=True)
        least = sum(max(0, load - fair - (rank < rest)) for rank, load in enumerate(fullest))
        assert sum(map(len, moves.values())) == least
        for name, requests in moves.items():
            assert requests == self.requests_on(name)[-len(requests) :]
            assert loads[name] - len(requests) in (fair, fair + 1)

    def _mark(self, replica: str) -> None:
        self._changes += 1
        self._changed[replica] = self._changes

"""Balancer, client and queue driven by rules, beside the model of them.

Each rule does one thing and lets everything react to it: on a virtual clock a short sleep ends only
when nothing else is left to do. What happened meanwhile is read from the event log, in its order,
and every event has to be the one that the model expects.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Coroutine, Mapping
from itertools import chain

from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)
from tests.executors.routing_model import (
    Attempt,
    HandExecutor,
    OneTurn,
    Response,
    RoutingModel,
)
from tests.executors.support import ListSink

from swingshift.executors.rl.task import EpisodeRequest
from swingshift.executors.runtime.changes import Changes
from swingshift.executors.runtime.client import GenerationClient, RequestFailedError
from swingshift.executors.runtime.deadlines import Deadlines
from swingshift.executors.runtime.load_balancer import Lease, LoadBalancer
from swingshift.executors.runtime.message_queue import MessageQueue
from swingshift.executors.runtime.recorder import Recorder
from swingshift.executors.simulated.loop import VirtualLoop
from swingshift.sdk.events import Event, Rebalanced, RequestReturned, RequestRouted
from swingshift.sdk.executor import (
    Episode,
    ExecutorError,
    FinishReason,
    Prompt,
    ReplicaLostError,
    Sample,
    VersionSpan,
)
from swingshift.sdk.policy import RebalanceScope

BUDGET = 8
RETRIES = 1
QUEUE_CAPACITY = 2
MOST_PRODUCERS = 16
A_MOMENT_S = 0.001
NEVER_S = 1e9
REPLICAS = ("a", "b", "c", "d")
SESSIONS = ("s", "t")
OVERSHOOT = 1.25


class SharingModel(RoutingModel):
    """The model, with the most that a session may leave its replica with."""

    def expected(self, session: str | None) -> str:
        """Return a session's replica while that has room, else the least loaded."""
        home = super().expected(session)
        loads = {name: len(self.requests_on(name)) for name in self.epochs}
        fair = (sum(loads.values()) + 1) / len(loads)
        return home if loads[home] + 1 <= math.ceil(OVERSHOOT * fair) else super().expected(None)


class RoutingMachine(RuleBasedStateMachine):
    """The rules. Subclasses put faulty parts in place of the real ones.

    Attributes:
        producers: Tasks that make a sample and put it, by sample, until they are done.
        offered: Samples made and not taken, in order: in the queue, or waiting for room.
        direct: Leases held without a client.
        spent: Those of them that were given back.
        moving: Leases that a redistribution waits for.
    """

    balancer_type = LoadBalancer
    queue_type = MessageQueue
    executor_type = HandExecutor

    def __init__(self) -> None:
        super().__init__()
        self.loop = VirtualLoop()
        self.model = SharingModel()
        self.sink = ListSink()
        self.heard = self.asked = self.numbers = 0
        self.responses: dict[str, Response] = {}
        self.producers: dict[int, asyncio.Task[None]] = {}
        self.offered: list[int] = []
        self.direct: list[Lease] = []
        self.spent: list[Lease] = []
        self.moving: list[Lease] = []
        self.busy: dict[str, bool] = {}
        self.loop.run_until_complete(self._build())

    async def _build(self) -> None:
        self.executor = self.executor_type()
        self.balancer = self.balancer_type()
        self.balancer.on_busy = self.busy.__setitem__
        self.queue = self.queue_type(QUEUE_CAPACITY, Changes())
        self.recorder = Recorder()
        self.recorder.subscribe(self.sink)
        self.client = GenerationClient(
            self.executor,
            self.balancer,
            self.recorder,
            Deadlines(expiry_is_fault=True),
            max_response_tokens=BUDGET,
            request_deadline_s=NEVER_S,
            request_retries=RETRIES,
        )

    def teardown(self) -> None:
        """End every task, so that none is left to complain."""

        async def end() -> None:
            tasks = asyncio.all_tasks() - {asyncio.current_task()}
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self.client.close()

        self.loop.run_until_complete(end())
        self.loop.close()

    @initialize(replicas=st.integers(0, len(REPLICAS)), requests=st.integers(0, 6))
    def start(self, replicas: int, requests: int) -> None:
        """Some replicas are in routing, and some requests on them."""
        for name in REPLICAS[:replicas]:
            self._let_in(name)
        self._begin(requests)

    @rule(name=st.sampled_from(REPLICAS))
    def enter(self, name: str) -> None:
        """A replica enters routing, perhaps again."""
        if name not in self.model.epochs:
            self._let_in(name)
            self._settle()

    @rule(name=st.sampled_from(REPLICAS), returns=st.booleans())
    def leave(self, name: str, returns: bool) -> None:
        """A replica leaves, perhaps to come back at the same moment; its requests end later."""
        assert self.balancer.remove(name) == self.model.epochs.pop(name, None)
        assert name not in self.balancer.replicas
        if returns:
            self._let_in(name)
        self._settle()

    @precondition(lambda self: len(self.producers) < MOST_PRODUCERS)
    @rule(count=st.integers(1, 6))
    def begin(self, count: int) -> None:
        """Requests begin, each of a sample of its own."""
        self._begin(count)

    @precondition(lambda self: self.executor.held)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        """A response ends by itself, perhaps at its budget."""
        attempt = self._draw_held(data)
        room = attempt.request.max_new_tokens
        new_tokens = data.draw(st.integers(1, room))
        reason = FinishReason.LENGTH if new_tokens == room else FinishReason.STOP
        self._answer(attempt, new_tokens, reason)
        self._settle()

    @precondition(lambda self: self.executor.held)
    @rule(data=st.data())
    def interrupt(self, data: st.DataObject) -> None:
        """A response comes back with none, a part or all of what it may have."""
        attempt = self._draw_held(data)
        new_tokens = data.draw(st.integers(0, attempt.request.max_new_tokens))
        self._answer(attempt, new_tokens, FinishReason.ABORT)
        self._settle()

    @precondition(lambda self: self.executor.held)
    @rule(data=st.data(), lost=st.booleans())
    def fail(self, data: st.DataObject, lost: bool) -> None:
        """An attempt fails."""
        attempt = self._draw_held(data)
        self.responses[attempt.request.request_id].break_off("lost" if lost else "failed")
        error = ReplicaLostError if lost else ExecutorError
        attempt.future.set_exception(error("by a rule"))
        self._settle()

    @precondition(lambda self: self.producers)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        """A producer is cancelled, wherever it waits: for a replica, its response, or room."""
        number = data.draw(st.sampled_from(sorted(self.producers)))
        if str(number) in self.executor.held:
            self.responses[str(number)].break_off("cancelled")
        if number in self.offered:
            self.offered.remove(number)
        self.model.sticky.pop(str(number), None)
        self.producers.pop(number).cancel()
        self._settle()

    @rule(session=st.sampled_from((None, *SESSIONS)))
    def acquire(self, session: str | None) -> None:
        """Somebody takes a lease."""
        self._acquire(f"d{self._number()}", session)

    @precondition(lambda self: self.direct)
    @rule(data=st.data())
    def acquire_again(self, data: st.DataObject) -> None:
        """A request gives its lease back and takes one, and then the first comes back again."""
        lease = data.draw(st.sampled_from(self.direct))
        self._release(lease)
        self._acquire(lease.request_id, None)
        assert not self.balancer.release(lease)
        self._settle()

    @precondition(lambda self: self.direct)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        """A lease is given back, perhaps after its replica left or came back."""
        self._release(data.draw(st.sampled_from(self.direct)))
        self._settle()

    @precondition(lambda self: self.spent)
    @rule(data=st.data())
    def release_again(self, data: st.DataObject) -> None:
        """A lease that was given back counts no second time."""
        assert not self.balancer.release(data.draw(st.sampled_from(self.spent)))
        self._settle()

    @rule(session=st.sampled_from(SESSIONS))
    def forget(self, session: str) -> None:
        """A session ends."""
        self.balancer.forget(session)
        self.model.sticky.pop(session, None)

    @precondition(lambda self: self.model.epochs and not self.model.held)
    @rule()
    def move_all(self) -> None:
        """Every request is told to stop and routed anew."""
        moves = {name: self.balancer.requests_on(name) for name in self.balancer.replicas}
        self.balancer.forget_all()
        self.model.sticky.clear()
        self._move(RebalanceScope.ALL, moves)

    @precondition(lambda self: self.model.epochs and not self.model.held)
    @rule()
    def move_excess(self) -> None:
        """What is above the fair share is told to stop and routed anew."""
        moves = self.balancer.excess()
        self.model.check_excess(moves)
        for request in chain.from_iterable(moves.values()):
            self.balancer.forget(request)
            self.model.sticky.pop(request, None)
        self._move(RebalanceScope.EXCESS, moves)

    @precondition(lambda self: self.executor.told)
    @rule(data=st.data())
    def let_go(self, data: st.DataObject) -> None:
        """Requests that were told to stop do, one of them or all."""
        told = list(self.executor.told)
        for name in data.draw(st.sampled_from([told, *([name] for name in told)])):
            if name in self.executor.held:
                self._answer(self.executor.held[name], 0, FinishReason.ABORT)
            else:
                self._release(next(lease for lease in self.direct if lease.request_id == name))
        self._settle()

    @rule()
    def put(self) -> None:
        """A sample comes that was made elsewhere."""
        number = self._number()
        episode = Episode(handle="", tokens=1, spans=(VersionSpan(0, 1),), attempts=1)
        self._start(number, self._offer(number, episode))
        self._settle()

    @rule(data=st.data())
    def take(self, data: st.DataObject) -> None:
        """The oldest samples are taken, and producers that wait have room."""
        count = data.draw(st.integers(0, len(self.queue)))
        taken = [sample.sample_id for sample in self.queue.take(count)]
        assert taken == self.offered[:count]
        del self.offered[:count]
        self._settle()

    @invariant()
    def loads_agree(self) -> None:
        """Replicas, the requests on each, in order, and who is busy are those of the model."""
        assert set(self.balancer.replicas) == set(self.model.epochs)
        for name in REPLICAS:
            requests = self.model.requests_on(name)
            assert self.balancer.requests_on(name) == requests
            assert self.balancer.load(name) == len(requests)
            if name in self.model.epochs:
                assert self.busy[name] is bool(requests)
        total = sum(len(self.model.requests_on(name)) for name in REPLICAS)
        assert self.balancer.total_load == total

    @invariant()
    def nobody_waits_for_what_is_there(self) -> None:
        """Requests wait only where nothing is routed, and redistribution only for live leases."""
        unanswered = {str(number) for number in self.producers if number not in self.offered}
        if self.model.epochs and not self.model.held:
            assert unanswered == set(self.executor.held)
        assert self.model.held is any(map(self.model.is_live, self.moving))

    @invariant()
    def the_queue_is_as_full_as_it_can_be(self) -> None:
        """Never above its capacity, and never with room while a producer waits."""
        assert len(self.queue) == min(QUEUE_CAPACITY, len(self.offered))
        assert self.queue.total_put <= self.numbers

    def _begin(self, count: int) -> None:
        for _ in range(count):
            number = self._number()
            self.responses[str(number)] = Response(str(number), BUDGET)
            self._start(number, self._respond(number))
        self._settle()

    def _number(self) -> int:
        self.numbers += 1
        return self.numbers

    def _let_in(self, name: str) -> None:
        self.busy[name] = False
        self.model.add(name, self.balancer.add(name))

    def _draw_held(self, data: st.DataObject) -> Attempt:
        return self.executor.held[data.draw(st.sampled_from(sorted(self.executor.held)))]

    def _answer(self, attempt: Attempt, new_tokens: int, reason: FinishReason) -> None:
        response = self.responses[attempt.request.request_id]
        attempt.future.set_result(response.end(new_tokens, reason))

    def _acquire(self, request: str, session: str | None) -> None:
        lease = self.balancer.try_acquire(request, session)
        assert (lease is None) is (self.model.held or not self.model.epochs)
        if lease is not None:
            self.model.route(lease, session)
            self.direct.append(lease)

    def _release(self, lease: Lease) -> None:
        self.direct.remove(lease)
        self.executor.told.pop(lease.request_id, None)
        assert self.balancer.release(lease) is self.model.is_live(lease)
        self.model.give_back(lease)
        self.spent.append(lease)

    def _start(self, number: int, work: Coroutine[object, object, None]) -> None:
        self.producers[number] = self.loop.create_task(work)

    async def _respond(self, number: int) -> None:
        request = EpisodeRequest(str(number), Prompt(number, 10, str(number)), 0)
        await self._offer(number, await self.client(OneTurn(), request))

    async def _offer(self, number: int, episode: Episode) -> None:
        self.offered.append(number)
        await self.queue.put(
            Sample(
                sample_id=number,
                prompt=Prompt(number, 10, str(number)),
                episodes=(episode,),
                rewards=(0.0,),
            )
        )

    def _move(self, scope: RebalanceScope, moves: Mapping[str, tuple[str, ...]]) -> None:
        """Route nothing until the requests have let go."""
        self.balancer.hold()
        self.model.held = True
        self.moving = [
            Lease(name, self.model.epochs[name], request)
            for name, requests in moves.items()
            for request in requests
        ]
        self.redistribution = self.loop.create_task(self._redistribute(scope, moves))
        self._settle()

    async def _redistribute(
        self, scope: RebalanceScope, moves: Mapping[str, tuple[str, ...]]
    ) -> None:
        for name, requests in moves.items():
            await self.executor.abort(name, requests)
        for name, requests in moves.items():
            await self.balancer.released(name, requests)
        self.balancer.open()
        moved = {name: len(requests) for name, requests in moves.items()}
        self.recorder.emit(Rebalanced(scope.value, moved))

    def _settle(self) -> None:
        """Let everything react, and check what it did."""
        self.loop.run_until_complete(asyncio.sleep(A_MOMENT_S))
        news, self.heard = self.sink.events[self.heard :], len(self.sink.events)
        for event in news:
            self._hear(event)
        for number, task in list(self.producers.items()):
            if task.done():
                del self.producers[number]
                self._check_end(number, task)

    def _hear(self, event: Event) -> None:
        if isinstance(event, Rebalanced):
            assert not any(map(self.model.is_live, self.moving))
            self.model.held, self.moving = False, []
        elif isinstance(event, RequestRouted):
            self.model.route(Lease(event.replica, event.epoch, event.request), event.request)
            self.responses[event.request].check_routed(event, self.executor.asked[self.asked])
            self.asked += 1
        elif isinstance(event, RequestReturned):
            self.model.give_back(Lease(event.replica, event.epoch, event.request))
            if not self.responses[event.request].check_returned(event):
                self.model.sticky.pop(event.request, None)

    def _check_end(self, number: int, task: asyncio.Task[None]) -> None:
        response = self.responses.get(str(number))
        error = task.exception()
        if isinstance(error, RequestFailedError):
            assert response is not None
            assert response.failures == RETRIES + 1
        elif error is not None:
            raise error

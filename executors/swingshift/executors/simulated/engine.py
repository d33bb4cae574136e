"""One simulated inference engine: continuous batching on a virtual clock, event by event.

All running requests gain one token per decode step, so a replica needs one number for the progress
of all of them: the decode steps it has done. A request that joins at step s and wants n tokens
ends at step s + n. Between two events (arrival, finish, abort, pause) the batch is constant and
the step time grows linearly with the context, so the time to the next finish is a closed form.
Prefill stops decoding for its duration. Where a prefill draws the first token, the request is that
far when it joins, and a response of one token may end with whatever happens next.
"""

from __future__ import annotations

import asyncio
import heapq
import math
from collections import deque
from collections.abc import Callable, Sequence

from swingshift.executors.simulated.costs.decode import EngineCosts, seconds_for, steps_in
from swingshift.executors.simulated.prefix_cache import PrefixCache
from swingshift.sdk.executor import (
    ExecutorError,
    FinishReason,
    Generation,
    GenerationRequest,
    Progress,
    ReplicaLostError,
    VersionSpan,
)

# Steps are floats; a request is done when it is this close to its last token, and the KV cache full
# when it is this close to its last place for each request.
_STEP_TOLERANCE = 1e-6
# Share of the KV cache that an admission leaves free beside others, as vLLM's block manager does:
# without it the request just preempted would come back at once, and nothing would move.
_WATERMARK = 0.01


class _Running:
    """A request the engine holds, waiting or decoding."""

    __slots__ = (
        "begun",
        "context",
        "done",
        "end_step",
        "future",
        "ready_s",
        "request",
        "spans",
        "start_step",
        "wanted",
    )

    def __init__(
        self,
        request: GenerationRequest,
        wanted: int,
        future: asyncio.Future[Generation],
        ready_s: float,
    ) -> None:
        self.request = request
        # clock time from which it can be admitted
        self.ready_s = ready_s
        # context before this attempt
        self.begun = request.prompt.tokens + request.generated_tokens + request.observed_tokens
        self.wanted = wanted
        self.future = future
        # tokens of this attempt generated before the latest admission
        self.done = 0
        self.spans: list[VersionSpan] = []
        self.start_step = 0.0
        self.end_step = 0.0
        self.context = 0


class SimulatedEngine:
    """The requests of one replica and their progress."""

    def __init__(
        self,
        replica: str,
        costs: EngineCosts,
        *,
        kv_capacity_tokens: int,
        max_running: int,
        response_tokens: Callable[[GenerationRequest], int],
        prefixes: PrefixCache | None = None,
    ) -> None:
        """Make an engine that is paused and empty.

        Args:
            replica: Its name, for errors.
            costs: What steps and prefills take.
            kv_capacity_tokens: Context that fits; beyond it requests wait, and the newest is
                preempted.
            max_running: Requests decoded at once.
            response_tokens: Generated length at which a turn of a response ends by itself.
            prefixes: Keeps the context of what leaves, for when it comes back; None for nothing.
        """
        self._replica = replica
        self._costs = costs
        self._overhead_s = costs.request_overhead_s
        self._prefill_fixed_s = costs.prefill_fixed_s
        self._prefill_draws_token = costs.prefill_draws_token
        self._kv_capacity = kv_capacity_tokens
        self._admission_limit = (1.0 - _WATERMARK) * kv_capacity_tokens
        self._max_running = max_running
        self._response_tokens = response_tokens
        self._prefixes = prefixes
        self._loop = asyncio.get_running_loop()
        self._running: dict[str, _Running] = {}
        self._waiting: deque[_Running] = deque()
        # (last step, order of admission, request); one whose request has another last step by now
        # is stale and stays until it surfaces
        self._finishes: list[tuple[float, int, _Running]] = []
        self._admissions = 0
        self._step = 0.0
        self._context = 0.0
        self._prefill_s = 0.0
        self._updated_s = self._loop.time()
        self._paused = True
        self._lost = False
        self._draining: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_dirty = False
        self._version = -1
        # (version, step at which it began), oldest first: what spans are cut from
        self._versions: list[tuple[int, float]] = []
        self.prefilled_again_tokens = 0

    @property
    def is_lost(self) -> bool:
        """Whether the engine is gone for good."""
        return self._lost

    @property
    def progress(self) -> Progress:
        """Requests decoding and waiting, and the context they hold; looking changes nothing."""
        batch = len(self._running)
        context = self._context
        decoded_s = self._loop.time() - self._updated_s - self._prefill_s
        if batch and not self._paused and decoded_s > 0.0:
            context += batch * steps_in(self._costs.step(batch, context), decoded_s)
        return Progress(batch, len(self._waiting), int(context))

    async def generate(self, request: GenerationRequest) -> Generation:
        """Hold a request until it ends; cancelling drops it.

        Raises:
            ReplicaLostError: The engine is gone, or was lost meanwhile.
            ExecutorError: The engine has no weights yet.
        """
        if self._lost:
            raise ReplicaLostError(f"replica {self._replica} is gone")
        if not self._versions:
            raise ExecutorError(f"replica {self._replica} has no weights; sync it first")
        length = self._response_tokens(request) - request.generated_tokens
        wanted = max(1, min(length, request.max_new_tokens))
        ready_s = self._loop.time() + self._overhead_s
        entry = _Running(request, wanted, self._loop.create_future(), ready_s)
        self._waiting.append(entry)
        self._mark_dirty()
        try:
            return await entry.future
        except asyncio.CancelledError:
            self._advance()
            self._drop(entry)
            raise

    def abort(self, request_ids: Sequence[str]) -> None:
        """Return the named requests with what they have."""
        self._advance()
        # whoever has its last token ends by itself
        self._finish_due()
        for request_id in request_ids:
            entry = self._running.get(request_id)
            if entry is not None:
                self._leave(entry)
                if self._prefixes is not None:
                    self._remember(entry, self._prefixes)
                self._finish(entry, FinishReason.ABORT)
        wanted = set(request_ids)
        queued = [entry for entry in self._waiting if entry.request.request_id in wanted]
        for entry in queued:
            self._waiting.remove(entry)
            self._finish(entry, FinishReason.ABORT)
        self._mark_dirty()

    def abort_all(self) -> None:
        """Return every request with what it has."""
        self.abort([*self._running, *(entry.request.request_id for entry in self._waiting)])

    def lose(self) -> None:
        """Fail every request: the engine is gone."""
        for entry in (*self._running.values(), *self._waiting):
            if not entry.future.done():
                error = ReplicaLostError(f"replica {self._replica} is gone")
                entry.future.set_exception(error)
        self._running.clear()
        self._waiting.clear()
        self._finishes.clear()
        self._context = self._prefill_s = 0.0
        self._paused = self._lost = True
        self._end_drain()
        self._mark_dirty()

    def pause(self) -> None:
        """Stop decoding; requests keep their place."""
        self._advance()
        self._paused = True
        self._mark_dirty()

    async def drain(self) -> None:
        """Admit nothing and return when the running requests have ended, or it is resumed."""
        if not self._running or self._paused:
            self.pause()
            return
        if self._draining is None:
            self._draining = self._loop.create_future()
        await asyncio.shield(self._draining)

    def resume(self) -> None:
        """Decode again."""
        self._advance()
        self._paused = False
        self._end_drain()
        self._mark_dirty()

    def set_version(self, version: int) -> None:
        """Take new weights: what is in the KV cache is computed again under them."""
        self._advance()
        oldest = min((entry.start_step for entry in self._running.values()), default=self._step)
        kept = [mark for mark in self._versions if mark[1] > oldest]
        before = [mark for mark in self._versions if mark[1] <= oldest]
        self._versions = [*before[-1:], *kept, (version, self._step)]
        if self._prefixes is not None:
            # of the same version too: the cache was dropped with the memory that held it
            self._prefixes.clear()
        if version != self._version:
            self._version = version
            if self._running:
                self._prefill_s += self._prefill_fixed_s
            for entry in self._running.values():
                tokens = entry.context + int(self._step - entry.start_step)
                self._prefill_s += self._costs.prefill_s(tokens)
                self.prefilled_again_tokens += tokens
        self._mark_dirty()

    def _advance(self) -> None:
        """Bring progress up to now."""
        now_s = self._loop.time()
        elapsed_s = now_s - self._updated_s
        self._updated_s = now_s
        batch = len(self._running)
        if elapsed_s <= 0.0 or self._paused or not batch:
            return
        if self._prefill_s >= elapsed_s:
            self._prefill_s -= elapsed_s
            return
        elapsed_s -= self._prefill_s
        self._prefill_s = 0.0
        steps = steps_in(self._costs.step(batch, self._context), elapsed_s)
        self._step += steps
        self._context += steps * batch

    def _mark_dirty(self) -> None:
        # several changes of one moment, such as the responses of one sample, cost one rescheduling
        if not self._is_dirty:
            self._is_dirty = True
            self._loop.call_soon(self._reschedule)

    def _reschedule(self) -> None:
        self._is_dirty = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._advance()
        self._finish_due()
        if self._draining is not None and not self._running:
            self._paused = True
            self._end_drain()
        if self._paused:
            return
        if self._draining is None:
            self._admit()
        due_s = self._next_admission_s()
        batch = len(self._running)
        if batch:
            steps = self._steps_to_next_event(batch)
            cost = self._costs.step(batch, self._context)
            delay_s = self._prefill_s + seconds_for(cost, steps)
            due_s = min(due_s, self._updated_s + delay_s)
        if due_s < math.inf:
            self._timer = self._loop.call_at(due_s, self._reschedule)

    def _next_admission_s(self) -> float:
        """Return when the first in line will be ready; never if that is not what it waits for."""
        is_open = self._draining is None and len(self._running) < self._max_running
        if is_open and self._waiting and self._waiting[0].ready_s > self._updated_s:
            return self._waiting[0].ready_s
        return math.inf

    def _steps_to_next_event(self, batch: int) -> float:
        finishes = self._finishes
        # every running request has an entry, so one that is not stale is found
        while finishes[0][0] != finishes[0][2].end_step:
            heapq.heappop(finishes)
        to_finish = finishes[0][0] - self._step
        to_overflow = (self._kv_capacity - self._context) / batch
        return to_overflow if to_overflow < to_finish and batch > 1 else to_finish

    def _finish_due(self) -> None:
        due = self._step + _STEP_TOLERANCE
        finishes = self._finishes
        while finishes and finishes[0][0] <= due:
            end_step, _, entry = heapq.heappop(finishes)
            if end_step == entry.end_step:
                self._leave(entry)
                if self._prefixes is not None:
                    self._remember(entry, self._prefixes)
                budget = entry.request.max_new_tokens
                reason = FinishReason.LENGTH if entry.wanted == budget else FinishReason.STOP
                self._finish(entry, reason)
        while len(self._running) > 1 and self._is_full():
            self._preempt()

    def _is_full(self) -> bool:
        room = self._kv_capacity - self._context
        return room <= _STEP_TOLERANCE * len(self._running)

    def _end_drain(self) -> None:
        if self._draining is not None:
            self._draining.set_result(None)
            self._draining = None

    def _admit(self) -> None:
        waiting, running = self._waiting, self._running
        before = self._admissions
        while waiting and len(running) < self._max_running:
            entry = waiting[0]
            if entry.ready_s > self._updated_s:
                break
            request = entry.request
            context = entry.begun + entry.done
            # one request always fits: it alone could not be helped by waiting
            if running and self._context + context > self._admission_limit:
                break
            waiting.popleft()
            cached = 0 if self._prefixes is None else self._recall(entry, self._prefixes)
            if request.resume_from is not None or entry.done:
                self.prefilled_again_tokens += context - cached - _fresh_tokens(entry)
            if self._prefill_draws_token:
                _append_span(entry.spans, self._versions[-1][0], 1)
                entry.done += 1
            entry.context = context
            entry.start_step = self._step
            entry.end_step = self._step + (entry.wanted - entry.done)
            running[request.request_id] = entry
            self._context += context
            self._prefill_s += self._costs.prefill_s(context - cached, cached)
            self._admissions += 1
            heapq.heappush(self._finishes, (entry.end_step, self._admissions, entry))
        if self._admissions > before:
            self._prefill_s += self._prefill_fixed_s

    def _leave(self, entry: _Running) -> None:
        """Take a request out of the batch and book the tokens it gained there."""
        del self._running[entry.request.request_id]
        gained = min(
            int(self._step - entry.start_step + _STEP_TOLERANCE), entry.wanted - entry.done
        )
        self._context -= entry.context + (self._step - entry.start_step)
        if not self._running:
            self._context = self._prefill_s = 0.0
        if gained > 0:
            self._add_spans(entry, gained)
            entry.done += gained
        # makes its entry in the heap of finishes stale
        entry.end_step = -1.0

    def _add_spans(self, entry: _Running, gained: int) -> None:
        marks = self._versions
        if len(marks) == 1 or marks[-1][1] <= entry.start_step:
            _append_span(entry.spans, marks[-1][0], gained)
            return
        begins = [int(max(0.0, step - entry.start_step)) for _, step in marks]
        ends = [*begins[1:], gained]
        for (version, _), begin, end in zip(marks, begins, ends, strict=True):
            tokens = min(end, gained) - min(begin, gained)
            if tokens > 0:
                _append_span(entry.spans, version, tokens)

    def _remember(self, entry: _Running, prefixes: PrefixCache) -> None:
        room = self._kv_capacity - self._context
        prefixes.put(entry.request.request_id, entry.begun + entry.done, room)

    def _recall(self, entry: _Running, prefixes: PrefixCache) -> int:
        """Return the tokens of a request's context that need not be computed."""
        room = self._kv_capacity - self._context
        # a response that began again elsewhere may be shorter than it was here
        return min(entry.begun, prefixes.take(entry.request.request_id, room))

    def _preempt(self) -> None:
        """Make the newest request wait, first in line; it will be prefilled again."""
        entry = self._running[next(reversed(self._running))]
        self._leave(entry)
        self._waiting.appendleft(entry)

    def _drop(self, entry: _Running) -> None:
        if self._running.get(entry.request.request_id) is entry:
            self._leave(entry)
        elif entry in self._waiting:
            self._waiting.remove(entry)
        self._mark_dirty()

    def _finish(self, entry: _Running, reason: FinishReason) -> None:
        if not entry.future.done():
            entry.future.set_result(
                Generation(entry.request.request_id, entry.done, reason, tuple(entry.spans))
            )


def _fresh_tokens(entry: _Running) -> int:
    """Return the tokens of a resumed context that no replica has computed before."""
    observation = entry.request.observation
    return 0 if entry.done or observation is None else observation.tokens


def _append_span(spans: list[VersionSpan], version: int, tokens: int) -> None:
    if spans and spans[-1].version == version:
        spans[-1] = VersionSpan(version, spans[-1].tokens + tokens)
    else:
        spans.append(VersionSpan(version, tokens))

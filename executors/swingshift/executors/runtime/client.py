"""One episode, whatever happens to the replicas: route, generate, on an abort resume elsewhere."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Literal, TypeAlias

import attrs

from swingshift.executors.rl.task import EpisodeRequest, EpisodeRestartError, Task
from swingshift.executors.runtime.deadlines import Deadlines, Watchdog
from swingshift.executors.runtime.load_balancer import Lease, LoadBalancer
from swingshift.executors.runtime.recorder import Recorder
from swingshift.sdk.errors import SwingshiftError
from swingshift.sdk.events import RequestReturned, RequestRouted
from swingshift.sdk.executor import (
    Episode,
    Executor,
    ExecutorError,
    FinishReason,
    Generation,
    GenerationRequest,
    Insertion,
    Observation,
    ReplicaLostError,
    VersionSpan,
)

_log = logging.getLogger(__name__)


class RequestFailedError(SwingshiftError):
    """A request failed more often than its retries allow."""


@attrs.frozen
class _Parts:
    """What all episodes of a client share; see there."""

    executor: Executor
    balancer: LoadBalancer
    recorder: Recorder
    deadlines: Deadlines
    budget: int
    deadline_s: float
    watchdog: Watchdog
    retries: int
    version_of: Callable[[str], int | None] | None
    dropped: list[str]


# An episode may ask for a turn; has one under way; has lost what it had, and its code has not ended
# yet; has ended.
_Stage: TypeAlias = Literal["ready", "busy", "lost", "over"]


class _Turns:
    """The `Turn` of one episode, from the first one to the end, whatever it begins anew on the way.

    A turn works on what its attempts have come to so far; ``latest`` follows when it has ended. A
    turn that raises leaves ``latest`` as it was, and so the response.

    Attributes:
        latest: The response up to the latest finished turn; None before the first.
        stage: Where the episode is.
    """

    __slots__ = (
        "_attempts",
        "_failures",
        "_handle",
        "_insertions",
        "_observation",
        "_observed",
        "_parts",
        "_request",
        "_room",
        "_spans",
        "_tokens",
        "latest",
        "stage",
    )

    # names what the executor has of the response
    _handle: str | None
    # generated tokens, and their versions
    _tokens: int
    _spans: tuple[VersionSpan, ...]
    # observations so far, their tokens, and the one that the executor does not have yet
    _insertions: tuple[Insertion, ...]
    _observed: int
    _observation: Observation | None
    # tokens that may still come
    _room: int

    def __init__(self, parts: _Parts, request: EpisodeRequest) -> None:
        self._parts = parts
        self._request = request
        self._handle = None
        self._attempts = 0
        self._failures = 0
        self.latest: Episode | None = None
        self.stage: _Stage = "ready"

    async def __call__(
        self, request: EpisodeRequest, observation: Observation | None = None
    ) -> Episode:
        """Generate one turn, on as many replicas as it takes."""
        if self.stage != "ready" or request != self._request:
            raise _refusal(self.stage, self._request, request)
        latest = self.latest
        if latest is None:
            if observation is not None:
                raise _too_early(request)
            self._begin()
        else:
            self._follow(latest, observation)
            if self._room <= 0:
                self.latest = attrs.evolve(latest, finish_reason=FinishReason.LENGTH)
                return self.latest
        self.stage = "busy"
        try:
            while True:
                generation = await self._attempt()
                if generation is not None:
                    self._extend(generation)
                    if generation.finish_reason is not FinishReason.ABORT or self._room <= 0:
                        break
        finally:
            if self.stage == "busy":
                self.stage = "ready"
        reason = generation.finish_reason
        self.latest = Episode(
            handle=generation.handle,
            tokens=self._tokens,
            spans=self._spans,
            attempts=self._attempts,
            turns=1 if latest is None else latest.turns + 1,
            insertions=self._insertions,
            finish_reason=FinishReason.LENGTH if reason is FinishReason.ABORT else reason,
        )
        return self.latest

    async def _attempt(self) -> Generation | None:
        parts, request = self._parts, self._request
        key, balancer = request.request_id, parts.balancer
        lease = balancer.try_acquire(key, key) or await balancer.acquire(key, key)
        if parts.version_of is not None and self._is_older_than(parts.version_of(lease.replica)):
            self._begin_under_new_weights(lease)
        self._attempts += 1
        parts.recorder.emit(
            RequestRouted(key, lease.replica, lease.epoch, self._attempts, self._tokens)
        )
        attempt = GenerationRequest(
            key,
            request.prompt,
            request.response_index,
            self._room,
            self._tokens,
            self._handle,
            0 if self.latest is None else self.latest.turns,
            self._observed,
            self._observation,
        )
        reason, tokens = "failed", 0
        watch = parts.watchdog.watch()
        try:
            with watch:
                generation = await parts.executor.generate(lease.replica, attempt)
            if not generation.new_tokens and not self._tokens:
                _refuse_nothing(generation, lease.replica)
            reason, tokens = generation.finish_reason.value, generation.new_tokens
            return generation
        except asyncio.CancelledError:
            reason = "cancelled"
            raise
        except TimeoutError:
            if not watch.is_expired:
                raise
            reason = "deadline"
            failure: SwingshiftError = parts.deadlines.expired(f"request {key}", parts.deadline_s)
        except ExecutorError as error:
            if isinstance(error, ReplicaLostError):
                reason = "lost"
            failure = error
        finally:
            balancer.release(lease)
            parts.recorder.emit(RequestReturned(key, lease.replica, lease.epoch, reason, tokens))
        self._count_failure(failure)
        return None

    def drop(self) -> None:
        """Leave what the executor has of the response to be discarded: nobody will ask for it."""
        if self._handle is not None:
            self._parts.dropped.append(self._handle)
            self._handle = None

    def _begin(self) -> None:
        """Start at the prompt, whatever there is.

        What the executor has is not dropped: the same request takes its place.
        """
        self._handle = self._observation = None
        self._tokens = self._observed = 0
        self._spans = self._insertions = ()
        self._room = self._parts.budget

    def _follow(self, latest: Episode, observation: Observation | None) -> None:
        """Go on after a turn; there is no room after one that ended for its length."""
        self._handle, self._observation = latest.handle, observation
        self._tokens, self._observed = latest.tokens, latest.observed_tokens
        self._spans, self._insertions = latest.spans, latest.insertions
        if observation is not None:
            self._observed += observation.tokens
            self._insertions += (Insertion(self._tokens, observation.tokens),)
        is_cut = latest.finish_reason is FinishReason.LENGTH
        self._room = 0 if is_cut else self._parts.budget - self._tokens - self._observed

    def _extend(self, generation: Generation) -> None:
        self._handle, self._observation = generation.handle, None
        self._tokens += generation.new_tokens
        self._room -= generation.new_tokens
        self._spans = _joined(self._spans, generation.spans)

    def _is_older_than(self, version: int | None) -> bool:
        return bool(self._spans) and self._spans[-1].version != version

    def _begin_under_new_weights(self, lease: Lease) -> None:
        if self.latest is None:
            self._begin()
            return
        self._parts.balancer.release(lease)
        self.stage = "lost"
        raise EpisodeRestartError(
            f"no replica has the parameter version of request {lease.request_id} any more"
        )

    def _count_failure(self, failure: SwingshiftError) -> None:
        key = self._request.request_id
        self._failures += 1
        # nothing is left on the replica that would be worth going back for
        self._parts.balancer.forget(key)
        if self._failures > self._parts.retries:
            raise RequestFailedError(
                f"request {key} failed {self._failures} times; last: {failure}"
            ) from failure
        _log.warning("request %s failed at attempt %d: %s", key, self._attempts, failure)
        if self.latest is None:
            self._begin()
            return
        self.stage = "lost"
        raise EpisodeRestartError(f"a turn of request {key} failed: {failure}") from failure


class GenerationClient:
    """The `EpisodeRunner` of the control plane, whose turns survive what happens to replicas."""

    def __init__(
        self,
        executor: Executor,
        balancer: LoadBalancer,
        recorder: Recorder,
        deadlines: Deadlines,
        *,
        max_response_tokens: int,
        request_deadline_s: float,
        request_retries: int,
        version_of: Callable[[str], int | None] | None = None,
    ) -> None:
        """Bind the parts.

        Args:
            executor: Generates.
            balancer: Routes.
            recorder: Hears of every attempt.
            deadlines: Rule for an attempt that does not end.
            max_response_tokens: Token budget of a response, cumulative over its turns and attempts;
                observations count.
            request_deadline_s: Seconds for one attempt on a replica; waiting for a replica does
                not count.
            request_retries: Failed attempts at a response that are repeated before it fails.
            version_of: Where a response must be of one parameter version: the version of a
                replica's weights. None lets responses go on under new weights.
        """
        self._parts = _Parts(
            executor,
            balancer,
            recorder,
            deadlines,
            max_response_tokens,
            request_deadline_s,
            Watchdog(request_deadline_s),
            request_retries,
            version_of,
            [],
        )

    async def __call__(self, task: Task, request: EpisodeRequest) -> Episode:
        """Run the task's code for one response, and again from the beginning if its turns are lost.

        Raises:
            RequestFailedError: It failed more than ``request_retries`` times.
        """
        turns = _Turns(self._parts, request)
        try:
            while True:
                try:
                    episode = await task.episode(turns, request)
                except Exception:
                    # whatever the task's code made of the error of its turn
                    if turns.stage != "lost":
                        raise
                else:
                    if turns.stage != "lost":
                        return episode
                turns.latest, turns.stage = None, "ready"
        except BaseException:
            turns.drop()
            raise
        finally:
            turns.stage = "over"
            self._parts.balancer.forget(request.request_id)

    def take_dropped(self) -> list[str]:
        """Return, once each, handles nobody will ask for; `Executor.discard` takes them."""
        dropped = self._parts.dropped.copy()
        self._parts.dropped.clear()
        return dropped

    def drop(self, episode: Episode) -> None:
        """Leave a finished response to be discarded: its sample was given up."""
        self._parts.dropped.append(episode.handle)

    def close(self) -> None:
        """Release the timer; called once, when no request is in flight any more."""
        self._parts.watchdog.close()


def _refusal(stage: _Stage, own: EpisodeRequest, asked: EpisodeRequest) -> Exception:
    """Return the error for a turn that must not be asked for."""
    name = f"the episode of request {own.request_id}"
    if stage == "lost":
        return EpisodeRestartError(f"{name} has lost what it had")
    if stage != "ready":
        when = "after its end" if stage == "over" else "before the last one ended"
        return RuntimeError(
            f"{name} asked for a turn {when}; its code has to await one turn after the other"
        )
    return ValueError(
        f"{name} asked for a turn of {asked}; pass on the request that the episode was given"
    )


def _too_early(request: EpisodeRequest) -> ValueError:
    return ValueError(
        f"the first turn of request {request.request_id} was given an observation; it goes between "
        "turns, and what comes before the first one belongs in the prompt"
    )


def _joined(
    before: tuple[VersionSpan, ...], after: tuple[VersionSpan, ...]
) -> tuple[VersionSpan, ...]:
    """Return the spans of two pieces of a response as those of one."""
    if not before or not after:
        return before or after
    last, first = before[-1], after[0]
    if last.version != first.version:
        return before + after
    both = VersionSpan(last.version, last.tokens + first.tokens)
    return (*before[:-1], both, *after[1:])


def _refuse_nothing(generation: Generation, replica: str) -> None:
    if generation.finish_reason is not FinishReason.ABORT:
        raise ExecutorError(f"{replica} ended a response without a token")

"""One response, whatever happens to the replicas: route, generate, on an abort resume elsewhere."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from swingshift.executors.rl.task import EpisodeRequest
from swingshift.executors.runtime.deadlines import Deadlines, Watchdog
from swingshift.executors.runtime.load_balancer import LoadBalancer
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
    ReplicaLostError,
    VersionSpan,
)

_log = logging.getLogger(__name__)


class RequestFailedError(SwingshiftError):
    """A request failed more often than its retries allow."""


class _Response:
    """What a response has so far, over all its attempts."""

    __slots__ = ("attempts", "failures", "handle", "spans", "tokens")

    def __init__(self) -> None:
        self.handle: str | None = None
        self.tokens = 0
        self.spans: list[VersionSpan] = []
        self.attempts = 0
        self.failures = 0

    def extend(self, generation: Generation) -> None:
        self.handle = generation.handle
        self.tokens += generation.new_tokens
        for span in generation.spans:
            if self.spans and self.spans[-1].version == span.version:
                self.spans[-1] = VersionSpan(span.version, self.spans[-1].tokens + span.tokens)
            else:
                self.spans.append(span)

    def is_older_than(self, version: int | None) -> bool:
        return bool(self.spans) and self.spans[-1].version != version

    def restart(self) -> None:
        """Forget what there is; tokens start again from the prompt."""
        self.handle, self.tokens, self.spans = None, 0, []


class GenerationClient:
    """The `Turn` that episodes call."""

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
            max_response_tokens: Token budget of a response, cumulative over its attempts.
            request_deadline_s: Seconds for one attempt on a replica; waiting for a replica does
                not count.
            request_retries: Failed attempts that are repeated before the request fails.
            version_of: Where a response must be of one parameter version: the version of a
                replica's weights. None lets responses go on under new weights.
        """
        self._executor = executor
        self._balancer = balancer
        self._recorder = recorder
        self._deadlines = deadlines
        self._budget = max_response_tokens
        self._deadline_s = request_deadline_s
        self._watchdog = Watchdog(request_deadline_s)
        self._retries = request_retries
        self._version_of = version_of

    async def __call__(self, request: EpisodeRequest) -> Episode:
        """Return one finished turn.

        Raises:
            RequestFailedError: It failed more than ``request_retries`` times.
        """
        response = _Response()
        try:
            while True:
                generation = await self._attempt(request, response)
                if generation is not None and self._is_finished(generation, response):
                    return Episode(
                        handle=generation.handle,
                        tokens=response.tokens,
                        spans=tuple(response.spans),
                        attempts=response.attempts,
                    )
        finally:
            self._balancer.forget(request.request_id)

    def close(self) -> None:
        """Release the timer; called once, when no request is in flight any more."""
        self._watchdog.close()

    def _is_finished(self, generation: Generation, response: _Response) -> bool:
        response.extend(generation)
        return generation.finish_reason is not FinishReason.ABORT or response.tokens >= self._budget

    async def _attempt(self, request: EpisodeRequest, response: _Response) -> Generation | None:
        key = request.request_id
        lease = self._balancer.try_acquire(key, key) or await self._balancer.acquire(key, key)
        response.attempts += 1
        if self._version_of is not None and response.is_older_than(self._version_of(lease.replica)):
            response.restart()
        self._recorder.emit(
            RequestRouted(key, lease.replica, lease.epoch, response.attempts, response.tokens)
        )
        attempt = GenerationRequest(
            key,
            request.prompt,
            request.response_index,
            self._budget - response.tokens,
            response.tokens,
            response.handle,
        )
        reason, tokens = "failed", 0
        watch = self._watchdog.watch()
        try:
            with watch:
                generation = await self._executor.generate(lease.replica, attempt)
            if not generation.new_tokens and not response.tokens:
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
            failure: SwingshiftError = self._deadlines.expired(f"request {key}", self._deadline_s)
        except ExecutorError as error:
            if isinstance(error, ReplicaLostError):
                reason = "lost"
            failure = error
        finally:
            self._balancer.release(lease)
            self._recorder.emit(RequestReturned(key, lease.replica, lease.epoch, reason, tokens))
        self._count_failure(key, response, failure)
        return None

    def _count_failure(self, key: str, response: _Response, failure: SwingshiftError) -> None:
        response.failures += 1
        response.restart()
        # nothing is left on the replica that would be worth going back for
        self._balancer.forget(key)
        if response.failures > self._retries:
            raise RequestFailedError(
                f"request {key} failed {response.failures} times; last: {failure}"
            ) from failure
        _log.warning("request %s failed at attempt %d: %s", key, response.attempts, failure)


def _refuse_nothing(generation: Generation, replica: str) -> None:
    if generation.finish_reason is not FinishReason.ABORT:
        raise ExecutorError(f"{replica} ended a response without a token")

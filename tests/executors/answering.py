"""A client on two replicas whose executor gives prepared answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import attrs
from tests.executors.support import (
    ListSink,
    ScriptedExecutor,
    lengths_of,
    small_config,
    small_options,
)

from swingshift.executors.rl.task import EpisodeRequest
from swingshift.executors.runtime.client import GenerationClient
from swingshift.executors.runtime.deadlines import Deadlines
from swingshift.executors.runtime.load_balancer import LoadBalancer
from swingshift.executors.runtime.recorder import Recorder
from swingshift.sdk.events import RequestReturned
from swingshift.sdk.executor import (
    FinishReason,
    Generation,
    GenerationRequest,
    Prompt,
    VersionSpan,
)

REQUEST = EpisodeRequest("5/0", Prompt(5, 20, "5"), 0)
HANG = None


def part(*spans: tuple[int, int], reason: FinishReason = FinishReason.ABORT) -> Generation:
    """Return what one attempt produced, by version and tokens; its handle counts the tokens."""
    tokens = sum(count for _, count in spans)
    return Generation(f"h{tokens}", tokens, reason, tuple(VersionSpan(*span) for span in spans))


def whole(*spans: tuple[int, int]) -> Generation:
    """Return an attempt that ended by itself."""
    return part(*spans, reason=FinishReason.STOP)


class Answering(ScriptedExecutor):
    """Gives prepared answers to ``generate``, one call after the other."""

    answers: list[Generation | BaseException | None]

    async def generate(self, replica: str, request: GenerationRequest) -> Generation:
        self.asked.append((replica, request))
        answer = self.answers.pop(0)
        if answer is HANG:
            await asyncio.get_running_loop().create_future()
        await asyncio.sleep(1.0)
        if isinstance(answer, BaseException):
            raise answer
        assert answer is not None
        return answer

    asked: list[tuple[str, GenerationRequest]]


@attrs.frozen
class Bench:
    """A client with everything around it."""

    client: GenerationClient
    executor: Answering
    balancer: LoadBalancer
    sink: ListSink

    def returned(self) -> list[tuple[str, int]]:
        """Return reason and tokens of every attempt."""
        return [(event.reason, event.new_tokens) for event in self.sink.of(RequestReturned)]


def bench(
    answers: Sequence[Generation | BaseException | None],
    *,
    budget: int = 100,
    retries: int = 1,
    virtual_time: bool = False,
    version_of: Callable[[str], int | None] | None = None,
) -> Bench:
    """Return a client on two replicas, a and b, with prepared answers."""
    config, options = small_config(), small_options()
    executor = Answering(config, options, lengths_of(config, options))
    executor.answers, executor.asked = list(answers), []
    balancer, recorder, sink = LoadBalancer(), Recorder(), ListSink()
    recorder.subscribe(sink)
    for name in ("a", "b"):
        balancer.add(name)
    client = GenerationClient(
        executor,
        balancer,
        recorder,
        Deadlines(expiry_is_fault=virtual_time),
        max_response_tokens=budget,
        request_deadline_s=60.0,
        request_retries=retries,
        version_of=version_of,
    )
    return Bench(client, executor, balancer, sink)

"""Promises about single requests: what they return, how they end early, how they go on."""

from __future__ import annotations

import asyncio

from swingshift.sdk.executor import (
    FinishReason,
    Generation,
    GenerationRequest,
    PauseMode,
    Progress,
)
from swingshift.sdk.testing.executor_checks.promise import BrokenPromise, Group, expect
from swingshift.sdk.testing.executor_checks.stage import Stage

GENERATE = Group("generate")
CONTINUED = Group("continued")
ABORT = Group("abort")
PROGRESS = Group("progress")

_NOTHING = Progress(running=0, waiting=0, tokens=0)


@GENERATE.promise("each request ends by itself or at its budget, with a handle of its own")
async def _answers_each(stage: Stage) -> None:
    replica = await stage.serving()
    flights = [stage.send(replica, stage.request(number)) for number in range(2)]
    answers = [await flight.answer for flight in flights]
    for answer in answers:
        expect(answer.new_tokens > 0, f"a response has no tokens: {answer}")
        expect(
            answer.finish_reason in (FinishReason.STOP, FinishReason.LENGTH),
            f"nobody aborted a request, and it came to {answer}",
        )
    handles = [answer.handle for answer in answers]
    expect(len(set(handles)) == len(handles), f"two responses have one handle: {handles}")


@GENERATE.promise("a response stops at its budget, with the reason LENGTH")
async def _keeps_budget(stage: Stage) -> None:
    request = stage.request()
    answer = await stage.executor.generate(await stage.serving(), request)
    _expect_at_budget(request.max_new_tokens, 0, answer)


@GENERATE.promise("the spans, in order, sum to the new tokens, and none is empty")
async def _spans_sum(stage: Stage) -> None:
    replica = await stage.serving()
    _expect_spans(await stage.executor.generate(replica, stage.request()))
    _, part = await stage.part(replica)
    _expect_spans(part)


@GENERATE.promise("a cancelled call ends at once, and its id can be used again")
async def _cancelled(stage: Stage) -> None:
    replica = await stage.serving()
    (flight,) = await stage.under_way(replica)
    flight.answer.cancel()
    expect(
        await stage.until(flight.answer.done) and flight.answer.cancelled(),
        "generate was cancelled while it waited, and did not raise CancelledError",
    )
    again = await stage.executor.generate(replica, flight.request)
    expect(
        again.finish_reason is not FinishReason.ABORT,
        f"the same request, sent again, came to {again}",
    )


@GENERATE.promise("the engine itself drops a request whose call is cancelled")
async def _cancelled_in_engine(stage: Stage) -> None:
    replica = await stage.serving()
    (flight,) = await stage.under_way(replica)
    flight.answer.cancel()
    await asyncio.gather(flight.answer, return_exceptions=True)
    await stage.moment()
    held = await stage.see.in_flight(replica)
    expect(held == 0, f"a moment after the call was cancelled the engine holds {held} requests")


@CONTINUED.promise("a response that goes on keeps to the budget it has left, and reaches it")
async def _keeps_budget_left(stage: Stage) -> None:
    replica = await stage.serving()
    request, part = await stage.part(replica)
    rest = _rest(request, part)
    answer = await stage.executor.generate(replica, rest)
    _expect_at_budget(rest.max_new_tokens, part.new_tokens, answer)


@CONTINUED.promise("a response can go on at another replica")
async def _elsewhere(stage: Stage) -> None:
    here, there = await stage.several_serving(2)
    request, part = await stage.part(here)
    answer = await stage.executor.generate(there, _rest(request, part))
    expect(
        answer.finish_reason is not FinishReason.ABORT and answer.new_tokens > 0,
        f"{part.new_tokens} tokens of {here}, continued by {there}, came to {answer}",
    )


@CONTINUED.promise("the handle of a response that went on names all of its tokens")
async def _keeps_payload(stage: Stage) -> None:
    replica = await stage.serving()
    request, part = await stage.part(replica)
    held = [await stage.see.payload_tokens(part.handle)]
    answer = await stage.executor.generate(replica, _rest(request, part))
    held.append(await stage.see.payload_tokens(answer.handle))
    tokens = [part.new_tokens, part.new_tokens + answer.new_tokens]
    expect(held == tokens, f"after each attempt there are {tokens} tokens; the payload has {held}")


@ABORT.promise("a request under way returns the tokens it has, with the reason ABORT")
async def _returns_part(stage: Stage) -> None:
    _, part = await stage.part(await stage.serving())
    expect(
        part.finish_reason is FinishReason.ABORT and 0 < part.new_tokens < stage.max_new_tokens,
        f"aborted under way, with a budget of {stage.max_new_tokens} tokens, it came to {part}",
    )


@ABORT.promise("a request not yet begun returns nothing, with the reason ABORT")
async def _returns_waiting(stage: Stage) -> None:
    replica = await stage.serving()
    await stage.executor.pause([replica], PauseMode.ABORT)
    flight = stage.send(replica, stage.request())
    await stage.moment()
    await stage.executor.abort(replica, [flight.request.request_id])
    answer = await flight.answer
    expect(
        answer.finish_reason is FinishReason.ABORT and answer.new_tokens == 0 and not answer.spans,
        f"aborted while its replica was paused, it came to {answer}",
    )


@ABORT.promise("requests that are not named go on")
async def _spares_others(stage: Stage) -> None:
    replica = await stage.serving()
    named, other = await stage.under_way(replica, 2)
    await stage.executor.abort(replica, [named.request.request_id])
    answer = await other.answer
    expect(
        answer.finish_reason is not FinishReason.ABORT,
        f"{named.request.request_id} was aborted, and {other.request.request_id} came to {answer}",
    )


@ABORT.promise("an id that is unknown, or aborted or ended already, is ignored")
async def _ignores_unknown(stage: Stage) -> None:
    replica = await stage.serving()
    request, _ = await stage.part(replica)
    await stage.executor.abort(replica, ["nobody"])
    await stage.executor.abort(replica, [request.request_id])


@ABORT.promise("returns when the engine itself has let go")
async def _acknowledged(stage: Stage) -> None:
    replica = await stage.serving()
    flights = await stage.under_way(replica, 2)
    await stage.executor.abort(replica, [flight.request.request_id for flight in flights])
    held = await stage.see.in_flight(replica)
    expect(held == 0, f"abort returned while the engine held {held} of its {len(flights)} requests")


@PROGRESS.promise("counts the requests that a replica holds, and the tokens of those that run")
async def _counts(stage: Stage) -> None:
    replica = await stage.serving()
    flights = await stage.under_way(replica, 2)

    def shows(requests: int) -> bool:
        seen = stage.executor.progress(replica)
        return seen.running + seen.waiting == requests and bool(seen.tokens) == bool(requests)

    if not await stage.until(lambda: shows(2)):
        raise BrokenPromise(f"2 requests are under way; it says {stage.executor.progress(replica)}")
    await stage.executor.abort(replica, [flight.request.request_id for flight in flights])
    if not await stage.until(lambda: shows(0)):
        raise BrokenPromise(f"no request is left; it says {stage.executor.progress(replica)}")


@PROGRESS.promise("is zero for a replica that is not awake")
async def _zero_when_not_awake(stage: Stage) -> None:
    replica = await stage.serving()
    await stage.under_way(replica)
    await stage.executor.kill([replica])
    await _expect_nothing(stage, replica, "killed")
    for sleeper in await stage.sleepers():
        await _expect_nothing(stage, sleeper, "asleep")


async def _expect_nothing(stage: Stage, replica: str, state: str) -> None:
    if not await stage.until(lambda: stage.executor.progress(replica) == _NOTHING):
        seen = stage.executor.progress(replica)
        raise BrokenPromise(f"{replica} is {state}, and it says {seen}")


def _rest(request: GenerationRequest, part: Generation) -> GenerationRequest:
    """Return the request that continues another one after its first attempt."""
    return request._replace(
        max_new_tokens=request.max_new_tokens - part.new_tokens,
        generated_tokens=part.new_tokens,
        resume_from=part.handle,
    )


def _expect_at_budget(budget: int, before: int, answer: Generation) -> None:
    tokens = f"{answer.new_tokens} new tokens with a budget of {budget}"
    if before:
        tokens += f" left after {before}"
    expect(answer.new_tokens <= budget, tokens)
    if answer.finish_reason is FinishReason.STOP and answer.new_tokens < budget:
        raise BrokenPromise(
            f"{tokens}: the answer ended by itself, and its budget was not put to the proof; choose"
            " prompts with longer answers, or a smaller max_new_tokens"
        )
    expect(
        answer.new_tokens == budget and answer.finish_reason is not FinishReason.ABORT,
        f"{tokens}, with the reason {answer.finish_reason.name}",
    )


def _expect_spans(answer: Generation) -> None:
    counts = [span.tokens for span in answer.spans]
    versions = [span.version for span in answer.spans]
    expect(
        sum(counts) == answer.new_tokens and all(count > 0 for count in counts),
        f"spans of {counts} tokens for {answer.new_tokens} new tokens",
    )
    expect(versions == sorted(set(versions)), f"spans of the versions {versions}, in this order")

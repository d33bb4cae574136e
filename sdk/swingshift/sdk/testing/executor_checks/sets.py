"""What a verb over a set of replicas does to one that it does not name."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from swingshift.sdk.executor import FinishReason
from swingshift.sdk.testing.executor_checks.promise import expect
from swingshift.sdk.testing.executor_checks.stage import Stage


async def expect_spared(stage: Stage, other: str, verb: Callable[[], Awaitable[object]]) -> None:
    """Expect that a replica serves on, and keeps a request under way, while a verb is called.

    Args:
        stage: Where.
        other: A replica that serves, with weights of version 0.
        verb: Calls the verb for replicas without this one.

    Raises:
        BrokenPromise: It does not.
    """
    (flight,) = await stage.under_way(other)
    await verb()
    await stage.answers(other, version=0)
    was_done, request_id = flight.answer.done(), flight.request.request_id
    # an engine that still holds it returns it now: its end would take longer
    if not was_done:
        await stage.executor.abort(other, [request_id])
    answer = await flight.answer
    expect(
        answer.new_tokens > 0 and not (was_done and answer.finish_reason is FinishReason.ABORT),
        f"{request_id} was under way on {other}, which was not named, and came to {answer}",
    )

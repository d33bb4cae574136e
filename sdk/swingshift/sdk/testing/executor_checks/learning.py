"""Promises about what the trainer does with samples, and about their payloads."""

from __future__ import annotations

import math

from swingshift.sdk.testing.executor_checks.promise import Group, expect
from swingshift.sdk.testing.executor_checks.stage import Stage

FIT = Group("fit")
DISCARD = Group("discard")


@FIT.promise("a fit step says how many seconds it took, by timing key")
async def _timings(stage: Stage) -> None:
    timing_s = dict((await stage.executor.fit_step(await stage.batch(0))).timing_s)
    expect(
        bool(timing_s) and all(0.0 <= value < math.inf for value in timing_s.values()),
        f"the seconds of a fit step are {timing_s}; allowed: one or more, finite, from 0",
    )


@FIT.promise("a repeated batch returns the first result")
async def _repeats_result(stage: Stage) -> None:
    batch = await stage.batch(0)
    first = await stage.executor.fit_step(batch)
    again = await stage.executor.fit_step(batch)
    expect(first == again, f"batch 0 came to {first}, and when it was repeated to {again}")


@FIT.promise("a batch is trained once, however often it is sent")
async def _trains_once(stage: Stage) -> None:
    one, other = await stage.batch(0), await stage.batch(1)
    sent = (one, one, other, one)
    for batch in sent:
        await stage.executor.fit_step(batch)
    times = [await stage.see.times_trained(batch.batch_id) for batch in (one, other)]
    order = ", ".join(str(batch.batch_id) for batch in sent)
    expect(
        times == [1, 1],
        f"batches were sent in the order {order}: 0 was trained {times[0]} times, 1 {times[1]}",
    )


@DISCARD.promise("a handle that is unknown, or discarded already, is ignored")
async def _ignores_unknown(stage: Stage) -> None:
    (answer,) = await stage.short_answers(await stage.serving(), 1)
    await stage.executor.discard(["nobody"])
    await stage.executor.discard([answer.handle])
    await stage.executor.discard([answer.handle])


@DISCARD.promise("frees all payloads that are named, and keeps the others")
async def _frees(stage: Stage) -> None:
    answers = await stage.short_answers(await stage.serving(), 3)
    await stage.executor.discard([answer.handle for answer in answers[:2]])
    held = [await stage.see.payload_tokens(answer.handle) for answer in answers]
    expect(
        held[:2] == [None, None] and held[2] is not None,
        f"of three payloads the first two were discarded; of the three there are {held} tokens",
    )
